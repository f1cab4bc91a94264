package talos

import (
	"encoding/base64"
	"slices"
	"testing"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"

	"github.com/recast-sh/recast/cluster"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
)

// TestFilesOfTwoRoles: a worker's configuration is held against a control plane's in what both have, in
// whatever documents, and each against the talosconfig.
func TestFilesOfTwoRoles(t *testing.T) {
	t.Parallel()
	var bundles [2]*secrets.Bundle
	for i := range bundles {
		var err error
		if bundles[i], err = secrets.NewBundle(secrets.NewClock(), nil); err != nil {
			t.Fatal(err)
		}
	}
	ours := bundles[0]
	mixed := *ours
	certs := *ours.Certs
	certs.OS = bundles[1].Certs.OS
	mixed.Certs = &certs
	foreign := *ours // with the CA of another Kubernetes
	kubernetes := *ours.Certs
	kubernetes.K8s = bundles[1].Certs.K8s
	foreign.Certs = &kubernetes
	const here = "https://10.0.0.1:6443"
	m := &Client{config: &clientconfig.Config{Context: "c", Contexts: map[string]*clientconfig.Context{"c": {CA: base64.StdEncoding.EncodeToString(ours.Certs.OS.Crt)}}}}
	for _, contract := range []*config.VersionContract{config.TalosVersion1_12, config.TalosVersion1_13, config.TalosVersion1_14} {
		runs := ofRole(t, machine.TypeControlPlane, ours, contract, here)
		same, other := ofRole(t, machine.TypeWorker, ours, contract, here), ofRole(t, machine.TypeWorker, &mixed, contract, here)
		if got, err := m.ConfigEffect(runs, same); err != nil || !slices.Equal(got.Identity, []string{cluster.NodeRole}) {
			t.Errorf("%v: of the same cluster: %q, %v", contract, got.Identity, err)
		}
		if got, err := m.ConfigEffect(runs, other); err != nil || !slices.Equal(got.Identity, []string{cluster.NodeRole, cluster.TalosCA}) {
			t.Errorf("%v: with the CA of another: %q, %v", contract, got.Identity, err)
		}
		apart := ofRole(t, machine.TypeWorker, &foreign, contract, here)
		for what, files := range map[string][2]cluster.Secret{"beside a control plane": {runs, apart}, "of a control plane beside a worker": {apart, runs}, "beside a worker": {same, apart}} {
			want := []string{cluster.NodeRole, kubernetesCA}
			if what == "beside a worker" {
				want = want[1:]
			}
			if got, err := m.ConfigEffect(files[0], files[1]); err != nil || !slices.Equal(got.Identity, want) {
				t.Errorf("%v: with the CA of another Kubernetes, %s: %q, %v", contract, what, got.Identity, err)
			}
		}
		if got, err := m.ConfigEffect(same, same); err != nil || len(got.Identity) > 0 {
			t.Errorf("%v: of the same worker: %q, %v", contract, got.Identity, err)
		}
		for text, want := range map[string]bool{string(runs): true, string(same): true, string(other): false} {
			if trusted, known, err := m.TrustedCA(cluster.Secret(text)); trusted != want || !known || err != nil {
				t.Errorf("%v: trusted %v, known %v, %v", contract, trusted, known, err)
			}
		}
	}
	m.config.Contexts["c"].CA = ""
	if _, known, err := m.TrustedCA(nil); known || err != nil {
		t.Errorf("a talosconfig without a CA: %v, %v", known, err)
	}
}
