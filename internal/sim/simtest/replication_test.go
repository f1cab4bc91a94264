package simtest

import (
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestReplicationOutlivesARoll: a job that a new system disk would break stops the roll of
// its node; the remedy in the refusal lifts it, and the job continues.
func TestReplicationOutlivesARoll(t *testing.T) {
	const id = "9031-0"
	for name, c := range map[string]struct {
		lift     func(lab *Lab)
		strategy cluster.Strategy
		short    bool
	}{
		"the system disk is left out": {func(lab *Lab) {
			lab.configure(world.ChangeRequest{ID: wk1, Set: map[string]string{"scsi0": lab.vm(wk1).Config["scsi0"] + ",replicate=0"}})
		}, cluster.Reimage, true},
		"the job is made again": {func(lab *Lab) { lab.World.RemoveReplication(id) }, cluster.Recreate, false},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.short {
				long(t)
			}
			o := oneWorker()
			o.DiskType = "zfspool"
			inLab(t, o, func(t *testing.T, lab *Lab) {
				job := world.ReplicationJob{ID: id, Guest: wk1, Target: "pve2", Schedule: "*/15", NextSync: time.Now().Add(24 * time.Hour)}
				lab.World.AddReplication(job)
				must(t, lab.World.RunReplication(id))
				resumption{strategy: c.strategy}.prepare(lab)
				only := planning.Policy{Only: []string{"wk1"}}
				_, err := lab.Client().Roll(t.Context(), only)
				if fault.CodeOf(err) != fault.PlanRefused || !strings.Contains(err.Error(), "replication 9031-0 of the VM") {
					t.Fatalf("with the job: %v", err)
				}
				c.lift(lab)
				must(t, lab.Client().roll(only)(t.Context()))
				if len(lab.World.Replication()) == 0 {
					lab.World.AddReplication(job)
				}
				must(t, lab.World.RunReplication(id))
				requireInSync(t, lab, "cp1")
			})
		})
	}
}
