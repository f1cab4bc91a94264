package talosctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReader runs recast with a talosconfig of role os:reader made by talosctl: drift says
// what it could not compare, and a plan is refused.
func TestReader(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	u.types("A talosconfig that only reads", command{line: "config new {dir}/reader --roles os:reader -n {cp1}"})
	config := must(os.ReadFile(filepath.Join(u.dir, "recast.yaml")))(t)
	reader := strings.Replace(string(config), "./talosconfig", "./reader", 1)
	mustDo(t, os.WriteFile(filepath.Join(u.dir, "reader.yaml"), []byte(reader), 0o600))
	u.types("What it is told",
		command{line: "recast drift -c {dir}/reader.yaml", out: []string{`note: not compared, for it takes a talosconfig with the role os:admin`, `^5 nodes in sync`}},
		command{line: "recast plan -c {dir}/reader.yaml", code: 1, errs: []string{`our talosconfig may not`, `hint: recast needs a talosconfig with the role os:admin`}})
	u.counts()
}
