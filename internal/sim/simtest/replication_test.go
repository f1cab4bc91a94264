package simtest

import (
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestReplicationOutlivesARoll: a job that a new system disk would break stops the roll of
// its node; the remedy in the refusal lifts it, and the job continues.
func TestReplicationOutlivesARoll(t *testing.T) {
	long(t)
	const id = "9031-0"
	type story struct {
		lift     edit
		strategy cluster.Strategy
	}
	o := oneWorker()
	o.DiskType = "zfspool"
	eachInLab(t, o, map[string]story{
		"the system disk is left out": {func(l *Lab) { change("scsi0=" + l.vm(wk1).Config["scsi0"] + ",replicate=0")(l) }, cluster.Reimage},
		"the job is made again":       {func(l *Lab) { l.World.RemoveReplication(id) }, cluster.Recreate},
	}, func(t *testing.T, lab *Lab, s story) {
		job := world.ReplicationJob{ID: id, Guest: wk1, Target: "pve2", Schedule: "*/15", NextSync: time.Now().Add(24 * time.Hour)}
		lab.World.AddReplication(job)
		must(t, lab.World.RunReplication(id))
		resumption{strategy: s.strategy}.prepare(lab)
		err := lab.Client().roll(onlyWorker)(t.Context())
		if fault.CodeOf(err) != fault.PlanRefused || !strings.Contains(err.Error(), "replication 9031-0 of the VM") {
			t.Fatalf("with the job: %v", err)
		}
		s.lift(lab)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		if len(lab.World.Replication()) == 0 {
			lab.World.AddReplication(job)
		}
		must(t, lab.World.RunReplication(id))
		requireInSync(t, lab, "cp1")
	})
}
