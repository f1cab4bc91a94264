package kubeupgrade

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// removals records what is asked for, version by version.
type removals struct {
	cluster.MachineReader
	cluster.KubeReader
	asked []string
}

func (r *removals) RemovedFlags(_ context.Context, addr netip.Addr, _ bool, from, to string) ([]string, error) {
	r.asked = append(r.asked, addr.String()+" "+from+"→"+to)
	return nil, nil
}

func (r *removals) RemovedObjects(_ context.Context, from, to string) ([]string, error) {
	r.asked = append(r.asked, "objects "+from+"→"+to)
	return nil, nil
}

// TestRemovedStepByStep: each node is asked from its oldest version on, one minor version at a
// time, whatever is already upgraded.
func TestRemovedStepByStep(t *testing.T) {
	t.Parallel()
	as := func(s Seen) Seen { return s }
	for name, tc := range map[string]struct {
		from string
		seen func(Seen) Seen
		want string
	}{
		"a minor":       {"v1.35.4", as, "10.0.0.11 v1.35.4→v1.36.1, 10.0.0.31 v1.35.4→v1.36.1, objects v1.35.4→v1.36.1"},
		"a patch":       {"v1.36.0", as, ""},
		"an old one":    {"v1.35.4", kubelet("wk1", "v1.33.9"), "10.0.0.11 v1.35.4→v1.36.1, 10.0.0.31 v1.33.9→v1.34.0, 10.0.0.31 v1.34.0→v1.35.0, 10.0.0.31 v1.35.0→v1.36.1, objects v1.33.9→v1.34.0, objects v1.34.0→v1.35.0, objects v1.35.0→v1.36.1"},
		"only kubelets": {"v1.36.1", kubelet("wk1", "v1.35.4"), "10.0.0.31 v1.35.4→v1.36.1, objects v1.35.4→v1.36.1"},
		"too old":       {"v1.35.4", kubelet("wk1", "v1.30.1"), "10.0.0.11 v1.35.4→v1.36.1, objects v1.35.4→v1.36.1"},
		"two minors":    {"v1.34.6", as, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &removals{}
			wanted, _ := cluster.ParseVersion("v1.36.1")
			out, err := removed(t.Context(), r, r, tc.seen(seenAt(tc.from)), wanted)
			if got := strings.Join(r.asked, ", "); got != tc.want || err != nil || len(out) > 0 {
				t.Errorf("asked %s, want %s; %v, %v", got, tc.want, out, err)
			}
		})
	}
}
