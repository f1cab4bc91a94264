package strategy

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// A machine that is off is judged by its record: a pool that was on another disk is still there,
// and one on the system disk is lost with it.
func TestPoolsAreRemembered(t *testing.T) {
	t.Parallel()
	was := cluster.Machine{SystemDisk: "sda", PoolMembers: []cluster.PoolMember{
		{Device: "sdb1", Disks: []string{"sdb"}, Format: cluster.FormatLVM, Group: "elsewhere"},
		{Device: "sda5", Disks: []string{"sda"}, Format: cluster.FormatLVM, Group: "here"},
		{Device: "loop1", Format: cluster.FormatLVM, Group: "nobody-knows"},
	}}
	packed, err := parking.Memory{VM: cluster.VM{ID: 101}, Pools: was.Pools()}.Pack()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := parking.UnpackMemory(packed)
	if err != nil {
		t.Fatal(err)
	}
	off := Candidate{Machine: mem.Machine()}
	for group, lost := range map[string]bool{"elsewhere": false, "here": true, "nobody-knows": true, "never-seen": true} {
		if got := onSystemDisk(off, cluster.LocalData{Name: "linstor/" + group, Format: cluster.FormatLVM, Group: group}); got != lost {
			t.Errorf("volume group %s goes with the system disk: %t, want %t", group, got, lost)
		}
	}
}
