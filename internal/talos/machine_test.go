package talos

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/cluster"
)

// TestSecureBoot: a machine that does not report it does not count as one without.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]*bool{"on": new(true), "off": new(false), "it does not say": nil} {
		s := machineWith(t)
		if want != nil {
			r := runtime.NewSecurityStateSpec(runtime.NamespaceName)
			r.TypedSpec().SecureBoot = *want
			s = machineWith(t, r)
		}
		var got cluster.Machine
		err := readSecurity(t.Context(), s, &got)
		if diff := cmp.Diff(cluster.RunningSystem{SecureBoot: want}, got.RunningSystem); diff != "" || err != nil {
			t.Errorf("%s: err = %v (-want +got):\n%s", name, err, diff)
		}
	}
}
