package planning

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
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
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
)

// planned is the plan of a roll that makes sense.
func planned(t *testing.T, wanted []cluster.Wanted, o observe.Observation, p Policy) Plan {
	t.Helper()
	return must.Get(New("c1", wanted, o, clustertest.Past, p))(t)
}

func TestPlanNeedsEveryAnswer(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	o.Found[2].Machine = nil
	if _, err := New("c1", wanted, o, clustertest.Past, Policy{}); err == nil {
		t.Error("a plan was made without the answer of wk2")
	}
	must.Pass(t, must.Err(New("c1", wanted, o, clustertest.Past, Policy{Exclude: []string{"wk2"}})))
}

func TestPlanOrder(t *testing.T) {
	t.Parallel()
	type row struct {
		policy Policy
		open   string
		want   string
	}
	must.Each(t, map[string]row{
		"control planes first":      {Policy{}, "", "cp1 wk1 wk2"},
		"workers first":             {Policy{WorkersFirst: true}, "", "wk1 wk2 cp1"},
		"unfinished before all":     {Policy{}, "wk2", "wk2 cp1 wk1"},
		"only":                      {Policy{Only: []string{"wk2"}}, "", "wk2"},
		"exclude":                   {Policy{Exclude: []string{"cp1"}}, "", "wk1 wk2"},
		"unfinished cannot be left": {Policy{Only: []string{"wk1"}}, "wk2", "wk2 wk1"},
	}, func(t *testing.T, tc row) {
		wanted, o := observetest.World()
		for i := range o.Found {
			if o.Found[i].Name == tc.open {
				packed := must.Get(parking.Memory{}.Pack())(t)
				o.Found[i].Parking = &parking.Parking{VM: cluster.VM{ID: 9090}, Record: parking.Record{Run: "r1", Open: true, Build: "b1", Memory: packed}}
			}
		}
		plan := planned(t, wanted, o, tc.policy)
		got := cluster.Each(plan.Nodes, func(n NodePlan) string { return n.Node })
		must.Equal(t, "order", tc.want, strings.Join(got, " "))
		must.Equal(t, "continues run r1", tc.open != "", plan.Run == "r1")
	})
}

func TestPlanRecreatesTheStaleWorker(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	plan := planned(t, wanted, o, Policy{})
	work := plan.Work()
	if len(work) != 1 || work[0].Node != "wk1" || work[0].Strategy != cluster.Recreate || len(work[0].Refused) > 0 {
		t.Fatalf("%+v", work)
	}
	must.Equal(t, "got", []DiskPlan{{Key: "scsi1", Serial: "data-wk1", Volid: "fast:vm-9002-disk-1", Size: "20G"}}, work[0].Carried)
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
	type row struct {
		nodes []NodePlan
		want  map[string]string // the nodes that are refused, and who is down
		warn  int
	}
	must.Each(t, map[string]row{
		"two are down":                     {[]NodePlan{node("wk1", cluster.Recreate)}, map[string]string{"wk1": "wk2, wk3"}, 1},
		"they come first":                  {[]NodePlan{node("wk2", cluster.Recreate), node("wk3", cluster.Reimage), node("wk1", cluster.InPlace)}, map[string]string{"wk2": "wk3"}, 1},
		"one that is finished is out":      {[]NodePlan{resumed}, nil, 1},
		"to give up takes none out":        {[]NodePlan{node("wk1", cluster.PutBack)}, nil, 1},
		"a reset machine takes none out":   {[]NodePlan{node("wk1", cluster.InstallReset)}, nil, 1},
		"where nothing is to do, all rest": {[]NodePlan{node("wk1", "")}, nil, 0},
	}, func(t *testing.T, tc row) {
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
		must.Equal(t, "refused", tc.want, got)
		must.Equal(t, fmt.Sprintf("warnings %q", p.Warn), tc.warn, len(p.Warn))
	})
}

// A host that does not answer stops only what depends on its VMs.
func TestPlanWhileAHostIsAway(t *testing.T) {
	t.Parallel()
	const (
		down = "Proxmox host pve2 is offline, so VM 300 can't be read"
		used = down + ": whether one of them uses scsi0 (fast:vm-9002-disk-0), scsi1 (fast:vm-9002-disk-1) too, on a storage that is not known to be local, can't be determined: bring pve2 back first"
	)
	type row struct {
		change   func(w []cluster.Wanted, o *observe.Observation)
		strategy cluster.Strategy
		want     []string
		notes    string
	}
	cases := map[string]row{
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
	must.Each(t, cases, func(t *testing.T, tc row) {
		wanted, o := observetest.World()
		o.Away = &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}}, VMs: []cluster.VM{{ID: 300, Host: "pve2"}}}
		tc.change(wanted, &o)
		o.PastBuilds = map[string]cluster.Build{"old": {ID: "old", SchematicID: "id-old", TalosVersion: "v1.13.9", Installer: "x@sha256:1"}}
		plan := planned(t, wanted, o, Policy{BootFailure: cluster.ReimageOnBootFailure})
		n := plan.Work()[0]
		diff := cmp.Diff(tc.want, n.Refused)
		must.Hold(t, diff == "" && n.Strategy == tc.strategy && len(plan.Work()) == 1, "%s: %s", n.Strategy, diff)
		must.Hold(t, strings.HasPrefix(strings.Join(n.Notes, "\n"), tc.notes), "notes: %q", n.Notes)
		must.Hold(t, slices.Contains(plan.Warn, down), "warnings: %q", plan.Warn)
	})
}

