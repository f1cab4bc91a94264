package claim

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// TestDeletion: a claim that can't be read is to be deleted only if its VM has nothing, and once nobody holds it.
func TestDeletion(t *testing.T) {
	t.Parallel()
	const deletes = "qm set 9000 --protection 0 && qm destroy 9000"
	for name, c := range map[string]struct {
		change func(*cluster.VM)
		want   bool
	}{
		"as recast made it": {func(*cluster.VM) {}, true},
		"with a drive":      {func(vm *cluster.VM) { vm.Config["scsi0"] = "fast:vm-9000-disk-0" }, false},
		"running":           {func(vm *cluster.VM) { vm.Running = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := cluster.VM{ID: 9000, Name: VMName, Host: "pve1", Config: map[string]string{"description": claimMark + "{"}}
			c.change(&vm)
			_, found, err := Read(vm)
			hint := strings.Join(fault.Hints(err), "\n")
			if !found || strings.Contains(hint, deletes) != c.want || !strings.Contains(hint, "Else wait "+Watch.String()) {
				t.Errorf("%t, %v, hint %s", found, err, hint)
			}
		})
	}
}
