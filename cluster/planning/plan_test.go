package planning

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
)

func TestPlanFailsOnAnUnknownNode(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	_, err := New("c1", wanted, o, clustertest.Past, Policy{Only: []string{"wk9"}})
	if fault.KindOf(err) != fault.Config {
		t.Errorf("err = %v", err)
	}
}

func TestPlanNeedsEveryAnswer(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	o.Found[2].Machine = nil
	if _, err := New("c1", wanted, o, clustertest.Past, Policy{}); err == nil {
		t.Error("a plan was made without the answer of wk2")
	}
	if _, err := New("c1", wanted, o, clustertest.Past, Policy{Exclude: []string{"wk2"}}); err != nil {
		t.Errorf("wk2 is left out, yet: %v", err)
	}
}

func TestPlanOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy Policy
		open   string
		want   string
	}{
		"control planes first":      {Policy{}, "", "cp1 wk1 wk2"},
		"workers first":             {Policy{WorkersFirst: true}, "", "wk1 wk2 cp1"},
		"unfinished before all":     {Policy{}, "wk2", "wk2 cp1 wk1"},
		"only":                      {Policy{Only: []string{"wk2"}}, "", "wk2"},
		"exclude":                   {Policy{Exclude: []string{"cp1"}}, "", "wk1 wk2"},
		"unfinished cannot be left": {Policy{Only: []string{"wk1"}}, "wk2", "wk2 wk1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			for i := range o.Found {
				if o.Found[i].Name == tc.open {
					packed, err := parking.Memory{}.Pack()
					if err != nil {
						t.Fatal(err)
					}
					o.Found[i].Parking = &parking.Parking{VM: cluster.VM{ID: 9090}, Record: parking.Record{Run: "r1", Open: true, Build: "b1", Memory: packed}}
				}
			}
			plan, err := New("c1", wanted, o, clustertest.Past, tc.policy)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range plan.Nodes {
				got = append(got, n.Node)
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("order %q, want %q", s, tc.want)
			}
			if (plan.Run == "r1") != (tc.open != "") {
				t.Errorf("continues run %q", plan.Run)
			}
		})
	}
}

func TestPlanRecreatesTheStaleWorker(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	work := plan.Work()
	if len(work) != 1 || work[0].Node != "wk1" || work[0].Strategy != cluster.Recreate || len(work[0].Refused) > 0 {
		t.Fatalf("%+v", work)
	}
	if diff := cmp.Diff([]DiskPlan{{Key: "scsi1", Serial: "data-wk1", Volid: "fast:vm-9002-disk-1", Size: "20G"}}, work[0].Carried); diff != "" {
		t.Error(diff)
	}
	if work[0].System.Key != "scsi0" || work[0].Digest != "dwk1" || work[0].OutageSeconds == 0 {
		t.Errorf("%+v", work[0])
	}
}