const spaceRemedy = "while the old one stays parked: free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage"

func TestPlanRefusesWithoutRoom(t *testing.T) {
	t.Parallel()
	room := func(free int64) map[string]cluster.Room {
		return map[string]cluster.Room{"pve1": {Storages: []cluster.StorageRoom{{Name: "fast", Active: true, Total: 100 << 30, Free: free << 30}}}}
	}
	type row struct {
		free  int64
		inAll int // how many of the three nodes are stale
		want  string
	}
	must.Each(t, map[string]row{
		"room for all": {40, 2, ""},
		"for one":      {15, 2, "wk2: storage fast on pve1 has 15 GiB free, but a new system disk takes 10 GiB there besides 10 GiB for wk1 before it " + spaceRemedy},
		"for none": {5, 2, "wk1: storage fast on pve1 has 5120 MiB free, but a new system disk takes 10 GiB there " + spaceRemedy + "\n" +
			"wk2: storage fast on pve1 has 5120 MiB free, but a new system disk takes 10 GiB there besides 10 GiB for wk1 before it " + spaceRemedy},
		"nothing to do": {0, 0, ""},
	}, func(t *testing.T, tc row) {
		wanted, o := observetest.World()
		o.Storages[0].Thick, o.Rooms = true, room(tc.free)
		for i, f := range o.Found[1:] {
			f.Machine.Schematic.YAML = "recast.lock=" + clustertest.WantedBuild().LockHash
			f.Machine.Schematic.ID = clustertest.WantedBuild().SchematicID
			if i < tc.inAll {
				f.Machine.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
			}
		}
		plan := planned(t, wanted, o, Policy{})
		must.Equal(t, "got", tc.want, strings.Join(plan.Refused(), "\n"))
	})
}

func TestWhatARollGivesBack(t *testing.T) {
	t.Parallel()
	n := NodePlan{Frees: []parking.FreePlan{{Volid: "thick:vm-1-disk-0", Size: "10G"}, {Volid: "thick:vm-1-disk-1", Size: "512M"}, {Volid: "dir:1/vm-1-disk-0.raw", Size: "7G"}, {Key: "scsi3"}}}
	thick := cluster.Storage{Name: "thick", Type: "lvm", Pool: "vg", Thick: true}
	shared := cluster.Storage{Name: "san", Type: "lvm", Pool: "san", Thick: true, Shared: true}
	plain := cluster.Storage{Name: "dir", Type: "dir"}
	for s, want := range map[cluster.Storage]int64{thick: 10<<30 + 512<<20, plain: 0, shared: 0} {
		must.Equal(t, s.Name+" gets back", want, n.frees(s))
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
			got := strings.Contains(strings.Join(n.Refused, ""), strategy.BeginsAlone)
			must.Hold(t, got == (tc.refused && typeInit), "%s, %v: refused %q", name, typeInit, n.Refused)
		}
	}
}

// Two schematics with the same extensions have the same lock hash: the fallback is the image
// that runs, not the other one.
func TestFallbackIsToTheImageThatRuns(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	wanted[1].Strategy = cluster.InPlace
	runs := o.Found[1].Machine
	o.PastBuilds = map[string]cluster.Build{}
	for id, schematic := range map[string]string{"b-sister1": "id-other", "b-runs": runs.Schematic.ID, "b-sister2": "id-another"} {
		o.PastBuilds[id] = cluster.Build{ID: id, SchematicID: schematic, LockHash: runs.Schematic.LockHash(), TalosVersion: runs.TalosVersion, Arch: runs.Arch, Platform: runs.Platform, Installer: "x@sha256:1"}
	}
	elsewhere := o.PastBuilds["b-runs"]
	elsewhere.ID, elsewhere.Platform = "b-metal", "metal"
	o.PastBuilds["b-metal"] = elsewhere
	plan := planned(t, wanted, o, Policy{Only: []string{"wk1"}, BootFailure: cluster.ReimageOnBootFailure})
	if back := plan.Nodes[0].Previous; back == nil || back.ID != "b-runs" {
		t.Errorf("way back to %+v: %q", back, plan.Nodes[0].Notes)
	}
	delete(o.PastBuilds, "b-runs")
	plan = planned(t, wanted, o, Policy{Only: []string{"wk1"}, BootFailure: cluster.ReimageOnBootFailure})
	if back := plan.Nodes[0].Previous; back != nil {
		t.Errorf("way back to %+v, though nobody has what runs", back)
	}
}

