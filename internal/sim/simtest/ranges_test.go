package simtest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// withRange is another client with its own recast.yaml.
func (l *Lab) withRange(vmids string) *Client {
	l.t.Helper()
	c := valueOf(l.WithRange(filepath.Join(l.t.TempDir(), "other"), vmids))(l.t)
	return c
}

// TestUnfinishedWorkOfAnotherFile: a run with other proxmox.vmids was killed in the middle. Its
// own recast.yaml finishes that; status reports it with any.
func TestUnfinishedWorkOfAnotherFile(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		other, me := lab.withRange("9100-9199"), lab.Client()
		other.killedAt(t, before("take-down/park/scsi1"), other.roll(planning.Policy{}))
		refused := func(what string, wants ...string) {
			t.Helper()
			before := lab.Recorder.Mutations()
			_, err := me.Roll(t.Context(), planning.Policy{})
			said := fmt.Sprint(err, fault.Hints(err))
			for _, want := range append(wants, "9000-9099", "9100-9199", "use the same proxmox.vmids") {
				require(t, fault.KindOf(err) == fault.Refused && strings.Contains(said, want),
					"%s: it does not say %q: %s", what, want, said)
			}
			n := lab.Recorder.Mutations() - before
			require(t, n <= 0, "%s: %d changing requests", what, n)
		}
		refused("beside a dead claim", `VM 9100 "recast-claim"`, "has ended without giving it back")
		res := valueOf(me.Status(t.Context()))(t)
		if res.Claim == nil || res.Claim.VMID != 9100 || res.Claim.VMIDs != "9100-9199" || len(res.Open) != 1 || res.Open[0].Node != "wk1" ||
			!strings.Contains(strings.Join(res.Problems, "\n"), "it was made with proxmox.vmids 9100-9199, and this recast.yaml has 9000-9099") {
			t.Errorf("status: claim %+v, open %+v, problems %q", res.Claim, res.Open, res.Problems)
		}
		next := lab.withRange("9100-9199")
		next.Run = "20000101-0000-cafe"
		must(t, next.roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		lab.Patch(sim.PatchedExtension)
		requireNoClaim(t, lab)
		refused("beside an old system disk", "keeps the previous system disk of node wk1", "9000-9101 holds them all")
		must(t, me.setRange("9000-9199"))
		must(t, me.roll(planning.Policy{})(t.Context()))
		lab.RequireIntact()
		requireNoClaim(t, lab)
	})
}
