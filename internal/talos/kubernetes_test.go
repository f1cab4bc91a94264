package talos

import (
	"slices"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

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
		if got := sameConfig([]byte(config), []byte(tc.other)); got != tc.same {
			t.Errorf("%s: %t", name, got)
		}
	}
}