func TestWhichNodesAreWaitedFor(t *testing.T) {
	t.Parallel()
	h := Heed{Known: []string{"cp1", "cp2", "wk1", "wk2"}, Ignore: []string{"wk2", "cp2"}}
	type row struct {
		heed               Heed
		node               cluster.KubeNode
		worker, forControl bool // whether a worker, a control plane has to stay in
	}
	must.Each(t, map[string]row{
		"Ready":                      {h, cluster.KubeNode{Name: "wk1", Ready: true}, false, false},
		"ours":                       {h, cluster.KubeNode{Name: "wk1"}, true, true},
		"cordoned":                   {h, cluster.KubeNode{Name: "wk1", Unschedulable: true}, false, false},
		"cordoned by recast":         {h, cluster.KubeNode{Name: "wk1", Unschedulable: true, Mark: &cluster.Mark{Run: "r"}}, true, true},
		"cordoned by both":           {h, cluster.KubeNode{Name: "wk1", Unschedulable: true, Mark: &cluster.Mark{Run: "r", Foreign: true}}, true, true},
		"foreign":                    {h, cluster.KubeNode{Name: "gpu1"}, false, false},
		"ignored":                    {h, cluster.KubeNode{Name: "wk2"}, false, false},
		"control plane":              {h, cluster.KubeNode{Name: "cp1", ControlPlane: true}, true, true},
		"control plane, ignored":     {h, cluster.KubeNode{Name: "cp2", ControlPlane: true}, false, true},
		"control plane, cordoned":    {h, cluster.KubeNode{Name: "cp1", ControlPlane: true, Unschedulable: true}, false, true},
		"control plane, foreign":     {h, cluster.KubeNode{Name: "cp9", ControlPlane: true}, false, true},
		"no known nodes":             {Heed{}, cluster.KubeNode{Name: "gpu1"}, true, true},
		"itself, which is not Ready": {h, cluster.KubeNode{Name: "self"}, false, false},
	}, func(t *testing.T, tc row) {
		stays := func(role string) bool {
			return len(tc.heed.Down([]cluster.KubeNode{tc.node}, role, func(name string) bool { return name == "self" })) > 0
		}
		must.Equal(t, "a worker and a control plane stay in", [2]bool{tc.worker, tc.forControl}, [2]bool{stays(cluster.Worker), stays(cluster.ControlPlane)})
	})
}

// TestAReleaseThatNodesGoOnToRunIsNamed with the nodes that run it and that nothing is done to, whether recast's own table has
// it, or the Image Factory had marked it when recast lock asked.
func TestAReleaseThatNodesGoOnToRunIsNamed(t *testing.T) {
	t.Parallel()
	const (
		withdrawn = "Talos v1.13.1 was withdrawn by its makers as a broken release (https://github.com/siderolabs/talos/issues/13312): set talos.version to v1.13.2 or later"
		integers  = "Talos v1.13.3 starts no static pod of a control plane with an integer in cluster.scheduler.config (https://github.com/siderolabs/talos/issues/13473): set talos.version to v1.13.4 or later"
		broken    = "Talos v1.13.9 was marked broken by the Image Factory: choose another version; the release notes of Talos say which one fixes it"
	)
	for name, c := range map[string]struct {
		runs, wanted string
		broken       bool
		refused      error // on cp1
		want         []string
	}{
		"withdrawn, and it stays":  {"v1.13.1", "v1.13.1", false, nil, []string{withdrawn + " (on cp1, wk1, wk2 now)"}},
		"withdrawn, and it goes":   {"v1.13.1", "v1.13.9", false, nil, nil},
		"withdrawn, and it comes":  {"v1.13.9", "v1.13.1", false, nil, []string{withdrawn}},
		"none of them comes":       {"v1.13.9", "v1.13.2", false, nil, nil},
		"a refusal of the nodes":   {"v1.13.9", "v1.13.3", false, nil, nil},
		"one configuration breaks": {"v1.13.3", "v1.13.3", false, errors.New("integers"), []string{integers + " (on cp1 now)"}},
		"no configuration does":    {"v1.13.3", "v1.13.3", false, nil, nil},
		"marked, and it stays":     {"v1.13.9", "v1.13.9", true, nil, []string{broken + " (on cp1, wk1, wk2 now)"}},
		"marked, and it comes":     {"v1.13.8", "v1.13.9", true, nil, []string{broken}},
		"neither":                  {"v1.13.9", "v1.13.9", false, nil, nil},
	} {
		wanted, o := paused(nil)
		for i := range wanted {
			wanted[i].Build.TalosVersion, wanted[i].Build.Broken = c.wanted, c.broken
			m := clustertest.InSync()
			m.Disks, m.SystemDisk, m.ControlPlane, m.UUID = o.Found[i].Machine.Disks, o.Found[i].Machine.SystemDisk, o.Found[i].Machine.ControlPlane, o.Found[i].Machine.UUID
			m.TalosVersion = c.runs
			o.Found[i].Machine = &m
		}
		o.Found[0].ConfigRefused = c.refused
		plan := planned(t, wanted, o, Policy{})
		named := slices.DeleteFunc(slices.Clone(plan.Warn), func(w string) bool { return !strings.HasPrefix(w, "Talos v1.13") })
		must.Hold(t, slices.Equal(named, c.want), "%s:\n%q, want\n%q", name, named, c.want)
	}
}

