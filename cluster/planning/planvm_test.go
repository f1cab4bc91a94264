package planning

import (
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
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestPlanTellsWhatChangesInTheVM(t *testing.T) {
	t.Parallel()
	type row struct {
		strategy cluster.Strategy
		change   func(w *cluster.Wanted, vm *cluster.VM)
		renewed  []string
		notes    []string
		newSize  string
	}
	must.Each(t, map[string]row{
		"recreate": {cluster.Recreate, func(*cluster.Wanted, *cluster.VM) {}, []string{"volid of scsi1"}, nil, ""},
		"what Proxmox makes": {cluster.Recreate, func(_ *cluster.Wanted, vm *cluster.VM) {
			vm.Config["vmgenid"], vm.Config["meta"], vm.Config["efidisk0"] = "0a", "creation-qemu=9", clustertest.Volid(vm.ID, 7)
		}, []string{"vmgenid", "meta", "volid of efidisk0", "volid of scsi1"}, nil, ""},
		"no generation ID": {cluster.Recreate, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["vmgenid"] = "0" }, []string{"vmgenid (which is switched off now)", "volid of scsi1"}, nil, ""},
		"reimage":          {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["vmgenid"] = "0a" }, nil, nil, ""},
		"protection": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["protection"] = "1" }, nil,
			[]string{"the VM's protection is lifted meanwhile and set again at the end"},
			"",
		},
		"a medium of the user's": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil,
			[]string{"ide2 gets the boot ISO and is empty at the end: isos:iso/debian.iso is taken out"},
			"",
		},
		"a medium of ours": {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "isos:iso/recast-x.iso,media=cdrom" }, nil, nil, ""},
		"an empty drive":   {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "none,media=cdrom" }, nil, nil, ""},
		"an old boot order": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["boot"], vm.Config["bootdisk"] = "cdn", "scsi0" }, nil,
			[]string{"its boot order of the old kind (cdn) becomes one by device, its system disk first"},
			"",
		},
		"grown":         {cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 20 }, nil, nil, "20G"},
		"the same size": {cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 10 }, nil, nil, ""},
		"smaller": {
			cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 8 }, nil,
			[]string{"the new system disk has 10G like the old one, not the 8G wanted: recast never makes one smaller"},
			"",
		},
	}, func(t *testing.T, tc row) {
		wanted, o := observetest.World()
		wanted[1].Strategy = tc.strategy
		tc.change(&wanted[1], o.Found[1].VM)
		plan := planned(t, wanted, o, Policy{})
		n := plan.Work()[0]
		must.Equal(t, "got", []any{tc.renewed, tc.notes, tc.newSize, []string(nil)}, []any{n.Renewed, n.Notes, n.System.NewSize, n.Refused})
	})
}

// TestPlanCountsTheNumbersOfParkingVMs refuses the nodes whose parking VM gets no number.
func TestPlanCountsTheNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	stale := func() ([]cluster.Wanted, observe.Observation) {
		wanted, o := observetest.World()
		for i := range o.Found {
			o.Found[i].Machine.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
		}
		return wanted[1:], observe.Observation{Quorate: true, Storages: o.Storages, Rooms: o.Rooms, VMs: o.VMs, Found: o.Found[1:], ParkingIDs: o.ParkingIDs}
	}
	const lack = "no VMID is left for its parking VM: this roll takes 2, and 1 of proxmox.vmids are free: widen it, or leave nodes out with --exclude"
	type row struct {
		change func(w []cluster.Wanted, o *observe.Observation)
		want   string // why wk2 is refused
	}
	cases := map[string]row{
		"enough":        {change: func([]cluster.Wanted, *observe.Observation) {}},
		"one that fits": {change: func(_ []cluster.Wanted, o *observe.Observation) { o.ParkingIDs = []cluster.VMID{9092} }, want: lack},
		"one of another": {change: func(_ []cluster.Wanted, o *observe.Observation) {
			o.VMs = append(o.VMs, cluster.VM{ID: 9092}, cluster.VM{ID: 9091})
		}, want: lack},
		"one has its parking VM": {change: func(_ []cluster.Wanted, o *observe.Observation) {
			o.ParkingIDs, o.Found[0].Parking = []cluster.VMID{9092}, &parking.Parking{VM: cluster.VM{ID: 9091}}
		}},
		"one in place": {change: func(w []cluster.Wanted, o *observe.Observation) {
			o.ParkingIDs, w[0].Strategy = []cluster.VMID{9092}, cluster.InPlace
		}},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		wanted, o := stale()
		tc.change(wanted, &o)
		plan := planned(t, wanted, o, Policy{})
		refused := map[string]string{}
		for _, n := range plan.Work() {
			refused[n.Node] = strings.Join(n.Refused, "; ")
		}
		if len(refused) != 2 || refused["wk1"] != "" || refused["wk2"] != tc.want {
			t.Errorf("%q", refused)
		}
	})
}

