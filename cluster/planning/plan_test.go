package planning

import (
	"errors"
	"fmt"
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

func TestPlanFailsOnAnUnknownNode(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	_, err := New("c1", wanted, o, clustertest.Past, Policy{Only: []string{"wk9"}})
	must.FailAs(t, err, fault.Config)
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
			if got := strings.Contains(strings.Join(n.Refused, ""), strategy.BeginsAlone); got != (tc.refused && typeInit) {
				t.Errorf("%s, %v: refused %q", name, typeInit, n.Refused)
			}
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

// TestAWithdrawnReleaseIsNamed once, if a node is to get it.
func TestAWithdrawnReleaseIsNamed(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.13.1": "Talos v1.13.1 was withdrawn by its makers as a broken release (https://github.com/siderolabs/talos/issues/13312): set talos.version to v1.13.2 or later",
		"v1.13.2": "", "v1.13.3": "", // a refusal of the nodes that it breaks
	} {
		wanted, o := paused(nil)
		for i := range wanted {
			wanted[i].Build.TalosVersion = version
		}
		plan := planned(t, wanted, o, Policy{})
		named := slices.DeleteFunc(slices.Clone(plan.Warn), func(w string) bool { return !strings.Contains(w, "Talos v1.13") })
		if want == "" && len(named) > 0 || want != "" && !slices.Equal(named, []string{want}) {
			t.Errorf("%s: %q", version, plan.Warn)
		}
	}
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
		if named := slices.DeleteFunc(slices.Clone(plan.Warn), func(w string) bool { return !strings.HasPrefix(w, "Talos v1.13") }); !slices.Equal(named, c.want) {
			t.Errorf("%s:\n%q, want\n%q", name, named, c.want)
		}
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
	for name, tc := range map[string]struct {
		past          []cluster.Took
		outage, whole int
		from          string
	}{
		"nothing is known":      {nil, 240, 0, "assumed"},
		"of it":                 {[]cluster.Took{took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk2", cluster.Worker, cluster.Recreate, 500)}, 100, 130, "an earlier roll of it"},
		"the median":            {[]cluster.Took{took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk1", cluster.Worker, cluster.Recreate, 900), took("wk1", cluster.Worker, cluster.Recreate, 200)}, 200, 230, "3 earlier rolls of it"},
		"of others of its role": {[]cluster.Took{took("wk2", cluster.Worker, cluster.Recreate, 100), took("cp1", cluster.ControlPlane, cluster.Recreate, 500), took("wk3", cluster.Worker, cluster.Recreate, 120)}, 120, 150, "2 earlier rolls of workers"},
		"by another strategy":   {[]cluster.Took{took("wk1", cluster.Worker, cluster.InPlace, 100)}, 240, 0, "assumed"},
		"the latest five": {[]cluster.Took{
			took("wk1", cluster.Worker, cluster.Recreate, 1), took("wk1", cluster.Worker, cluster.Recreate, 2), took("wk1", cluster.Worker, cluster.Recreate, 3), took("wk1", cluster.Worker, cluster.Recreate, 4), took("wk1", cluster.Worker, cluster.Recreate, 5),
			took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk1", cluster.Worker, cluster.Recreate, 100), took("wk1", cluster.Worker, cluster.Recreate, 100),
		}, 3, 33, "5 earlier rolls of it"},
	} {
		n := NodePlan{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate}
		n.Estimate(tc.past)
		if n.OutageSeconds != tc.outage || n.WholeSeconds != tc.whole || n.OutageFrom != tc.from {
			t.Errorf("%s: %d, %d, %q", name, n.OutageSeconds, n.WholeSeconds, n.OutageFrom)
		}
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
			if each := allocated() / uint64(b.N); each > most {
				b.Errorf("%d allocations for each plan, more than %d", each, most)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes), "ns/node")
		})
	}
}