// TestOldPeers: whoever gets another system disk becomes another peer, also where only a fallback, or a rebuild, gives it
// one; where Kubernetes is the only registry, no old peer stays.
func TestOldPeers(t *testing.T) {
	t.Parallel()
	const on = "version: v1alpha1\nmachine: {network: {kubespan: {enabled: true}}}\ncluster: {discovery: {enabled: true, registries: {service: {disabled: false}}}}\n"
	for name, tc := range map[string]struct {
		n                NodePlan
		config           string
		waits, fallsBack bool
	}{
		"recreate":                    {NodePlan{Strategy: cluster.Recreate}, on, true, false},
		"in place":                    {NodePlan{Strategy: cluster.InPlace}, on, false, false},
		"in place, with a fallback":   {NodePlan{Strategy: cluster.InPlace, Previous: &cluster.Build{}}, on, false, true},
		"new":                         {NodePlan{Strategy: cluster.Create}, on, false, false},
		"made again in a rebuild":     {NodePlan{Strategy: cluster.Create, Rebuild: "sum"}, on, true, false},
		"removed in a rebuild":        {NodePlan{Strategy: cluster.Remove, Rebuild: "sum"}, on, false, false},
		"without a discovery service": {NodePlan{Strategy: cluster.Recreate}, strings.Replace(on, "disabled: false", "disabled: true", 1), false, false},
		"without KubeSpan":            {NodePlan{Strategy: cluster.Recreate}, strings.Replace(on, "kubespan: {enabled: true}", "", 1), false, false},
	} {
		tc.n.Found = observe.Found{Machine: &cluster.Machine{Configs: cluster.Configs{Active: cluster.Secret(tc.config)}}}
		p := Plan{Nodes: []NodePlan{tc.n}}
		heedKubeSpan(&p, observe.Observation{})
		if n := p.Nodes[0]; n.KubeSpan != tc.waits || n.FallbackKubeSpan != tc.fallsBack || len(n.Notes) > 0 != tc.waits {
			t.Errorf("%s: waits %t, falls back %t, notes %q", name, n.KubeSpan, n.FallbackKubeSpan, n.Notes)
		}
	}
}

// TestNeedsEntry: the correction is in v1.11.6 and v1.12.0.
func TestNeedsEntry(t *testing.T) {
	t.Parallel()
	for talos, want := range map[string]bool{
		"v1.10.9": true, "v1.11.5": true, "v1.11.6": false, "v1.12.0-beta.1": true, "v1.12.0": false, "v1.13.0-alpha.1": false, "v1.14.1": false, "latest": true,
	} {
		must.Equal(t, talos, want, needsEntry(talos))
	}
}

func TestOutageIsExpectedFromThePast(t *testing.T) {
	t.Parallel()
	took := func(node, role string, s cluster.Strategy, seconds int) cluster.Took {
		return cluster.Took{Node: node, Role: role, Strategy: s, OutageSeconds: seconds, WholeSeconds: seconds + 30}
	}
	own := func(seconds ...int) []cluster.Took {
		return cluster.Each(seconds, func(n int) cluster.Took { return took("wk1", cluster.Worker, cluster.Recreate, n) })
	}
	for name, tc := range map[string]struct {
		past          []cluster.Took
		outage, whole int
		from          string
	}{
		"nothing is known":      {nil, 240, 0, "assumed"},
		"of it":                 {[]cluster.Took{took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk2", cluster.Worker, cluster.Recreate, 500)}, 100, 130, "an earlier roll of it"},
		"the median":            {own(100, 900, 200), 200, 230, "3 earlier rolls of it"},
		"of others of its role": {[]cluster.Took{took("wk2", cluster.Worker, cluster.Recreate, 100), took("cp1", cluster.ControlPlane, cluster.Recreate, 500), took("wk3", cluster.Worker, cluster.Recreate, 120)}, 120, 150, "2 earlier rolls of workers"},
		"by another strategy":   {[]cluster.Took{took("wk1", cluster.Worker, cluster.InPlace, 100)}, 240, 0, "assumed"},
		"the latest five":       {own(1, 2, 3, 4, 5, 100, 100, 100), 3, 33, "5 earlier rolls of it"},
	} {
		n := NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate}
		n.Estimate(tc.past)
		must.Hold(t, n.OutageSeconds == tc.outage && n.WholeSeconds == tc.whole && n.OutageFrom == tc.from,
			"%s: %d, %d, %q", name, n.OutageSeconds, n.WholeSeconds, n.OutageFrom)
	}
}

// BenchmarkNewPlan plans rolls of 100 and of 500 stale nodes: the cost of one node must not grow with their number.
func BenchmarkNewPlan(b *testing.B) {
	for nodes, most := range map[int]uint64{100: 33_000, 500: 165_000} { // allocations of a plan
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			wanted, o := observetest.LargeWorld(nodes)
			b.ReportAllocs()
			allocated := heap.Count()
			for b.Loop() {
				plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
				if err != nil || len(plan.Work()) != nodes || len(plan.Work()[0].Refused) > 0 {
					b.Fatalf("%v: %d of %d nodes, the first refused because of %q", err, len(plan.Work()), nodes, plan.Work()[0].Refused)
				}
			}
			each := allocated() / uint64(b.N)
			must.Hold(b, each <= most, "%d allocations for each plan, more than %d", each, most)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes), "ns/node")
		})
	}
}

