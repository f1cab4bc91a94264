package attempt

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMissing names what the kubelet could not mount, and how to make it.
func TestMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "secret\n")
	write(t, filepath.Join(dir, "blank"), " \n")
	write(t, filepath.Join(dir, "env", "HOOK_TOKEN"), "secret")
	if err := os.MkdirAll(filepath.Join(dir, "absent", "..data"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := &Attempt{Task: Task{Namespace: "clusters", Secrets: []Mounted{
		{Path: filepath.Join(dir, "token"), Secret: "a", Key: "token", Field: "spec.secrets.proxmoxToken"},
		{Path: filepath.Join(dir, "blank"), Secret: "b", Key: "talosconfig", Field: "spec.secrets.talosconfig"},
		{Path: filepath.Join(dir, "env"), Secret: "c", Field: "spec.secrets.envFrom"},
		{Path: filepath.Join(dir, "absent"), Secret: "d", Field: "spec.secrets.envFrom"},
		{Path: filepath.Join(dir, "trust", "ca.crt"), Secret: "e", ConfigMap: true, Key: "ca.crt", Field: "spec.job.trustBundle"},
	}}}
	want := []string{
		"spec.secrets.talosconfig: the Secret b has no key talosconfig, or is missing in the namespace clusters: kubectl -n clusters create secret generic b --from-file=talosconfig=FILE",
		"spec.secrets.envFrom: the Secret d has no keys, or is missing in the namespace clusters: kubectl -n clusters create secret generic d --from-literal=NAME=VALUE",
		"spec.job.trustBundle: the ConfigMap e has no key ca.crt, or is missing in the namespace clusters: kubectl -n clusters create configmap e --from-file=ca.crt=FILE",
	}
	if diff := cmp.Diff(want, a.missing()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
