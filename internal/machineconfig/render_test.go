package machineconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestRender: patches are applied in their order, all nodes get the same secrets, and what can't be
// rendered names its file and quotes nothing of it. What talosctl makes is compared in e2e-talosctl.
func TestRender(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	bundle := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	text := must.Get(yaml.Marshal(bundle))(t)
	r := Render{
		Cluster: "home", Endpoint: "https://10.0.0.1:6443", Secrets: write("secrets.yaml", string(text)), Talos: "v1.13", Kubernetes: "v1.35.4", ControlPlanes: []string{"cp1"},
		All:        []string{write("all.yaml", "machine:\n  nodeLabels: {a: all, b: all, c: all}\n")},
		OfControls: []string{write("cp.yaml", "machine:\n  nodeLabels: {b: role}\n")},
		OfNode:     map[string][]string{"cp1": {write("cp1.yaml", "machine:\n  nodeLabels: {c: node}\n")}},
	}
	read := func(r Render, node string) (string, error) {
		t.Helper()
		s := must.Get(New(Options{Place: "recast.yaml:5:3", Render: &r}))(t)
		got, found, err := s.Config(t.Context(), node)
		if err == nil && !found {
			t.Errorf("no configuration for %s", node)
		}
		return string(got), err
	}
	for node, says := range map[string][]string{
		"cp1": {"type: controlplane", "a: all", "b: role", "c: node", "token: " + bundle.TrustdInfo.Token, "endpoint: https://10.0.0.1:6443", "kubelet:v1.35.4"},
		"wk1": {"type: worker", "b: all", "c: all", "token: " + bundle.TrustdInfo.Token},
	} {
		must.Contain(t, node, must.Get(read(r, node))(t), says...)
	}
	for want, change := range map[string]func(*Render){
		"secrets.yaml: no such file": func(r *Render) { r.Secrets = filepath.Join(dir, "gone", "secrets.yaml") },
		"none.yaml has no secrets":   func(r *Render) { r.Secrets = write("none.yaml", "token: hushhush\n") },
		"bad.yaml is no patch":       func(r *Render) { r.All = []string{write("bad.yaml", "machine: hushhush\n")} },
		"unknown keys found during decoding:\nmachine:\n    pasword:": func(r *Render) {
			r.All = []string{write("typo.yaml", "machine:\n  pasword: hushhush\n")}
		},
		"json.yaml can't be applied": func(r *Render) {
			r.OfWorkers = []string{write("json.yaml", `[{"op":"remove","path":"/machine/none"}]`)}
		},
		"error parsing version": func(r *Render) { r.Talos = "hush" },
		"is encrypted with sops": func(r *Render) {
			r.All = []string{write("sops.yaml", "machine: ENC[x]\nsops:\n    mac: ENC[y]\n")}
		},
	} {
		changed := r
		change(&changed)
		if _, err := read(changed, "wk1"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hushhush") {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
}
