package survey

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
)

func TestNeedsAreCheckedByPath(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	plan, err := planning.New("c1", wanted, o, clustertest.Past, planning.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	needs := NeedsOf(plan, false)
	all := cluster.Privileges{}
	for _, n := range needs {
		all[n.Privilege] = true
	}
	check := func(n Needs, access tree) error { return n.Check(t.Context(), access) }
	if err := check(needs, tree{"/": all}); err != nil {
		t.Errorf("everything is granted at the root: %v", err)
	}
	err = check(needs, tree{"/": all, "/storage/fast": {"Datastore.Audit": true}})
	want := "the Proxmox token lacks privileges: Datastore.AllocateSpace on /storage/fast"
	if clustertest.Message(err) != want || fault.KindOf(err) != fault.Refused {
		t.Errorf("err = %v, want %s", err, want)
	}
	o.Found[1].VM.Config["net0"] = "virtio=AA:BB:CC:DD:EE:FF,bridge=vmbr0,tag=7"
	o.Found[1].VM.Config["hostpci0"] = "mapping=gpu,pcie=1"
	o.Found[1].VM.Config["startup"] = "order=2"
	if plan, err = planning.New("c1", wanted, o, clustertest.Past, planning.Policy{}); err != nil {
		t.Fatal(err)
	}
	want = "the Proxmox token lacks privileges: Sys.Modify on /; Mapping.Use on /mapping/pci/gpu; SDN.Use on /sdn/zones/localnetwork/vmbr0"
	if err := check(NeedsOf(plan, false), tree{"/": all}); clustertest.Message(err) != want {
		t.Errorf("err = %v, want %s", err, want)
	}
	if err := check(needs, tree{}); err == nil {
		t.Error("a token with nothing passed")
	}
}

// TestPlanTellsTheBlankMachineItsAddress: which setting is set, and which privileges that needs.
func TestPlanTellsTheBlankMachineItsAddress(t *testing.T) {
	t.Parallel()
	const note = "its blank machine gets the node's address from the VM's cloud-init drive: ipconfig1 is gw=10.0.0.1,ip=10.0.0.31/24 for that boot, and as before at the end"
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		wanted, o := observetest.World()
		wanted[1].Strategy, wanted[1].Build.Platform = s, "nocloud"
		o.Found[1].Machine.Platform = "nocloud"
		o.Found[1].VM.Config["ide0"] = "fast:vm-9002-cloudinit,media=cdrom"
		observetest.Static(&o.Found[1])
		p, err := planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}})
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Nodes[0]; n.Strategy != s || !slices.Contains(n.Notes, note) || len(n.Refused) > 0 {
			t.Errorf("%s: %s, refused %q, notes %q", s, n.Strategy, n.Refused, n.Notes)
		}
		needs := NeedsOf(p, false)
		if !slices.ContainsFunc(needs, func(n Need) bool { return n.Privilege == "VM.Config.Network" }) {
			t.Errorf("%s: it does not ask for VM.Config.Network", s)
		}
	}
}
