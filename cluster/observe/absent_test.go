package observe

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// TestTracesOfABrokenCluster: what bootstrap finds of a cluster may be a cluster that is broken. It is rebuilt, and no
// machine or disk of it is to be deleted first.
func TestTracesOfABrokenCluster(t *testing.T) {
	t.Parallel()
	runs := cluster.VM{ID: 9001, Name: "cp1", Host: "pve1", Running: true}
	o := Observation{First: "cp1", Parking: []parking.Parking{{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: parking.Record{Node: "cp1", Kept: []parking.KeptDisk{{Key: "scsi30", Run: "r1"}}}}}}
	texts := append(o.TracesOfCluster("cp1"), "it has "+runs.String()+asItIs(runs)+": "+o.whose("give that VM another name"))
	if len(texts) != 2 {
		t.Fatal(texts)
	}
	for _, text := range texts {
		if !strings.Contains(text, "recast rebuild cp1 --from SNAPSHOT") || strings.Contains(text, "delete") || strings.Contains(text, "destroy it ") {
			t.Error(text)
		}
	}
	if text := texts[1]; !strings.Contains(text, "which runs") {
		t.Error(text)
	}
	if text := (Observation{}).whose("give that VM another name"); strings.Contains(text, "rebuild") || strings.Contains(text, "delete") {
		t.Errorf("of one node of a cluster that works: %s", text)
	}
}

// TestGoneForGood: a Node that is Ready has a machine, and is not to be deleted.
func TestGoneForGood(t *testing.T) {
	t.Parallel()
	ready, not := goneForGood(&cluster.KubeNode{Name: "wk1", Ready: true}), goneForGood(&cluster.KubeNode{Name: "wk1"})
	if ready != "" || goneForGood(nil) != "" || !strings.Contains(not, "if its VM is gone for good: kubectl delete node wk1,") {
		t.Errorf("ready: %s\nnot: %s", ready, not)
	}
}

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
