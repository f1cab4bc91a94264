package talos

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestUnsupported(t *testing.T) {
	t.Parallel()
	const (
		unknown    = "this recast does not know Talos v1.15.0, neither its upgrades nor its machine configuration: use a recast that does, or another talos.version"
		kubernetes = ": bring Kubernetes to a version that both support first (recast upgrade-k8s), or go to another Talos (talos.version)"
	)
	cases := map[string]struct {
		from, to, kubelet string
		want              []string
	}{
		"the same":           {"v1.13.9", "v1.13.9", "v1.35.4", nil},
		"a patch":            {"v1.13.9", "v1.13.10", "v1.35.4", nil},
		"a patch back":       {"v1.13.9", "v1.13.8", "v1.35.4", nil},
		"a minor":            {"v1.13.9", "v1.14.1", "v1.35.4", nil},
		"two minors":         {"v1.12.6", "v1.14.1", "v1.35.4", nil},
		"of a prerelease":    {"v1.13.0-alpha.2", "v1.14.0-rc.0", "v1.35.4", nil},
		"a minor back":       {"v1.14.1", "v1.13.9", "v1.35.4", nil},
		"Kubernetes unknown": {"v1.13.9", "v1.14.1", "", nil},
		"back from unknown":  {"v1.15.0", "v1.14.1", "v1.35.4", nil}, // the table of 1.14 has it
		"two minors back": {"v1.14.1", "v1.12.6", "v1.35.4", []string{
			"Talos does not support v1.14.1 → v1.12.6 (host version 1.14.1 is too new to downgrade to Talos 1.12.6): it cannot be downgraded that far; set talos.version to a newer one",
		}},
		"too far": {"v1.9.5", "v1.12.6", "v1.30.0", []string{
			"it runs Talos v1.9.5, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first",
			"Talos does not support v1.9.5 → v1.12.6 (host version 1.9.5 is too old to upgrade to Talos 1.12.6): upgrade all nodes to v1.11 first",
		}},
		"much too far": {"v1.0.0", "v1.14.1", "", []string{
			"it runs Talos v1.0.0, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first",
			"Talos does not support v1.0.0 → v1.14.1 (host version 1.0.0 is too old to upgrade to Talos 1.14.1): upgrade all nodes to v1.4 first",
		}},
		"old":              {"v1.11.2", "v1.13.9", "v1.34.0", []string{"it runs Talos v1.11.2, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first"}},
		"old, as wanted":   {"v1.11.2", "v1.11.2", "v1.34.0", []string{"it runs Talos v1.11.2, and recast rolls nodes of v1.12 and later: upgrade it with talosctl first"}},
		"newer than known": {"v1.14.1", "v1.15.0", "v1.35.4", []string{unknown}},
		"newer, the same":  {"v1.15.0", "v1.15.0", "v1.35.4", []string{unknown}},
		"no version":       {"latest", "v1.14.1", "", []string{`it runs Talos "latest", which is not a version that recast knows`}},
		"none wanted":      {"v1.14.1", "latest", "", []string{`Talos "latest" is not a version that recast knows`}},
		"Kubernetes too old": {"v1.13.9", "v1.14.1", "v1.31.7", []string{
			"Talos v1.14.1 does not support the Kubernetes that runs (version of Kubernetes 1.31.7 is too old to be used with Talos 1.14.1)" + kubernetes,
		}},
		"Kubernetes too new": {"v1.14.1", "v1.13.9", "v1.37.0", []string{
			"Talos v1.13.9 does not support the Kubernetes that runs (version of Kubernetes 1.37.0 is too new to be used with Talos 1.13.9)" + kubernetes,
		}},
		"Kubernetes of the same minor": {"v1.14.0", "v1.14.1", "v1.31.7", nil}, // it already runs this version
		"Kubernetes unreadable": {"v1.13.9", "v1.14.1", "new", []string{
			"Talos v1.14.1 does not support the Kubernetes that runs (Invalid character(s) found in major number \"0new\")" + kubernetes,
		}},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, new(Client).Unsupported(c.from, c.to, c.kubelet))
	}
}

func TestUnsupportedKubernetes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ talos, kubernetes, want string }{
		"supported":            {"v1.13.9", "v1.36.1", ""},
		"too new":              {"v1.13.9", "v1.37.0", "Talos v1.13.9 supports Kubernetes 1.31 to 1.36, not v1.37.0: roll to Talos v1.14 first (talos.version, recast lock, recast roll)"},
		"too old":              {"v1.13.9", "v1.30.4", "Talos v1.13.9 supports Kubernetes 1.31 to 1.36, not v1.30.4: roll to Talos v1.12 first (talos.version, recast lock, recast roll)"},
		"two away":             {"v1.12.6", "v1.37.0", "Talos v1.12.6 supports Kubernetes 1.30 to 1.35, not v1.37.0: v1.14 does; upgrade Talos step by step first (talos.version, recast roll)"},
		"no Talos supports it": {"v1.14.1", "v1.99.0", "Talos v1.14.1 supports Kubernetes 1.32 to 1.37, not v1.99.0, and this recast knows no Talos that does"},
		"newer Talos":          {"v1.15.0", "v1.36.1", "this recast does not know which Kubernetes Talos v1.15.0 supports: use a newer recast"},
		"no Talos":             {"latest", "v1.36.1", "this recast does not know which Kubernetes Talos latest supports: use a newer recast"},
		"no Kubernetes":        {"v1.14.1", "newest", `Kubernetes "newest" is not a version that recast knows`},
		"a prerelease":         {"v1.14.0-beta.1", "v1.37.0-rc.0", ""},
		"newest of all":        {"v1.14.1", "v1.37.9", ""},
		"oldest of them":       {"v1.14.1", "v1.32.0", ""},
	} {
		must.Equal(t, name, c.want, new(Client).UnsupportedKubernetes(c.talos, c.kubernetes))
	}
}
