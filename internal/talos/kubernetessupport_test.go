package talos_test

import (
	"testing"

	"github.com/recast-sh/recast/internal/talos"
)

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
		if got := new(talos.Client).UnsupportedKubernetes(c.talos, c.kubernetes); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