// sealed is a sealed plan for stale wk1 and wk2 of the paused world.
func sealed(t *testing.T, edit func([]cluster.Wanted, *observe.Observation), p Policy) Plan {
	t.Helper()
	wanted, o := paused(nil)
	if edit != nil {
		edit(wanted, &o)
	}
	p.Only = []string{"wk1", "wk2"}
	plan := planned(t, wanted, o, p)
	plan.Gates = []cluster.UserGate{{TimeoutSeconds: 60, Command: &cluster.CommandGate{Args: []string{"true"}, Dir: "/somewhere"}}}
	plan.Seal("sha256-lock", "sha256-config")
	return plan
}

func asJSON(t *testing.T, p Plan) []byte {
	t.Helper()
	return must.Get(json.MarshalIndent(p, "", "  "))(t)
}

func TestPlanReadsBack(t *testing.T) {
	t.Parallel()
	plan := sealed(t, nil, Policy{})
	b := asJSON(t, plan)
	got := must.Get(Read(b))(t)
	must.Equal(t, "got", string(b), string(asJSON(t, got)))
	must.Hold(t, len(plan.ID) == 16 && got.ID == plan.ID && sealed(t, nil, Policy{}).ID == plan.ID,
		"ID %q, read %q", plan.ID, got.ID)
}

func TestPlanIsReadStrictly(t *testing.T) {
	t.Parallel()
	whole := string(asJSON(t, sealed(t, nil, Policy{})))
	resumed := sealed(t, nil, Policy{})
	resumed.Nodes[0].Resume = true
	resumed.Seal(resumed.Lock, resumed.Config)
	for name, tc := range map[string]struct {
		text, want string
		kind       fault.Kind
	}{
		"no JSON":            {"plan: x", "it is not a plan: ", fault.Config},
		"another format":     {strings.Replace(whole, `"version": 1`, `"version": 2`, 1), "it is a plan of format 2; this recast reads format 1", fault.Config},
		"an unknown field":   {strings.Replace(whole, `"cluster"`, `"x": 1, "cluster"`, 1), `it is not a plan: json: unknown field "x"`, fault.Config},
		"two":                {whole + whole, "", fault.Config},
		"edited":             {strings.Replace(whole, `"recreate"`, `"in-place"`, 1), "it was changed after it was made: ", fault.Refused},
		"begins with a rest": {string(asJSON(t, resumed)), "it begins with " + resumed.Nodes[0].Node + ", which was left unfinished then", fault.Refused},
	} {
		_, err := Read([]byte(tc.text))
		must.Hold(t, err != nil && fault.KindOf(err) == tc.kind && strings.HasPrefix(err.Error(), tc.want),
			"%s: %v", name, err)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	saved := must.Get(Read(asJSON(t, sealed(t, nil, Policy{}))))(t)
	inSyncNow := func(name string) func([]cluster.Wanted, *observe.Observation) {
		return func(_ []cluster.Wanted, o *observe.Observation) {
			for i := range o.Found {
				if m := clustertest.InSync(); o.Found[i].Name == name {
					m.UUID, m.SystemDisk, m.Disks = o.Found[i].Machine.UUID, o.Found[i].Machine.SystemDisk, o.Found[i].Machine.Disks
					o.Found[i].Machine = &m
				}
			}
		}
	}
	type row struct {
		edit  func([]cluster.Wanted, *observe.Observation)
		begun bool
		mine  bool // wk1's VM was made by a run of the plan
		left  bool // such a run has cordoned wk2
		back  bool // such a run had begun to replace wk1, and put its old system disk back
		want  string
	}
	must.Each(t, map[string]row{
		"nothing moved": {},
		"estimates differ": {edit: func(_ []cluster.Wanted, o *observe.Observation) {
			o.Took = []cluster.Took{{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, OutageSeconds: 9}}
		}},
		"done by a run of it":         {edit: inSyncNow("wk1"), begun: true},
		"done outside the plan":       {edit: inSyncNow("wk1"), want: "wk1: what is done: recreate → none"},
		"done elsewhere by a run":     {edit: inSyncNow("wk1"), mine: true},
		"done elsewhere, in place":    {edit: inSyncNow("wk1"), left: true},
		"the VM was changed":          {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest = "other" }, want: "wk1: digest of the VM's configuration: dwk1 → other"},
		"changed, though a run began": {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest = "other" }, begun: true, want: "wk1: digest of the VM's configuration: dwk1 → other"},
		"put back by a run of it":     {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest = "other" }, back: true},
		"put back, on another host":   {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest, o.VMs[1].Host = "other", "pve2" }, back: true, want: "wk1: refused because: none → nobody asked pve2 for its room; wk1: Proxmox host: pve1 → pve2; wk1: slots: host/pve1 → host/pve2"},
		"moved to another host":       {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[2].Host = "pve2" }, want: `wk2: refused because: none → nobody asked pve2 for its room; wk2: Proxmox host: pve1 → pve2; wk2: slots: host/pve1 → host/pve2`},
		"another strategy":            {edit: func(w []cluster.Wanted, _ *observe.Observation) { w[1].Strategy = cluster.Reimage }, want: "wk1: what is done: recreate → reimage"},
		"another build":               {edit: func(w []cluster.Wanted, _ *observe.Observation) { w[1].Build.ID = "b2" }, want: "wk1: build: " + clustertest.WantedBuild().ID + " → b2"},
		"paused since":                {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.Found[1].Node.Pause = "x" }, begun: true, want: "wk1: what is done: recreate → none; wk1: paused: none → x"},
		"in use by now":               {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.Found[1].Ties.Snapshots = []string{"before"} }, want: "wk1: what is done: recreate → in-place"},
	}, func(t *testing.T, tc row) {
		now := sealed(t, func(w []cluster.Wanted, o *observe.Observation) {
			if tc.edit != nil {
				tc.edit(w, o)
			}
			if tc.mine {
				o.VMs[1].Config["description"] = cluster.RunMark + "20000101-0000-feed" + saved.RunSuffix() + " build=x"
			}
			if tc.back {
				o.Found[1].Parking = &parking.Parking{VM: cluster.VM{ID: 9900}, Record: parking.Record{Run: "20000101-0000-feed" + saved.RunSuffix(), Kept: []parking.KeptDisk{{Key: "scsi30", Run: "20000101-0000-feed" + saved.RunSuffix(), GivenUp: true}}}}
			}
			if tc.left {
				o.Found[2].Node.Mark = &cluster.Mark{Run: "20000101-0000-feed" + saved.RunSuffix(), Strategy: cluster.Recreate, BootID: "b"}
			}
		}, Policy{})
		got, err := now.Follow(saved, tc.begun)
		var moved string
		if err != nil {
			_, lines, _ := strings.Cut(err.Error(), ":\n  ")
			moved = strings.ReplaceAll(lines, "\n  ", "; ")
		}
		must.Hold(t, moved == tc.want && (err != nil) == (fault.KindOf(err) == fault.Refused),
			"%q, want %q; %v", moved, tc.want, err)
		must.Hold(t, err != nil || got.ID == saved.ID, "it is plan %s, not %s", got.ID, saved.ID)
	})
}

