package access

import (
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
