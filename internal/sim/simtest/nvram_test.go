package simtest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
)

// TestRollbackAfterAnUpgradeInPlace: a system disk that was upgraded in place has two boot
// entries of the same version of Talos. The EFI disk says which one boots, and the
// replacement's installation has since written its own entry there, which has the name of
// the older one.
func TestRollbackAfterAnUpgradeInPlace(t *testing.T) {
	long(t)
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(strategy), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.inPlace()
				lab.Patch(everywhere)
				must(t, lab.as(firstRun).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
				upgraded, m := lab.builds(), lab.machine("wk1")
				if !strings.HasSuffix(m.BootEntry, "~1.efi") {
					t.Fatalf("boots %s", m.BootEntry)
				}
				lab.Replace("recast.yaml", "strategy: in-place", "strategy: "+string(strategy))
				lab.Patch(everywhere)
				must(t, lab.as(secondRun).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
				must(t, lab.as(thirdRun).goBack("wk1")(t.Context()))
				if diff := cmp.Diff(upgraded, lab.builds()); diff != "" {
					t.Errorf("builds after the rollback:\n%s", diff)
				}
				lab.RequireIntact()
			})
		})
	}
}