// TestFollowKeepsTheOrder although a new plan would choose another one.
func TestFollowKeepsTheOrder(t *testing.T) {
	t.Parallel()
	saved := sealed(t, nil, Policy{Canary: true, CanaryNode: "wk2"})
	now := must.Get(sealed(t, nil, Policy{}).Follow(saved, false))(t)
	must.Equal(t, "got", saved.Batches, now.Batches)
	must.Hold(t, now.Work()[0].Found.VM != nil, "what was found is not in the plan any more")
}

func TestFollowWhatItWasMadeFrom(t *testing.T) {
	t.Parallel()
	saved := sealed(t, nil, Policy{})
	for want, edit := range map[string]func(*Plan){
		"the cluster: c1 → c2":                                      func(p *Plan) { p.Cluster = "c2" },
		"recast.lock: sha256-lock → sha256-x":                       func(p *Plan) { p.Lock = "sha256-x" },
		"recast.yaml: sha256-config → sha256-x":                     func(p *Plan) { p.Config = "sha256-x" },
		"workers at a time: 1 → 2":                                  func(p *Plan) { p.MaxUnavailable = 2 },
		"wk1: left unfinished by run r1, which is not of this plan": func(p *Plan) { p.Run, p.Nodes[0].Resume, p.Nodes[0].Run = "r1", true, "r1" },
	} {
		now := sealed(t, nil, Policy{})
		edit(&now)
		if _, err := now.Follow(saved, true); err == nil || !strings.HasSuffix(err.Error(), ":\n  "+want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	own := sealed(t, nil, Policy{})
	own.Run = "20000101-0000-feed" + saved.RunSuffix()
	own.Nodes[0].Resume, own.Nodes[0].Run = true, own.Run
	must.Pass(t, must.Err(own.Follow(saved, true)))
}

// TestFollowWithOtherPastLocks: a plan is the same on a machine that has other past locks.
func TestFollowWithOtherPastLocks(t *testing.T) {
	t.Parallel()
	talos := cluster.Reason{Code: "talos-version", Text: "Talos v1 → v2"}
	unknown := cluster.Reason{Code: "lock", Text: "extensions of another lock: a → b"}
	known := cluster.Reason{Code: "extension-digest", Text: "extension x v1: c → d"}
	other := cluster.Reason{Code: "extension-digest", Text: "extension x v1: e → d"}
	gone := cluster.Reason{Code: "extension-extra", Text: "extension y v1 is not in the schematic"}
	for name, tc := range map[string]struct {
		was, is []cluster.Reason
		moved   bool
	}{
		"known since":       {[]cluster.Reason{talos, unknown}, []cluster.Reason{talos, known, other}, false},
		"an overlay":        {[]cluster.Reason{talos, unknown}, []cluster.Reason{talos, {Code: "overlay-digest", Text: "overlay rpi: c → d"}}, false},
		"one that went":     {[]cluster.Reason{unknown, gone}, []cluster.Reason{gone}, false},
		"known no more":     {[]cluster.Reason{talos, known}, []cluster.Reason{talos, unknown}, false},
		"another reason":    {[]cluster.Reason{talos, known}, []cluster.Reason{unknown}, true},
		"another digest":    {[]cluster.Reason{known}, []cluster.Reason{other}, true},
		"no such reason":    {[]cluster.Reason{talos, unknown}, []cluster.Reason{talos}, true},
		"one that was none": {[]cluster.Reason{talos}, []cluster.Reason{talos, known}, true},
	} {
		saved, now := sealed(t, nil, Policy{}), sealed(t, nil, Policy{})
		saved.Nodes[1].Drift.Reasons, now.Nodes[1].Drift.Reasons = tc.was, tc.is
		must.Equal(t, name+": moved", tc.moved, must.Err(now.Follow(saved, false)) != nil)
	}
}

// TestTrials: nodes that boot the same image in the same way have one trial, and all others one each.
func TestTrials(t *testing.T) {
	t.Parallel()
	const ovmf = "bios=ovmf scsihw=virtio-scsi-single efidisk0=fast:vm-1-disk-0,efitype=4m"
	node := func(name, host, config string, change func(*NodePlan)) NodePlan {
		vm := cluster.VM{Host: host, Config: map[string]string{}}
		for setting := range strings.FieldsSeq(config) {
			key, value, _ := strings.Cut(setting, "=")
			vm.Config[key] = value
		}
		n := NodePlan{Node: name, Host: host, Strategy: cluster.Recreate, Addr: netip.MustParseAddr("192.0.2.7"), Found: observe.Found{VM: &vm}}
		n.Wanted.Schematic, n.Wanted.Build = "storage", cluster.Build{Platform: "nocloud", ISOName: "new.iso", DiskName: "new.qcow2"}
		if change != nil {
			change(&n)
		}
		return n
	}
	onDisk := func(key string) func(*NodePlan) {
		return func(n *NodePlan) { n.Prepared, n.System = "new.qcow2", &DiskPlan{Key: key} }
	}
	h := Rehearsal{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.250/24")}}
	type row struct {
		nodes []NodePlan
		want  string
	}
	must.Each(t, map[string]row{
		"by ISO": {[]NodePlan{node("a", "pve1", ovmf, nil), node("b", "pve1", ovmf, nil)}, "pve1 ovmf-storage new.iso [a b]"},
		"by disk, in one place or another": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, onDisk("scsi1"))}, "pve1 ovmf-disk-storage a disk made from new.qcow2 [a b] scsi (virtio-scsi-single)",
		},
		"by disk on two hosts": {
			[]NodePlan{node("a", "pve2", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, onDisk("scsi0"))},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [b] scsi (virtio-scsi-single)\npve2 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)",
		},
		"by both": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, nil), node("c", "pve1", "scsihw=lsi", nil)},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)\npve1 ovmf-storage new.iso [b]\npve1 seabios-storage new.iso [c]",
		},
		"other buses": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", ovmf, onDisk("virtio0"))},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)\npve1 ovmf-disk-storage-2 a disk made from new.qcow2 [b] virtio",
		},
		"another controller": {
			[]NodePlan{node("a", "pve1", ovmf, onDisk("scsi0")), node("b", "pve1", strings.ReplaceAll(ovmf, "virtio-scsi-single", "pvscsi"), onDisk("scsi0"))},
			"pve1 ovmf-disk-storage a disk made from new.qcow2 [a] scsi (virtio-scsi-single)\npve1 ovmf-disk-storage-2 a disk made from new.qcow2 [b] scsi (pvscsi)",
		},
		"another controller under an ISO": {
			[]NodePlan{node("a", "pve1", ovmf, nil), node("b", "pve1", strings.ReplaceAll(ovmf, "virtio-scsi-single", "pvscsi"), nil)}, "pve1 ovmf-storage new.iso [a b]",
		},
		"its system disk is not proven": {[]NodePlan{node("a", "pve1", ovmf, func(n *NodePlan) { n.Prepared = "new.qcow2" })}, ""},
		"already out, or not taken out": {
			[]NodePlan{node("a", "pve1", ovmf, func(n *NodePlan) { n.Resume = true }), node("b", "pve1", ovmf, func(n *NodePlan) { n.Strategy = cluster.InPlace })}, "",
		},
	}, func(t *testing.T, c row) {
		var got []string
		for _, trial := range (Plan{Nodes: c.nodes}).TrialsOf(h) {
			_, drive, _ := strings.Cut(trial.Firmware, ", disk on ")
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %v %s", trial.Host, trial.ID, trial.Medium, trial.Nodes, drive)))
		}
		must.Equal(t, "trials", c.want, strings.Join(got, "\n"))
	})
}