// TestReshape plans nodes whose VMs are not as wanted. wk1 is stale, and wk2 is not.
func TestReshape(t *testing.T) {
	t.Parallel()
	off := shape.Difference{Key: "memory", Found: "4096", Wanted: "8192", When: shape.Off}
	live := shape.Difference{Key: "tags", Wanted: "talos", When: shape.Live}
	never := shape.Difference{Key: "scsi1 size", Found: "20G", Wanted: "10G", When: shape.Never, Why: "recast makes no disk smaller"}
	type row struct {
		node     string
		differs  shape.Differences
		policy   Policy
		change   func(*observe.Observation, *observe.Found)
		strategy cluster.Strategy
		why      string
		refused  string
	}
	cases := map[string]row{
		"live":                    {node: "wk2", differs: shape.Differences{live}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; it stays up"},
		"off":                     {node: "wk2", differs: shape.Differences{live, off}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; it takes a VM that is off"},
		"never":                   {node: "wk2", differs: shape.Differences{live, never}, strategy: cluster.Reshape, refused: "its VM is not as recast.yaml wants it (scsi1 size: 20G → 10G): recast makes no disk smaller"},
		"a stale node":            {node: "wk1", differs: shape.Differences{off}, strategy: cluster.Recreate, why: "recreate: possible"},
		"a stale node, never":     {node: "wk1", differs: shape.Differences{never}, strategy: cluster.Recreate, refused: "recast makes no disk smaller"},
		"only images":             {node: "wk2", differs: shape.Differences{off}, policy: Policy{What: []What{Image}}, why: "only its VM differs, which --what image leaves as it is"},
		"only images, stale":      {node: "wk1", differs: shape.Differences{never}, policy: Policy{What: []What{Image}}, strategy: cluster.Recreate},
		"only VMs, stale":         {node: "wk1", differs: shape.Differences{off}, policy: Policy{What: []What{VM}}, strategy: cluster.Reshape},
		"only VMs, which is well": {node: "wk1", policy: Policy{What: []What{VM}}, why: "its image is not as wanted, which --what vm leaves as it is"},
		"one control plane":       {node: "cp1", differs: shape.Differences{off}, change: oneControlPlane, strategy: cluster.Reshape},
		"a locked VM":             {node: "wk2", differs: shape.Differences{live}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Lock = "backup" }, strategy: cluster.Reshape, refused: "the VM is locked (backup)"},
		"a locked VM, off":        {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Lock = "backup" }, strategy: cluster.Reshape, refused: "the VM is locked (backup)"},
		"pending changes":         {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Pending = []string{"cores"} }, strategy: cluster.Reshape, refused: "the VM has pending changes (cores)"},
		"pending, live":           {node: "wk2", differs: shape.Differences{live}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Pending = []string{"cores"} }, strategy: cluster.Reshape},
		"a snapshot":              {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.Ties.Snapshots = []string{"before"} }, strategy: cluster.Reshape},
		"a throw-away disk":       {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.VM.Config["scsi0"] += ",snapshot=1" }, strategy: cluster.Reshape, refused: "snapshot"},
		"another VM has its disk": {node: "wk2", differs: shape.Differences{off}, change: func(o *observe.Observation, f *observe.Found) {
			o.VMs[0].Config["scsi5"] = f.VM.Config["scsi1"]
		}, strategy: cluster.Reshape, refused: "scsi1"},
		"no number for its record":       {node: "wk2", differs: shape.Differences{off}, change: func(o *observe.Observation, _ *observe.Found) { o.ParkingIDs = nil }, strategy: cluster.Reshape, refused: "no VMID is left for its parking VM"},
		"live takes no number":           {node: "wk2", differs: shape.Differences{live}, change: func(o *observe.Observation, _ *observe.Found) { o.ParkingIDs = nil }, strategy: cluster.Reshape},
		"its host":                       {node: "wk2", differs: shape.Differences{host(shape.Live)}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; it stays up"},
		"its host, of a stale node":      {node: "wk1", differs: shape.Differences{host(shape.Live)}, strategy: cluster.Recreate},
		"its host, off":                  {node: "wk2", differs: shape.Differences{off, host(shape.Off)}, strategy: cluster.Reshape, why: "reshape: only its VM is not as wanted; it takes a VM that is off"},
		"its host, off, of a stale node": {node: "wk1", differs: shape.Differences{off, host(shape.Off)}, strategy: cluster.Recreate, refused: "host: pve1 → pve2): HA manages it. Disks can be handed over on one host only"},
		"unproven system disk":           {node: "wk2", differs: shape.Differences{off}, change: func(_ *observe.Observation, f *observe.Found) { f.Machine.Disks[0].Serial = "" }, strategy: cluster.Reshape, refused: "system disk can't be proven"},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		wanted, o := observetest.World()
		for i := range o.Found {
			if f := &o.Found[i]; f.Name == c.node {
				f.Shape = c.differs
				o.Rooms["pve2"] = o.Rooms[f.VM.Host]
				if c.change != nil {
					c.change(&o, f)
				}
			}
		}
		c.policy.Only = []string{c.node}
		plan := planned(t, wanted, o, c.policy)
		n := plan.Nodes[0]
		if n.Strategy != c.strategy || !strings.HasPrefix(n.Why, c.why) {
			t.Errorf("planned as %q: %s", n.Strategy, n.Why)
		}
		if refused := strings.Join(n.Refused, "; "); (refused == "") != (c.refused == "") || !strings.Contains(refused, c.refused) {
			t.Errorf("refused: %q, want %q", refused, c.refused)
		}
	})
}

