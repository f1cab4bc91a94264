package talos

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

// ofRole is the configuration of a node with the defaults of a release.
func ofRole(t *testing.T, role machine.Type, bundle *secrets.Bundle, contract *config.VersionContract, endpoint string) cluster.Secret {
	t.Helper()
	in := must.Get(generate.NewInput("home", endpoint, "1.35.4", generate.WithSecretsBundle(bundle), generate.WithVersionContract(contract)))(t)
	return must.Get(must.Get(in.Config(role))(t).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled)))(t)
}

// TestConfigEffect: what another configuration does to a node, whichever documents it is written in.
func TestConfigEffect(t *testing.T) {
	t.Parallel()
	const here = "https://10.0.0.1:6443"
	ours := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	old := ofRole(t, machine.TypeControlPlane, ours, config.TalosVersion1_13, here)
	with := func(line string) cluster.Secret {
		return cluster.Secret(strings.Replace(string(old), "machine:\n", "machine:\n    "+line+"\n", 1))
	}
	type row struct {
		wanted   cluster.Secret
		identity []string
		reboot   []string
		unknown  []string
	}
	must.Each(t, map[string]row{
		"the same":                     {wanted: old},
		"the documents of 1.14":        {wanted: ofRole(t, machine.TypeControlPlane, ours, config.TalosVersion1_14, here), reboot: []string{"SecurityProfileConfig"}},
		"another endpoint":             {wanted: ofRole(t, machine.TypeControlPlane, ours, config.TalosVersion1_13, "https://10.0.0.2:6443"), identity: []string{"the cluster's endpoint"}},
		"a sysctl":                     {wanted: with(`sysctls: {vm.swappiness: "1"}`)},
		"an annotation":                {wanted: with("nodeAnnotations: {rack: r7}")},
		"a rule of udev":               {wanted: with(`udev: {rules: ["x"]}`), reboot: []string{"machine.udev.rules"}},
		"an argument of etcd":          {wanted: cluster.Secret(strings.Replace(string(old), "    etcd:\n", "    etcd:\n        extraArgs: {max-wals: \"7\"}\n", 1)), reboot: []string{"cluster.etcd.extraArgs.max-wals"}},
		"a registry's password":        {wanted: append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: u\npassword: p\n"...), reboot: []string{"RegistryAuthConfig"}},
		"a module of the kernel":       {wanted: with("kernel: {modules: [{name: zfs}]}")},
		"an argument of the scheduler": {wanted: cluster.Secret(strings.Replace(string(old), "    scheduler:\n", "    scheduler:\n        extraArgs: {v: \"4\"}\n", 1))},
		"a variable":                   {wanted: with("env: {http_proxy: http://p}"), reboot: []string{"machine.env.http_proxy"}},
		"a variable in its document":   {wanted: append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {http_proxy: http://p}\n"...), reboot: []string{"EnvironmentConfig"}},
		"a document of a later Talos":  {wanted: append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: TeleportConfig\nname: x\n"...), unknown: []string{"TeleportConfig of v1alpha1"}},
	}, func(t *testing.T, tc row) {
		got, err := (&Client{}).ConfigEffect(old, tc.wanted)
		if err != nil || !slices.Equal(got.Identity, tc.identity) || !slices.Equal(got.Reboot, tc.reboot) || !slices.Equal(got.Unknown, tc.unknown) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	for keys, want := range map[string]cluster.Encryption{
		"{slot: 0, kms: {endpoint: 'https://kms.example'}}":                        {Volume: "u-data", Keys: []string{"kms"}},
		"{slot: 0, tpm: {checkSecurebootStatusOnEnroll: true}}":                    {Volume: "u-data", Keys: []string{"tpm"}},
		"{slot: 0, static: {passphrase: hush}}, {slot: 1, nodeID: {}}":             {Volume: "u-data", Keys: []string{"nodeID", "static"}},
		"{slot: 0, nodeID: {}, lockToState: true}, {slot: 1, tpm: {}}":             {Volume: "u-data", Keys: []string{"nodeID", "tpm"}, LockToState: true},
		"{slot: 0, tpm: {options: {pcrs: [7]}}, lockToState: true}":                {Volume: "u-data", Keys: []string{"tpm"}, LockToState: true},
		"{slot: 0, kms: {endpoint: 'https://kms.example'}}, {slot: 1, nodeID: {}}": {Volume: "u-data", Keys: []string{"kms", "nodeID"}},
	} {
		file := append(slices.Clip(old), "---\napiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: '!system_disk'}, minSize: 1GB}\nencryption: {provider: luks2, keys: ["+keys+"]}\n"...)
		must.Equal(t, keys, []cluster.Encryption{want}, must.Get((&Client{}).ConfigEffect(old, file))(t).Encryption)
	}
	loaded, other := with("kernel: {modules: [{name: zfs}, {name: nbd, parameters: [a=1]}]}"), with("kernel: {modules: [{name: nbd, parameters: [a=2]}]}")
	if got, err := (&Client{}).ConfigEffect(loaded, other); err != nil || !slices.Equal(got.Reboot, []string{"parameters of kernel module nbd"}) {
		t.Errorf("of a loaded module: %q, %v", got.Reboot, err)
	}
	of := func(kind string) cluster.Secret {
		return cluster.Secret(strings.Replace(string(old), "type: controlplane", "type: "+kind, 1))
	}
	if got, err := (&Client{}).ConfigEffect(of("init"), old); err != nil || len(got.Identity) > 0 || !slices.Equal(got.Reboot, []string{"machine.type"}) {
		t.Errorf("of a node of type init that becomes an ordinary control plane: %q, %q, %v", got.Identity, got.Reboot, err)
	}
	if got, err := (&Client{}).ConfigEffect(old, of("init")); err != nil || !slices.Equal(got.Identity, []string{cluster.NodeRole}) {
		t.Errorf("of a control plane that becomes one of type init: %q, %v", got.Identity, err)
	}
	theirs := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	got, err := (&Client{}).ConfigEffect(old, ofRole(t, machine.TypeControlPlane, theirs, config.TalosVersion1_13, here))
	if same := 3; len(identities)-same != len(got.Identity) || err != nil { // role, endpoint and name
		t.Errorf("of another cluster: %q, %v", got.Identity, err)
	}
}

// TestFilesOfTwoRoles: a worker's configuration is held against a control plane's in what both have, in
// whatever documents, and each against the talosconfig.
func TestFilesOfTwoRoles(t *testing.T) {
	t.Parallel()
	ours, theirs := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t), must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	mixed, certs := *ours, *ours.Certs
	mixed.Certs, certs.OS = &certs, theirs.Certs.OS
	foreign, kubernetes := *ours, *ours.Certs
	foreign.Certs, kubernetes.K8s = &kubernetes, theirs.Certs.K8s // the CA of another Kubernetes
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

func TestKubeletGates(t *testing.T) {
	t.Parallel()
	got := kubeletGates(&k8s.KubeletSpecSpec{
		Args:   []string{"--v=2", "--feature-gates=A=true,B=false"},
		Config: map[string]any{"featureGates": map[string]any{"C": true}},
	})
	if want := []string{"A=true", "B=false", "C"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSameConfig: the formatting of a configuration does not matter.
func TestSameConfig(t *testing.T) {
	t.Parallel()
	const config = "version: v1alpha1\nmachine:\n  type: worker\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: wk1\n"
	for name, tc := range map[string]struct {
		other string
		same  bool
	}{
		"the same":          {config, true},
		"a comment":         {"# mine\n" + config, true},
		"an empty one":      {config + "---\n", true},
		"another type":      {"version: v1alpha1\nmachine:\n  type: controlplane\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: wk1\n", false},
		"one document less": {"version: v1alpha1\nmachine:\n  type: worker\n", false},
		"unreadable":        {"\tversion", false},
	} {
		must.Equal(t, name, tc.same, sameConfig([]byte(config), []byte(tc.other)))
	}
}