// TestScratchSerial: QEMU passes on 20 characters of a serial.
func TestScratchSerial(t *testing.T) {
	t.Parallel()
	if got := ScratchSerial("8d3f0f6e-0f4b-4c57-9d4c-6a1b2c3d4e5f"); got != "recast-6a1b2c3d4e5f" || len(got) > 20 {
		t.Error(got)
	}
}

func TestOneNodeOfEachImageBootsThroughTheFirmware(t *testing.T) {
	t.Parallel()
	inPlace := func(list string) (nodes []NodePlan) { // each as name/build
		for item := range strings.FieldsSeq(list) {
			name, build, _ := strings.Cut(item, "/")
			role := map[string]string{"cp": cluster.ControlPlane, "wk": cluster.Worker}[name[:2]]
			nodes = append(nodes, staleOf(name, role, build, cluster.InPlace))
		}
		return nodes
	}
	three, own, mixed := inPlace("cp1/a wk1/a wk2/a"), inPlace("wk1/a wk2/a"), inPlace("cp1/a wk1/b wk2/b")
	resumed, tidies := inPlace("wk1/a wk2/a wk3/a"), inPlace("wk1/a wk2/a wk3/a")
	resumed[0].Resume, resumed[0].Run, own[0].OwnPod = true, "r1", true
	tidies[0] = staleOf("wk1", cluster.Worker, "a", cluster.InPlace, "install-image", "config", "vm")
	mixed[1].Strategy, mixed[2].Strategy = cluster.Recreate, cluster.Recreate
	once, canary := Policy{Reboot: cluster.FirmwareOnce}, Policy{Reboot: cluster.FirmwareOnce, Canary: true}
	type row struct {
		policy Policy
		nodes  []NodePlan
		want   string // in the order in which they go: phase/node, and * for the firmware
	}
	must.Each(t, map[string]row{
		"canary":                 {canary, three, "canary/wk1* control-planes/cp1 workers/wk2"},
		"without another canary": {once, three, "canary/wk1* control-planes/cp1 workers/wk2"},
		"the named one": {
			Policy{Reboot: cluster.FirmwareOnce, Canary: true, CanaryNode: "wk2"}, inPlace("wk1/a wk2/a"), "canary/wk2* workers/wk1",
		},
		"two images": {
			canary, inPlace("cp1/a cp2/a wk1/b wk2/b"), "canary/cp1* canary/wk1* control-planes/cp2 workers/wk2",
		},
		"one node of an image":                    {canary, mixed, "canary/wk1 control-planes/cp1* workers/wk2"},
		"not where recast runs":                   {once, own, "canary/wk2* workers/wk1"},
		"what an earlier run left does not count": {canary, resumed, "unfinished/wk1* canary/wk2* workers/wk3"},
		"not one that runs it and only tidies, whatever else differs": {
			canary, tidies, "canary/wk2* workers/wk1 workers/wk3",
		},
		"always": {Policy{Reboot: cluster.ByFirmware}, inPlace("wk1/a wk2/a"), "workers/wk1* workers/wk2*"},
	}, func(t *testing.T, tc row) {
		p := Plan{Nodes: slices.Clone(tc.nodes), MaxUnavailable: 2} // rows share nodes
		p.Order(tc.policy)
		var got []string
		for _, n := range p.Nodes {
			what := string(n.Phase) + "/" + n.Node
			if n.Reboot == cluster.ByFirmware {
				what += "*"
			}
			got = append(got, what)
			must.Equal(t, n.Node+": the plan says so", n.Reboot == cluster.ByFirmware, strings.Contains(strings.Join(n.Notes, "; "), "through the firmware"))
		}
		must.Equal(t, "got", tc.want, strings.Join(got, " "))
	})
}

