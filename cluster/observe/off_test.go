package observe

import (
	"errors"
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// TestNamesThatAreOff: where nothing of the cluster answers, VMs that are off and have the name of a node are named;
// surge nodes and other people's VMs are not.
func TestNamesThatAreOff(t *testing.T) {
	t.Parallel()
	wanted := []cluster.Wanted{{Name: "cp1"}, {Name: "cp2"}, {Name: "wk-surge1", Surge: true}}
	vms := []cluster.VM{
		{ID: 101, Name: "cp1", Host: "pve1", Running: true},
		{ID: 102, Name: "cp2", Host: "pve1"},
		{ID: 103, Name: "wk-surge1", Host: "pve1"},
		{ID: 104, Name: "printer", Host: "pve1"},
	}
	got := fault.Hints(namesThatAreOff(errors.New("no answer"), wanted, vms))
	want := []string{`VM 102 "cp2" on pve1 has the name of a node, and is switched off: start VM 102 "cp2" on pve1 in Proxmox`}
	if !slices.Equal(got, want) {
		t.Errorf("hints %q, want %q", got, want)
	}
}