// host is a difference of a VM's host.
func host(w shape.When) shape.Difference {
	d := shape.Difference{Key: "host", Found: "pve1", Wanted: "pve2", When: w}
	if w == shape.Off {
		d.Why = "HA manages it"
	}
	return d
}

// TestPlanMove: a node whose VM is migrated first is rolled on its new host, with the parking VM there.
func TestPlanMove(t *testing.T) {
	t.Parallel()
	for _, w := range []shape.When{shape.Live, shape.Off, shape.Never} {
		wanted, o := observetest.World()
		for i := range o.Found {
			if f := &o.Found[i]; f.Name == "wk1" {
				f.Shape, f.VM.Config["cpu"] = shape.Differences{host(w)}, "host"
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9901, Host: "pve1"}}
				f.Elsewhere = []parking.Parking{{VM: cluster.VM{ID: 9902, Host: "pve2"}}}
			}
		}
		plan := planned(t, wanted, o, Policy{Only: []string{"wk1"}})
		n, at, park := plan.Nodes[0], "pve1", cluster.VMID(9901)
		if w == shape.Live {
			at, park = "pve2", 9902
		}
		if n.Host != at || n.Space.Host != at || n.Found.Parking.VM.ID != park || len(n.Found.Elsewhere) != 1 || !slices.Contains(n.Slots, hostSlot(at)) {
			t.Errorf("%s: on %s, its new disk on %s, parked on %s, slots %v", w, n.Host, n.Space.Host, n.Found.Parking.VM, n.Slots)
		}
		told := strings.Contains(strings.Join(n.Notes, "\n"), "its CPU type is host")
		must.Equal(t, fmt.Sprintf("%s, told in %q", w, n.Notes), w == shape.Live, told)
	}
}

func oneControlPlane(o *observe.Observation, f *observe.Found) {
	o.Nodes = []cluster.KubeNode{{Name: f.Name, ControlPlane: true, Ready: true, Addresses: []netip.Addr{f.Addr}}}
}

