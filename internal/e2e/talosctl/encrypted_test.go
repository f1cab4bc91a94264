package talosctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEncrypted rolls a configuration that a real age has encrypted.
func TestEncrypted(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	u.env = append(u.env, "SOPS_AGE_KEY_FILE="+filepath.Join(u.dir, "key"), "PATH="+filepath.Dir(u.programs["age"])+":"+os.Getenv("PATH"))
	u.does("age-keygen", "-o", "key")
	u.does("recast", "config", "render", "--to", "plain", "--running", "--secrets", "wk1")
	plain := must(os.ReadFile(filepath.Join(u.dir, "plain", "wk1.yaml")))(t)
	key := must(os.ReadFile(filepath.Join(u.dir, "key")))(t)
	_, recipient, _ := strings.Cut(string(key), "public key: ")
	recipient, _, _ = strings.Cut(recipient, "\n")
	u.writes("wk1.plain", strings.Replace(string(plain), "machine:\n", "machine:\n    nodeLabels: {from-git: \"true\"}\n", 1))
	mustDo(t, os.Mkdir(filepath.Join(u.dir, "machine"), 0o700))
	u.does("age", "--encrypt", "--armor", "--recipient", recipient, "--output", "machine/wk1.yaml", "wk1.plain")
	project := must(os.ReadFile(filepath.Join(u.dir, "recast.yaml")))(t)
	u.writes("recast.yaml", strings.Replace(string(project), "talos:\n", "talos:\n  machineConfigs: machine\n", 1))
	u.types("An encrypted configuration",
		command{line: "recast config diff wk1", code: 2, out: []string{`^differs wk1$`, `machine\.nodeLabels\.from-git: added: true`}},
		command{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `its machine configuration differs: machine\.nodeLabels\.from-git`}},
		command{line: "recast roll --yes", out: []string{`^  wk1 got its configuration`}},
		command{line: "recast drift", out: inSync},
		command{line: "get mc v1alpha1 -n {wk1} -o yaml", out: []string{`from-git: "?true`}},
	)
	u.does("age-keygen", "-o", "other")
	mustDo(t, os.Rename(filepath.Join(u.dir, "other"), filepath.Join(u.dir, "key")))
	u.types("The wrong key", command{line: "recast drift", code: 1, out: []string{`^unread +wk1 `, `no identity matched`}})
	u.counts()
}