// staleOf is a node that a strategy brings to a build.
func staleOf(name, role, build string, s cluster.Strategy, codes ...string) NodePlan {
	reasons := []cluster.Reason{{Text: "stale"}}
	if len(codes) > 0 {
		reasons = nil
	}
	for _, code := range codes {
		reasons = append(reasons, cluster.Reason{Code: code})
	}
	return NodePlan{
		Node: name, Role: role, Strategy: s, Host: "pve1", Found: observe.Found{Machine: &cluster.Machine{}},
		Wanted: cluster.Wanted{Name: name, Build: cluster.Build{ID: build}}, Drift: observe.Drift{Reasons: reasons},
	}
}

// TestScratchVMs: a copy of a scratch VM is not one, whichever way its mark names the VM.
func TestScratchVMs(t *testing.T) {
	t.Parallel()
	byUUID, byNumber := ScratchMark("r1", "c1", "u"), ScratchMarkOf("r1", "c1", "disks", 9800)
	type row struct {
		id                cluster.VMID
		name, uuid, notes string
		want              string // its UUID; "": it is none
	}
	must.Each(t, map[string]row{
		"by UUID":                     {9800, "recast-rehearse-9800", "u", "text\n\n" + byUUID + "\n", "u"},
		"a copy":                      {9801, "recast-rehearse-9801", "v", byUUID, ""},
		"by number":                   {9800, "recast-rehearse-9800", "made up", "text\n\n" + byNumber + "\n", "disks"},
		"a copy of that":              {9801, "recast-rehearse-9801", "v", byNumber, ""},
		"a copy with its name":        {9801, "recast-rehearse-9800", "v", byNumber, ""},
		"of another cluster":          {9800, "recast-rehearse-9800", "u", ScratchMark("r1", "c2", "u"), ""},
		"a node's, with a run's mark": {9800, "recast-rehearse-9800", "u", cluster.RunMark + "r1 build=b", ""},
		"renamed":                     {9800, "web", "u", byUUID, ""},
	}, func(t *testing.T, c row) {
		vm := cluster.VM{ID: c.id, Name: c.name, Config: map[string]string{"smbios1": "uuid=" + c.uuid, "description": c.notes}}
		got := ""
		for _, s := range ScratchVMs([]cluster.VM{vm}, "c1") {
			got = s.UUID
		}
		must.Equal(t, "UUID", c.want, got)
	})
}