func TestPlanFrees(t *testing.T) {
	t.Parallel()
	three := []string{"scsi30 r1", "scsi29 r2", "scsi28 r3"}
	type row struct {
		strategy cluster.Strategy
		refused  bool
		keep     int
		kept     []string
		edit     func(*parking.Parking)
		others   []cluster.VM
		want     []string
		notes    int
	}
	must.Each(t, map[string]row{
		"the first roll":           {strategy: cluster.Recreate},
		"the second":               {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"two stay":                 {strategy: cluster.Reimage, keep: 2, kept: []string{"scsi30 r1"}},
		"two of three stay":        {strategy: cluster.Reimage, keep: 2, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1"}},
		"never none":               {strategy: cluster.Recreate, keep: -3, kept: three, want: []string{"scsi30 fast:vm-9900-disk-0", "scsi29 fast:vm-9900-disk-1", "scsi28 fast:vm-9900-disk-2"}},
		"a node that stays":        {kept: three},
		"refused":                  {strategy: cluster.Recreate, refused: true, kept: three},
		"a rollback":               {strategy: cluster.Rollback, kept: three},
		"a put-back":               {strategy: cluster.PutBack, kept: three},
		"in place":                 {strategy: cluster.InPlace, kept: three},
		"in place, begun before":   {strategy: cluster.InPlace, kept: three, edit: func(p *parking.Parking) { p.Record.Kept[0].Going = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"begun, the drive is gone": {strategy: cluster.InPlace, kept: three, edit: func(p *parking.Parking) { p.Record.Kept[0].Going = true; delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"an unfinished one":        {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, edit: func(p *parking.Parking) { p.Record.Open = true }, want: []string{"scsi30 fast:vm-9900-disk-0"}},
		"a drive that is gone":     {strategy: cluster.Recreate, keep: 2, kept: []string{"scsi30 r1", "scsi29 r2"}, edit: func(p *parking.Parking) { delete(p.VM.Config, "scsi30") }, want: []string{"scsi30 "}},
		"another disk":             {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, edit: func(p *parking.Parking) { p.VM.Config["scsi30"] = "fast:vm-9900-disk-4,serial=other" }, notes: 1},
		"named twice":              {strategy: cluster.Recreate, kept: []string{"scsi30 r1"}, others: []cluster.VM{{ID: 7, Config: map[string]string{"sata0": "fast:vm-9900-disk-0"}}}, notes: 1},
	}, func(t *testing.T, tc row) {
		p := clustertest.Park(9900, "pve1", "wk1", tc.kept...)
		if tc.edit != nil {
			tc.edit(&p)
		}
		n := NodePlan{Node: "wk1", Strategy: tc.strategy}
		if tc.kept != nil {
			n.Found.Parking = &p
		}
		if tc.refused {
			n.Refused = []string{"no"}
		}
		n.planFrees(observe.Observation{VMs: append(tc.others, clustertest.Described(t, p))}, tc.keep)
		got := cluster.Each(n.Frees, func(f parking.FreePlan) string { return f.Key + " " + f.Volid })
		must.Equal(t, "frees", tc.want, got)
		must.Equal(t, fmt.Sprintf("notes %q", n.Notes), tc.notes, len(n.Notes))
	})
}

// TestNoteInitiators: only a node that gets another system disk has another name, for the protocols that volumes use.
func TestNoteInitiators(t *testing.T) {
	t.Parallel()
	of := func(s cluster.Strategy, served ...cluster.LocalData) NodePlan {
		return NodePlan{Node: "wk1", Strategy: s, Found: observe.Found{Node: &cluster.KubeNode{MachineID: "4c4c4544004f5a10805ac7c04f4a3233"}, Served: served}}
	}
	volume := cluster.LocalData{What: "PersistentVolume a (claim default/db-0)", Access: cluster.ISCSI}
	note := "its name for iSCSI (iqn.2017-11.dev.talos:4c4c4544004f5a10805ac7c04f4a3233) changes with the system disk, as its machine-id does: " +
		"where the server of PersistentVolume a (claim default/db-0) lets in only names that it knows, add the new one, which the roll shows"
	p := Plan{Nodes: []NodePlan{of(cluster.Recreate, volume), of(cluster.Reimage, volume), of(cluster.InPlace, volume), of(cluster.Recreate)}}
	noteInitiators(&p)
	got := cluster.Each(p.Nodes, func(n NodePlan) []string { return n.Notes })
	must.Equal(t, "got", [][]string{{note}, {note}, nil, nil}, got)
}

// TestNodesWithOtherNamesGoOneByOne: they share a slot with room for one, however many may be out.
func TestNodesWithOtherNamesGoOneByOne(t *testing.T) {
	t.Parallel()
	p := Plan{MaxUnavailable: 3, PerHost: 3, Nodes: []NodePlan{
		{Node: "wk1", Strategy: cluster.Recreate, Phase: Workers, Host: "pve1", Initiators: []string{cluster.ISCSI}},
		{Node: "wk2", Strategy: cluster.Recreate, Phase: Workers, Host: "pve2"},
	}}
	p.Arrange()
	if diff := cmp.Diff([][]string{{"host/pve1", "initiator"}, {"host/pve2"}}, [][]string{p.Nodes[0].Slots, p.Nodes[1].Slots}); diff != "" || p.Room["initiator"] != 1 {
		t.Errorf("room %v (-want +got):\n%s", p.Room, diff)
	}
}

func TestChooseSurge(t *testing.T) {
	t.Parallel()
	there := func(name string) foundSurge { return foundSurge{Name: name, There: true} }
	fits := func(name string) foundSurge { return foundSurge{Name: name, Fits: true} }
	full := func(name string) foundSurge { return foundSurge{Name: name} }
	type row struct {
		nodes []foundSurge
		need  surgeNeed
		want  *SurgePlan
		fails string
	}
	must.Each(t, map[string]row{
		"none asked for":           {[]foundSurge{fits("s1")}, surgeNeed{Workers: 3, Out: 1}, nil, ""},
		"no worker taken out":      {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 1, Workers: 3}, nil, ""},
		"one":                      {[]foundSurge{fits("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"two":                      {[]foundSurge{fits("s1"), fits("s2")}, surgeNeed{Wanted: 2, Workers: 9, Out: 2}, &SurgePlan{Nodes: []string{"s1", "s2"}, Make: []string{"s1", "s2"}, Workers: 9, Least: 9}, ""},
		"more out than surge":      {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 1, Workers: 9, Out: 3}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 9, Least: 7}, ""},
		"one is there":             {[]foundSurge{fits("s1"), there("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"more are there":           {[]foundSurge{there("s1"), there("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1", "s2"}, Workers: 3, Least: 3}, ""},
		"the first does not fit":   {[]foundSurge{full("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s2"}, Make: []string{"s2"}, Workers: 3, Least: 3}, ""},
		"none fits":                {[]foundSurge{full("s1")}, surgeNeed{Wanted: 1, Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, ""},
		"left over":                {[]foundSurge{there("s1"), fits("s2")}, surgeNeed{Wanted: 1, Workers: 3}, &SurgePlan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"left over, asked no more": {[]foundSurge{there("s1")}, surgeNeed{Workers: 3, Out: 1}, &SurgePlan{Nodes: []string{}, Remove: []string{"s1"}}, ""},
		"too few":                  {[]foundSurge{fits("s1")}, surgeNeed{Wanted: 2, Workers: 9, Out: 1}, nil, "roll.surge asks for 2 surge nodes, and this roll has 1"},
	}, func(t *testing.T, c row) {
		got, err := chooseSurge(c.nodes, c.need)
		if c.fails != "" {
			must.FailAs(t, err, fault.Config)
			must.Equal(t, "error", c.fails, fmt.Sprint(err))
			return
		}
		must.Pass(t, err)
		must.Equal(t, "chosen", c.want, got)
	})
}

func TestSurgeLines(t *testing.T) {
	t.Parallel()
	type row struct {
		plan *SurgePlan
		want []string
	}
	must.Each(t, map[string]row{
		"nothing": {nil, nil},
		"made":    {&SurgePlan{Nodes: []string{"s1"}, Make: []string{"s1"}, Workers: 3, Least: 3}, []string{"s1: made before", "never fewer than 3 workers serve", "s1: removed"}},
		"there":   {&SurgePlan{Nodes: []string{"s1"}, Workers: 1, Least: 1}, []string{"never fewer than 1 worker serves", "s1: removed"}},
		"fewer":   {&SurgePlan{Nodes: []string{"s1"}, Workers: 9, Least: 7}, []string{"7 of 9 workers serve at the least: roll.maxUnavailable", "s1: removed"}},
		"left":    {&SurgePlan{Remove: []string{"s1", "s2"}}, []string{"s1, s2: left over by an earlier roll"}},
	}, func(t *testing.T, c row) {
		if got := c.plan.Lines(); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%q, want %q", got, c.want)
		}
	})
}
