package survey

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
)

func TestFreeingNeeds(t *testing.T) {
	t.Parallel()
	idle := planning.NodePlan{Node: "wk1", Strategy: cluster.InPlace, Host: "pve1"}
	tidy := idle
	tidy.Frees = []parking.FreePlan{{Key: "scsi30", Volid: "fast:vm-9900-disk-0"}}
	for name, tc := range map[string]struct {
		needs Needs
		want  bool
	}{
		"a roll that frees":     {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{tidy}}, false), true},
		"a roll that does not":  {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{idle}}, false), false},
		"prune":                 {NeedsToFree([]string{"fast"}), true},
		"prune without a disk":  {NeedsToFree(nil), false},
		"prune of ISOs":         {NeedsToPrune([]string{"fast"}, nil), false},
		"prune of other disks'": {NeedsToFree([]string{"slow"}), false},
	} {
		has := func(path, privilege string) bool {
			return slices.ContainsFunc(tc.needs, func(n Need) bool { return n.Path == path && n.Privilege == privilege })
		}
		if got := has("/vms", "VM.Config.Disk") && has("/storage/fast", "Datastore.AllocateSpace"); got != tc.want {
			t.Errorf("%s: freeing is %t among %v", name, got, tc.needs)
		}
	}
}

// TestOwnEntries: an entry at a VM's own number takes the place of that above it, for parking and scratch VMs, too.
func TestOwnEntries(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 9900, Config: map[string]string{}}
	n := planning.NodePlan{Strategy: cluster.Reimage, VMID: 9002, System: &planning.DiskPlan{Key: "scsi0", Volid: "fast:vm-9002-disk-0"}}
	n.Found.VM, n.Found.Parking = &cluster.VM{ID: 9002}, &parking.Parking{VM: vm}
	for name, needs := range map[string]Needs{
		"prune":             NeedsToFree([]string{"fast"}, vm),
		"prune, by scratch": NeedsToClear(vm),
		"roll":              NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false),
	} {
		held := tree{"/vms/9900": cluster.Privileges{}}
		for _, need := range needs {
			if held[need.Path] == nil {
				held[need.Path] = cluster.Privileges{}
			}
			held[need.Path][need.Privilege] = true
		}
		m, err := needs.Missing(t.Context(), held)
		if err != nil || !slices.ContainsFunc(m.Lacks, func(l Lack) bool { return l.At == "/vms/9900" && l.Privilege == "VM.Allocate" && l.Overridden }) {
			t.Errorf("%s: %v lacks %v", name, err, m)
		}
	}
}

// TestDiskImages: storages of disk images need what those of ISOs do, and only if there are any.
func TestDiskImages(t *testing.T) {
	n := planning.NodePlan{Node: "wk1", Strategy: cluster.Recreate, Host: "pve1"}
	n.Wanted.ISOStorages = []string{"isos"}
	boots := n
	boots.Wanted.DiskStorages = []string{"imports"}
	for name, tc := range map[string]struct {
		needs Needs
		want  []string // on /storage/imports
	}{
		"a roll by ISO":  {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{n}}, false), nil},
		"a roll by disk": {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{boots}}, false), []string{"Datastore.AllocateTemplate", "Datastore.Audit"}},
		"publish":        {NeedsToPublish([]string{"isos"}, []string{"imports"}), []string{"Datastore.AllocateTemplate", "Datastore.Audit"}},
		"prune":          {NeedsToPrune([]string{"isos"}, []string{"imports"}), []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"}},
	} {
		var got []string
		for _, n := range tc.needs {
			if n.Path == "/storage/imports" {
				got = append(got, n.Privilege)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s needs %v on the storage, want %v", name, got, tc.want)
		}
	}
}

// TestRehearsingADisk: a scratch VM that boots a disk takes room on the storage of the node's system
// disk, and reads its image from another one.
func TestRehearsingADisk(t *testing.T) {
	n := planning.NodePlan{Node: "wk1", Host: "pve1", System: &planning.DiskPlan{Key: "scsi0"}}
	n.Wanted.ISOStorages, n.Wanted.DiskStorages = []string{"isos"}, []string{"imports"}
	n.Found.VM = &cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0", "scsi1": "slow:vm-101-disk-0"}}
	for boots, want := range map[planning.Medium]map[string][]string{
		{ISO: "new.iso"}:    {"/storage/isos": {"Datastore.Audit"}},
		{Disk: "new.qcow2"}: {"/storage/imports": {"Datastore.Audit"}, "/storage/fast": {"Datastore.AllocateSpace", "Datastore.Audit"}},
	} {
		got := byPath(NeedsToRehearse(planning.Plan{Trials: []planning.Trial{{Host: "pve1", Medium: boots, Model: n}}}))
		delete(got, "/")
		delete(got, "/vms")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", boots, diff)
		}
	}
}
