package simtest

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestMatrixSees violates the invariants by hand: the matrix must detect it.
func TestMatrixSees(t *testing.T) {
	t.Parallel()
	value := func(l *matrixLab, key string) string {
		vm, err := l.world.LookupVM(matrixHost, matrixVM)
		must(l.t, err)
		return vm.Config[key]
	}
	park := func(l *matrixLab) error {
		err := l.world.DefineVM(matrixHost, matrixParking, map[string]string{"memory": "16"}, nil)
		if err != nil {
			return err
		}
		return l.done(l.world.MoveDisk("root@pam", matrixHost, world.MoveRequest{ID: matrixVM, Disk: "scsi2", Target: matrixParking}))
	}
	cases := map[string]struct {
		do   func(l *matrixLab) error
		want string
	}{
		"nothing": {func(*matrixLab) error { return nil }, ""},
		"a volume is freed": {func(l *matrixLab) error {
			volid, _, _ := strings.Cut(value(l, "efidisk0"), ",")
			return l.done(l.world.DeleteVolume("root@pam", matrixHost, volid))
		}, "efidisk0 of VM 9011 was freed"},
		"a volume is in two VMs": {func(l *matrixLab) error {
			return l.world.DefineVM(matrixHost, 9012, map[string]string{"scsi0": value(l, "scsi2")}, nil)
		}, "scsi2 of VM 9011 is in several VMs that may run: [9011 9012]"},
		"a volume is in a VM and on the parking VM": {func(l *matrixLab) error {
			return l.world.DefineVM(matrixHost, matrixParking, map[string]string{"scsi0": value(l, "scsi2")}, nil)
		}, "scsi2 of VM 9011 has several names: [9011-scsi2 9900-scsi0]"},
		"a volume loses its name": {func(l *matrixLab) error {
			l.world.StopNextMove(world.AfterSource, false)
			return park(l)
		}, "has no name, and no record says that it is on its way"},
		"a VM runs without a disk": {func(l *matrixLab) error {
			if err := park(l); err != nil {
				return err
			}
			return l.done(l.world.Start("root@pam", matrixHost, matrixVM))
		}, "VM 9011 runs without scsi2 of VM 9011, which is parked"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shape := usualShape(bothDisks, cluster.Recreate)
				shape.kept, shape.ha = false, false
				l := newMatrixLab(t, shape)
				l.look(record.Call{Method: "before"})
				must(t, c.do(l))
				l.look(record.Call{Method: "after"})
				seen := strings.Join(append(l.broken, l.unfreed()...), "\n")
				if c.want == "" && seen != "" || !strings.Contains(seen, c.want) {
					t.Errorf("seen %q, want %q", seen, c.want)
				}
			})
		})
	}
}