// TestPlanRefusesWhileNodesAreDown: the plan refuses what the gate would refuse, except what the
// plan itself brings back first.
func TestPlanRefusesWhileNodesAreDown(t *testing.T) {
	t.Parallel()
	node := func(name string, s cluster.Strategy) NodePlan {
		return NodePlan{Node: name, Role: cluster.Worker, Strategy: s}
	}
	resumed := node("wk4", cluster.Recreate)
	resumed.Resume = true
	o := observe.Observation{Nodes: []cluster.KubeNode{{Name: "wk1", Ready: true}, {Name: "wk3"}, {Name: "wk2"}, {Name: "gpu1"}}}
	for name, tc := range map[string]struct {
		nodes []NodePlan
		want  map[string]string // the nodes that are refused, and who is down
		warn  int
	}{
		"two are down":                     {[]NodePlan{node("wk1", cluster.Recreate)}, map[string]string{"wk1": "wk2, wk3"}, 1},
		"they come first":                  {[]NodePlan{node("wk2", cluster.Recreate), node("wk3", cluster.Reimage), node("wk1", cluster.InPlace)}, map[string]string{"wk2": "wk3"}, 1},
		"one that is finished is out":      {[]NodePlan{resumed}, nil, 1},
		"to give up takes none out":        {[]NodePlan{node("wk1", cluster.PutBack)}, nil, 1},
		"a reset machine takes none out":   {[]NodePlan{node("wk1", cluster.InstallReset)}, nil, 1},
		"where nothing is to do, all rest": {[]NodePlan{node("wk1", "")}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Plan{Nodes: slices.Clone(tc.nodes), Heed: Heed{Known: []string{"wk1", "wk2", "wk3", "wk4"}}}
			p.AwaitOthers(o)
			var got map[string]string
			for _, n := range p.Nodes {
				for _, r := range n.Refused {
					down, _, _ := strings.Cut(strings.TrimPrefix(r, OthersDown), ": ")
					if got == nil {
						got = map[string]string{}
					}
					got[n.Node] = down
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || len(p.Warn) != tc.warn {
				t.Errorf("refused (-want +got):\n%s\nwarnings %q", diff, p.Warn)
			}
		})
	}
}

// A host that does not answer stops only what depends on its VMs.
func TestPlanWhileAHostIsAway(t *testing.T) {
	t.Parallel()
	const (
		down = "Proxmox host pve2 is offline, so VM 300 can't be read"
		used = down + ": whether one of them uses scsi0 (fast:vm-9002-disk-0), scsi1 (fast:vm-9002-disk-1) too, on a storage that is not known to be local, can't be determined: bring pve2 back first"
	)
	cases := map[string]struct {
		change   func(w []cluster.Wanted, o *observe.Observation)
		strategy cluster.Strategy
		want     []string
		notes    string
	}{
		"local storage":  {change: func([]cluster.Wanted, *observe.Observation) {}, strategy: cluster.Recreate},
		"shared storage": {change: func(_ []cluster.Wanted, o *observe.Observation) { o.Storages[0].Shared = true }, strategy: cluster.Recreate, want: []string{used}},
		"shared storage, in place": {
			change: func(w []cluster.Wanted, o *observe.Observation) {
				o.Storages[0].Shared, w[1].Strategy = true, cluster.InPlace
			}, strategy: cluster.InPlace,
			notes: "should it not come back, a reimage is not possible: " + used,
		},
		"a VM that may be a parking VM": {
			change: func(_ []cluster.Wanted, o *observe.Observation) { o.ParkingIDs = []cluster.VMID{300} }, strategy: cluster.Recreate,
			want: []string{"Proxmox host pve2 is offline: VM 300 may be a parking VM with an unfinished replacement of this node: bring pve2 back first"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			o.Away = &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}}, VMs: []cluster.VM{{ID: 300, Host: "pve2"}}}
			tc.change(wanted, &o)
			o.PastBuilds = map[string]cluster.Build{"old": {ID: "old", SchematicID: "id-old", TalosVersion: "v1.13.9", Installer: "x@sha256:1"}}
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{BootFailure: cluster.ReimageOnBootFailure})
			if err != nil {
				t.Fatal(err)
			}
			n := plan.Work()[0]
			if diff := cmp.Diff(tc.want, n.Refused); diff != "" || n.Strategy != tc.strategy || len(plan.Work()) != 1 {
				t.Errorf("%s: %s", n.Strategy, diff)
			}
			if !strings.HasPrefix(strings.Join(n.Notes, "\n"), tc.notes) {
				t.Errorf("notes: %q", n.Notes)
			}
			if !slices.Contains(plan.Warn, down) {
				t.Errorf("warnings: %q", plan.Warn)
			}
		})
	}
}

const spaceRemedy = "while the old one stays parked: free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage"

func TestPlanRefusesWithoutRoom(t *testing.T) {
	t.Parallel()
	room := func(free int64) map[string]cluster.Room {
		return map[string]cluster.Room{"pve1": {Storages: []cluster.StorageRoom{{Name: "fast", Active: true, Total: 100 << 30, Free: free << 30}}}}
	}
	for name, tc := range map[string]struct {
		free  int64
		inAll int // how many of the three nodes are stale
		want  string
	}{
		"room for all": {40, 2, ""},
		"for one":      {15, 2, "wk2: storage fast on pve1 has 15 GiB free, but a new system disk takes 10 GiB there besides 10 GiB for wk1 before it " + spaceRemedy},
		"for none": {5, 2, "wk1: storage fast on pve1 has 5120 MiB free, but a new system disk takes 10 GiB there " + spaceRemedy + "\n" +
			"wk2: storage fast on pve1 has 5120 MiB free, but a new system disk takes 10 GiB there besides 10 GiB for wk1 before it " + spaceRemedy},
		"nothing to do": {0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			o.Storages[0].Thick, o.Rooms = true, room(tc.free)
			for i, f := range o.Found[1:] {
				f.Machine.Schematic.YAML = "recast.lock=" + clustertest.WantedBuild().LockHash
				f.Machine.Schematic.ID = clustertest.WantedBuild().SchematicID
				if i < tc.inAll {
					f.Machine.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
				}
			}
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, strings.Join(plan.Refused(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatARollGivesBack(t *testing.T) {
	t.Parallel()
	n := NodePlan{Frees: []parking.FreePlan{{Volid: "thick:vm-1-disk-0", Size: "10G"}, {Volid: "thick:vm-1-disk-1", Size: "512M"}, {Volid: "dir:1/vm-1-disk-0.raw", Size: "7G"}, {Key: "scsi3"}}}
	thick := cluster.Storage{Name: "thick", Type: "lvm", Pool: "vg", Thick: true}
	shared := cluster.Storage{Name: "san", Type: "lvm", Pool: "san", Thick: true, Shared: true}
	plain := cluster.Storage{Name: "dir", Type: "dir"}
	for s, want := range map[cluster.Storage]int64{thick: 10<<30 + 512<<20, plain: 0, shared: 0} {
		if got := n.frees(s); got != want {
			t.Errorf("%s gets %d back, want %d", s.Name, got, want)
		}
	}
}

// TestAFileOfTypeInit: no machine with an empty etcd directory, or one that may be, gets such a file.
func TestAFileOfTypeInit(t *testing.T) {
	t.Parallel()
	runs := &cluster.Machine{ControlPlane: true, TypeInit: true}
	for name, tc := range map[string]struct {
		plan    NodePlan
		machine *cluster.Machine
		refused bool
	}{
		"a new node":               {NodePlan{Strategy: cluster.Create, EtcdKept: true}, nil, true},
		"the first of a cluster":   {NodePlan{Strategy: cluster.Create, EtcdKept: true, Bootstraps: true}, nil, true},
		"a machine that was reset": {NodePlan{Strategy: cluster.InstallReset, EtcdKept: true, Resume: true}, nil, true},
		"a rebuild":                {NodePlan{Strategy: cluster.Remove, Rebuild: "sum", EtcdKept: true}, nil, true},
		"an unfinished recreate":   {NodePlan{Strategy: cluster.Recreate, Resume: true}, nil, true},
		"the same, its data kept":  {NodePlan{Strategy: cluster.Recreate, Resume: true, EtcdKept: true}, nil, false},
		"a recreate, data kept":    {NodePlan{Strategy: cluster.Recreate, EtcdKept: true}, runs, false},
		"an upgrade in place":      {NodePlan{Strategy: cluster.InPlace, EtcdKept: true}, runs, false},
		"nothing":                  {NodePlan{}, runs, false},
	} {
		for _, typeInit := range []bool{true, false} {
			n := tc.plan
			n.Found = observe.Found{Machine: tc.machine, File: &cluster.FoundFile{Role: cluster.ControlPlane, TypeInit: typeInit}}
			n.refuseInit()
			if got := strings.Contains(strings.Join(n.Refused, ""), strategy.BeginsAlone); got != (tc.refused && typeInit) {
				t.Errorf("%s, %v: refused %q", name, typeInit, n.Refused)
			}
		}
	}
}
