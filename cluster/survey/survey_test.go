package survey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestWhereabouts(t *testing.T) {
	t.Parallel()
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	members := []cluster.Member{{Nodename: "cp1", Addresses: []netip.Addr{c}}, {Nodename: "wk1", Addresses: []netip.Addr{b}}, {Nodename: "wk2", Addresses: []netip.Addr{b}}, {Nodename: "wk2"}}
	nodes := []cluster.KubeNode{{Name: "cp1", Addresses: []netip.Addr{a}}, {Name: "wk1"}, {Name: "other"}}
	got := map[string]string{}
	for _, d := range whereabouts(members, nodes) {
		if _, twice := got[d.Name]; twice {
			t.Errorf("%s is there twice", d.Name)
		}
		got[d.Name] = d.Addr.String()
	}
	want := map[string]string{"cp1": "192.0.2.1", "wk1": "192.0.2.2", "wk2": "192.0.2.2", "other": "invalid IP"}
	must.Equal(t, "addresses", want, got)
}

func TestRequireOneCluster(t *testing.T) {
	t.Parallel()
	members, others := []cluster.Member{{Nodename: "cp1"}, {Nodename: "wk1"}}, []cluster.KubeNode{{Name: "a"}, {Name: "b"}}
	must.FailAs(t, requireOneCluster(members, others), fault.Config, "Talos has the nodes cp1, wk1, Kubernetes has a, b")
	must.Pass(t, requireOneCluster(members, append(others, cluster.KubeNode{Name: "wk1"}))) // one in common
	must.Pass(t, requireOneCluster(members, nil))                                           // no kubeconfig
	must.Pass(t, requireOneCluster(nil, others))                                            // no discovery
}

const discoveredUUID = "5ec0ffee-0000-4000-8000-000000009031"

// discovered is a node on its system disk scsi0, and its VM.
func discovered(config map[string]string) (Discovered, cluster.VM) {
	vm := cluster.VM{ID: 9031, Name: "wk1", Host: "pve1", Config: map[string]string{
		"smbios1": "uuid=" + discoveredUUID, "scsihw": "virtio-scsi-single", "scsi0": "fast:vm-9031-disk-0,size=10G", "ide2": "none,media=cdrom",
	}}
	maps.Copy(vm.Config, config)
	m := cluster.Machine{
		MachineStanding: cluster.MachineStanding{UUID: discoveredUUID}, RunningSystem: cluster.RunningSystem{TalosVersion: "v1.13.9"}, SystemDisk: "sda",
		Disks: []cluster.MachineDisk{{Device: "sda", BusPath: "/pci0000:00/0000:00:05.0/virtio1/host2/target2:0:0/2:0:0:0", SizeBytes: 10 << 30}},
	}
	return Discovered{Name: "wk1", Addr: netip.MustParseAddr("192.0.2.31"), Machine: m}, vm
}

func TestDiscoveredMatch(t *testing.T) {
	t.Parallel()
	data := cluster.VM{ID: 9201, Name: "data", Host: "pve1"}
	for name, c := range map[string]struct {
		config     map[string]string
		change     func(*Discovered)
		others     []cluster.VM
		persistent string
		holder     cluster.VMID
		err        string
	}{
		"no other disk":        {},
		"its own":              {config: map[string]string{"scsi1": "fast:vm-9031-disk-1,size=20G", "efidisk0": "fast:vm-9031-disk-2"}, persistent: "scsi1"},
		"of a pod":             {config: map[string]string{"scsi2": "fast:vm-9999-pvc-1a2b,size=1G"}},
		"a data VM's":          {config: map[string]string{"scsi1": "fast:vm-9201-disk-0"}, others: []cluster.VM{data}, persistent: "scsi1", holder: 9201},
		"one of either":        {config: map[string]string{"scsi1": "fast:vm-9201-disk-0", "scsi2": "fast:vm-9031-disk-1"}, others: []cluster.VM{data}, persistent: "scsi1 scsi2", holder: 9201},
		"two data VMs":         {config: map[string]string{"scsi1": "fast:vm-9201-disk-0", "scsi2": "fast:vm-9202-disk-0"}, others: []cluster.VM{data}, err: "to VM 9201 and to VM 9202"},
		"a data VM not there":  {config: map[string]string{"scsi1": "fast:vm-9201-disk-0"}, err: "belong to VM 9201, which is not there"},
		"another UUID in Kube": {change: func(d *Discovered) { d.Node = &cluster.KubeNode{UUID: "other"} }, err: "Kubernetes says that its UUID is other"},
		"no UUID":              {change: func(d *Discovered) { d.Machine.UUID = "" }, others: []cluster.VM{data}, err: "does not say which UUID"},
		"a twin":               {others: []cluster.VM{{ID: 300, Config: map[string]string{"smbios1": "uuid=" + strings.ToUpper(discoveredUUID)}}}, err: "2 VMs have its SMBIOS UUID"},
		"no VM":                {change: func(d *Discovered) { d.Machine.UUID = "5ec0ffee-0000-4000-8000-000000000000" }, err: "no VM has its SMBIOS UUID"},
	} {
		d, vm := discovered(c.config)
		if c.change != nil {
			c.change(&d)
		}
		err := d.match(append([]cluster.VM{vm}, c.others...))
		if must.Fail(t, err, c.err); c.err != "" {
			continue
		}
		keys := cluster.Each(d.Persistent, func(p cluster.Disk) string { return p.Key })
		got := []any{strings.Join(keys, " "), d.Holder, d.System.Key, d.Unproven}
		must.Equal(t, name+": persistent disks, their holder, system disk", []any{c.persistent, c.holder, "scsi0", nil}, got)
	}
}

// TestDiscoveredUnproven: without a proven system disk, the persistent disks are unknown too.
func TestDiscoveredUnproven(t *testing.T) {
	t.Parallel()
	d, vm := discovered(map[string]string{"scsi1": "fast:vm-9201-disk-0,size=20G"})
	d.Machine.SystemDisk = ""
	must.Do(t, d.match([]cluster.VM{vm, {ID: 9201, Name: "data", Host: "pve1"}}))
	must.Hold(t, d.Unproven != nil && d.Persistent == nil && len(d.Candidates) == 2 && d.Holder == 9201,
		"unproven %v, persistent %v, candidates %v, holder %d", d.Unproven, d.Persistent, d.Candidates, d.Holder)
}

// described is a VM of recast's with what is recorded in it.
func described(t *testing.T, id cluster.VMID, name string, r interface{ Description() (string, error) }) cluster.VM {
	return cluster.VM{ID: id, Name: name, Host: "pve1", Config: map[string]string{"description": must.Get(r.Description())(t)}}
}

func TestDiscoveryUnfinished(t *testing.T) {
	t.Parallel()
	n, vm := discovered(nil)
	n.VM = vm
	for name, c := range map[string]struct {
		record  parking.Record
		cluster string
		refused bool
	}{
		"finished":   {parking.Record{Cluster: "homelab", Node: "wk1", UUID: discoveredUUID}, "homelab", false},
		"unfinished": {parking.Record{Cluster: "homelab", Node: "wk1", UUID: discoveredUUID, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}, "", true},
		"another's":  {parking.Record{Cluster: "other", Node: "wk1", UUID: "x", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}, "", false},
	} {
		p := described(t, 9101, "recast-parking", c.record)
		d := Discovery{Nodes: []Discovered{n}, VMs: []cluster.VM{vm, p}}
		err := d.unfinished()
		must.Equal(t, name+": refused, cluster", []any{c.refused, c.cluster}, []any{err != nil, d.Cluster})
		p.Config["description"] = strings.Replace(p.Config["description"], `"version":1`, `"version":2`, 1)
		d = Discovery{Nodes: []Discovered{n}, VMs: []cluster.VM{vm, p}}
		must.Equal(t, name+", by a newer recast: refused", c.record.UUID == discoveredUUID, d.unfinished() != nil)
	}
}

func TestDiscoveryVersions(t *testing.T) {
	t.Parallel()
	d := Discovery{}
	for _, v := range []string{"v1.9.5", "v1.13.9", "v1.14.0-beta.1", "v1.13.9"} {
		d.Nodes = append(d.Nodes, Discovered{Name: v, Machine: cluster.Machine{RunningSystem: cluster.RunningSystem{TalosVersion: v}}})
	}
	got := must.Get(d.Versions())(t)
	must.Equal(t, "versions", []string{"v1.14.0-beta.1", "v1.13.9", "v1.9.5"}, got)
	d.Nodes = append(d.Nodes, Discovered{Name: "odd"})
	must.Equal(t, "a node without a version is taken", false, must.Err(d.Versions()) == nil)
}

// machines answers for the addresses that are on.
type machines struct {
	cluster.Talos
	members []cluster.Member
	on      map[netip.Addr]cluster.Machine
}

func (m machines) Members(context.Context) ([]cluster.Member, error) { return m.members, nil }

func (m machines) ReadParts(_ context.Context, addr netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	if found, ok := m.on[addr]; ok {
		return clustertest.Parts(found, parts), nil
	}
	return cluster.Machine{}, fmt.Errorf("%s: %w", addr, errors.New("connection refused"))
}

type listing struct {
	cluster.Proxmox
	vms []cluster.VM
	err error
}

func (l listing) VMs(context.Context) ([]cluster.VM, error)         { return l.vms, l.err }
func (listing) Quorate(context.Context) (bool, error)               { return true, nil }
func (listing) Storages(context.Context) ([]cluster.Storage, error) { return nil, nil }

type nodeList struct {
	cluster.Kube
	nodes []cluster.KubeNode
}

func (l nodeList) Nodes(context.Context) ([]cluster.KubeNode, error) { return l.nodes, nil }

// TestDiscoverAll: a node that no source lists would not be missed, so some source must list all.
func TestDiscoverAll(t *testing.T) {
	t.Parallel()
	a, b, c, d := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("192.0.2.4")
	uuid := func(name string) string { return "5ec0ffee-0000-4000-8000-000000000" + name }
	machine := func(name string) cluster.Machine {
		return cluster.Machine{
			MachineStanding: cluster.MachineStanding{UUID: uuid(name)}, RunningSystem: cluster.RunningSystem{TalosVersion: "v1.13.9"},
			Nodename: name, ControlPlane: name == "cp1",
		}
	}
	var vms []cluster.VM
	for i, name := range []string{"cp1", "wk1"} {
		vms = append(vms, cluster.VM{ID: cluster.VMID(101 + i), Name: name, Host: "pve1", Config: map[string]string{"smbios1": "uuid=" + uuid(name), "scsi0": fmt.Sprintf("fast:vm-%d-disk-0", 101+i)}})
	}
	both := map[netip.Addr]cluster.Machine{a: machine("cp1"), b: machine("wk1")}
	members := []cluster.Member{{Nodename: "cp1", Addresses: []netip.Addr{a}}, {Nodename: "wk1", Addresses: []netip.Addr{b, d}}}
	kube := func(names ...string) cluster.Kube {
		l := nodeList{}
		for _, name := range names {
			l.nodes = append(l.nodes, cluster.KubeNode{Name: name, UUID: uuid(name), Addresses: []netip.Addr{map[string]netip.Addr{"cp1": a, "wk1": b}[name]}})
		}
		return l
	}
	away := &cluster.HostsAway{VMs: []cluster.VM{{ID: 300, Host: "pve9"}}, Hosts: []cluster.AwayHost{{Name: "pve9", Why: cluster.IsOffline}}}
	type row struct {
		members []cluster.Member
		kube    cluster.Kube
		on      map[netip.Addr]cluster.Machine
		addrs   []netip.Addr
		silent  []netip.Addr
		vms     error
		nodes   string
		err     string
		hint    string
	}
	must.Each(t, map[string]row{
		"discovery lists them":          {members: members, on: both, nodes: "cp1 wk1"},
		"Kubernetes lists them":         {kube: kube("cp1", "wk1"), on: both, nodes: "cp1 wk1"},
		"a seed that Kubernetes lacks":  {kube: kube("cp1"), on: both, addrs: []netip.Addr{b}, nodes: "cp1 wk1"},
		"no source lists any":           {on: both, err: "lists no machine (is cluster.discovery off?), and Kubernetes is not asked", hint: "talosctl kubeconfig"},
		"only seeds":                    {on: both, addrs: []netip.Addr{a}, err: "lists no machine (is cluster.discovery off?), and Kubernetes is not asked", hint: "KUBECONFIG"},
		"a seed that discovery lacks":   {members: members[:1], on: both, addrs: []netip.Addr{a, b}, err: "discovery does not list wk1, and Kubernetes is not asked", hint: "talosctl kubeconfig"},
		"Kubernetes lists none, either": {kube: kube(), on: both, addrs: []netip.Addr{a}, err: "no node is known: Talos' discovery lists none, and neither does Kubernetes", hint: "cluster.discovery"},
		"one that is silent":            {members: members, on: both, addrs: []netip.Addr{a, c, c}, silent: []netip.Addr{c}, nodes: "cp1 wk1"},
		"a known one that is silent":    {members: members, on: both, addrs: []netip.Addr{d}, nodes: "cp1 wk1"},
		"one without a name": {
			members: members, on: map[netip.Addr]cluster.Machine{a: machine("cp1"), b: machine("wk1"), c: {}}, addrs: []netip.Addr{c}, silent: []netip.Addr{c}, nodes: "cp1 wk1",
		},
		"elsewhere than it is known to be": {members: members, on: map[netip.Addr]cluster.Machine{a: machine("cp1"), d: machine("wk1")}, addrs: []netip.Addr{d}, nodes: "cp1 wk1"},
		"of Cluster API":                   {kube: marked(kube("cp1", "wk1"), cluster.NodeMetadata{Annotations: map[string]string{"cluster.x-k8s.io/machine": "home-md-0-x"}}), on: both, err: "node wk1 is of Cluster API (cluster.x-k8s.io/machine: home-md-0-x)", hint: "--exclude wk1"},
		"of Karpenter":                     {kube: marked(kube("cp1", "wk1"), cluster.NodeMetadata{Labels: map[string]string{"karpenter.sh/nodepool": "default"}}), on: both, err: "node wk1 is of Karpenter", hint: "NodePool"},
		"a host does not answer":           {members: members, on: both, vms: away, err: "read Proxmox: " + away.Error(), hint: "run the same command again"},
		"two clusters":                     {members: members, kube: kube("a"), on: both, err: "Talos has the nodes cp1, wk1, Kubernetes has a"},
		"nowhere":                          {members: members, on: map[netip.Addr]cluster.Machine{a: machine("cp1")}, addrs: []netip.Addr{d}, err: "node wk1: read its machine", hint: "--exclude wk1"},
	}, func(t *testing.T, tc row) {
		src := observe.Sources{Proxmox: listing{vms: vms, err: tc.vms}, Talos: machines{members: tc.members, on: tc.on}, Kube: tc.kube}
		got, err := Discover(t.Context(), src, DiscoverOptions{Addrs: tc.addrs})
		if said := fmt.Sprint(err); tc.err != "" {
			must.Hold(t, strings.Contains(said, tc.err) && strings.Contains(strings.Join(fault.Hints(err), "\n"), tc.hint),
				"err = %s, %q; want %q, %q", said, fault.Hints(err), tc.err, tc.hint)
			return
		}
		must.Do(t, err)
		names := cluster.Each(got.Nodes, func(n Discovered) string { return n.Name })
		must.Equal(t, "nodes", tc.nodes, strings.Join(names, " "))
		must.Equal(t, "silent", fmt.Sprint(tc.silent), fmt.Sprint(got.Silent))
	})
}

// marked has the last Node carry what a controller put on it.
func marked(k cluster.Kube, m cluster.NodeMetadata) cluster.Kube {
	l := k.(nodeList)
	l.nodes[len(l.nodes)-1].Metadata = m
	return l
}

// TestDiscoveryOwn: which of recast's VMs show that there is already a recast.yaml.
func TestDiscoveryOwn(t *testing.T) {
	t.Parallel()
	park := func(id cluster.VMID, r parking.Record) cluster.VM { return described(t, id, "recast-parking", r) }
	claim := func(id cluster.VMID, name string) cluster.VM {
		return described(t, id, claim.VMName, claim.State{Cluster: name, Run: "r1"})
	}
	d := Discovery{uuids: []string{discoveredUUID}, VMs: []cluster.VM{
		{ID: 101, Name: "wk1"},
		claim(9000, "homelab"), claim(9100, "other"),
		park(9001, parking.Record{Cluster: "former", Node: "wk1", UUID: discoveredUUID}),
		park(9002, parking.Record{Cluster: "homelab", Node: "gone", UUID: "x"}),
		park(9101, parking.Record{Cluster: "other", Node: "wk1", UUID: "y"}),
		{ID: 9102, Config: map[string]string{"description": cluster.RecordMark + "{"}},
	}}
	newer := d.VMs[3].Config
	newer["description"] = strings.Replace(newer["description"], `{"version":1,`, `{"version":2,"also":true,`, 1)
	for _, tc := range []struct{ cluster, learned, want string }{
		{"homelab", "", "[9000 9001 9002]"}, {"new", "", "[9001]"}, {"new", "homelab", "[9000 9001 9002]"}, {"other", "", "[9100 9001 9101]"},
	} {
		d.Cluster = tc.learned
		got := cluster.Each(d.Own(tc.cluster), func(vm cluster.VM) cluster.VMID { return vm.ID })
		must.Equal(t, "claims", tc.want, fmt.Sprint(got))
	}
	must.Equal(t, "a claim, and a parking VM, are claims", []bool{true, false}, []bool{IsClaim(d.VMs[1]), IsClaim(d.VMs[3])})
}

func explain(t *testing.T, node string, change func([]cluster.Wanted, *observe.Observation)) Explanation {
	t.Helper()
	wanted, o := observetest.World()
	if change != nil {
		change(wanted, &o)
	}
	plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{}))(t)
	e := must.Get(Explain(t.Context(), plan, node, o, clustertest.Past, cluster.Timing{Drain: 10 * time.Minute, Stop: 5 * time.Minute, Boot: 10 * time.Minute, Join: 10 * time.Minute}))(t)
	return e
}

func paths(e Explanation) string {
	out := cluster.Each(e.Steps, func(s StepOutline) string { return s.Path })
	return strings.Join(out, " ")
}

func fateIn(e Explanation, key string) Fate {
	for _, d := range e.Disks {
		if d.Key == key {
			return d.Fate
		}
	}
	return ""
}

func TestExplainRecreate(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk1", func(_ []cluster.Wanted, o *observe.Observation) {
		o.Found[1].VM.Config["ide2"] = "none,media=cdrom"
		o.Found[1].VM.Config["scsi2"], o.Found[1].VM.Pods = "fast:vm-9002-pvc-1,size=1G", []string{"fast:vm-9002-pvc-1"}
		o.Took = []cluster.Took{{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, OutageSeconds: 100, Steps: map[string]int{"take-down/drain": 30}}}
	})
	must.Hold(t, e.Turn == 1 && e.Of == 1 && e.Batch != nil && e.Batch.Phase == planning.Workers,
		"turn %d of %d in %+v", e.Turn, e.Of, e.Batch)
	want := "pull gate take-down/remember take-down/drain take-down/stop take-down/unprotect " +
		"take-down/park/settle take-down/park/scsi0 take-down/park/scsi1 take-down/delete-vm " +
		"bring-up/create-vm bring-up/renew-disk bring-up/attach/settle bring-up/attach/scsi1 bring-up/attach/compare-disks bring-up/start bring-up/configure bring-up/wait-healthy " +
		"bring-up/finish/eject bring-up/finish/restore-settings bring-up/finish/restore-ha bring-up/finish/restore-node bring-up/finish/note-entry bring-up/finish/uncordon bring-up/finish/keep"
	must.Equal(t, "steps", strings.Fields(want), strings.Fields(paths(e)))
	drain := e.Steps[3]
	drains := fmt.Sprint(drain.Seconds, " ", drain.SecondsFrom, " ", drain.TimeoutSeconds, " ", drain.Risk)
	must.Equal(t, "drain", "30 an earlier roll of it 600 disruptive", drains)
	must.Equal(t, "title", "park scsi0 as scsi30 of its parking VM", e.Steps[7].Title)
	for key, want := range map[string]Fate{"scsi0": FateReplaced, "scsi1": FateCarried, "scsi2": FatePods, "ide2": FateMedium} {
		must.Equal(t, key, want, fateIn(e, key))
	}
	if len(e.Strategies) != 3 || !e.Strategies[0].Taken || len(e.Strategies[0].Against) > 0 || e.Strategies[1].Taken {
		t.Errorf("%+v", e.Strategies)
	}
	i := slices.IndexFunc(e.Compared, func(c Comparison) bool { return strings.HasPrefix(c.What, "extension ") && !c.Same })
	must.Hold(t, i >= 0 && e.Compared[i].Found != "" && e.Compared[i].Wanted != "", "%+v", e.Compared)
}

// TestExplainAnOverlay: another digest of the same overlay, and a rebuild, have rows of their own.
func TestExplainAnOverlay(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	wanted[1].Build.Overlay, wanted[1].Build.Rebuild = cluster.LockedOverlay{Name: "rpi", Digest: "sha256:bbbbbbbbbbbbbbbb"}, 2
	past := func(hash string) (cluster.LockedContent, bool) {
		old, known := clustertest.Past(hash)
		old.Overlay, old.Rebuild = cluster.LockedOverlay{Name: "rpi", Digest: "sha256:aaaaaaaaaaaaaaaa"}, 1
		return old, known
	}
	plan := must.Get(planning.New("c1", wanted, o, past, planning.Policy{}))(t)
	e := must.Get(Explain(t.Context(), plan, "wk1", o, past, cluster.Timing{}))(t)
	for _, want := range []Comparison{
		{What: "image of the overlay", Found: "sha256:aaaaaaaaaaaa", Wanted: "sha256:bbbbbbbbbbbb"},
		{What: "rebuilds of the same content", Found: "1", Wanted: "2"},
	} {
		must.Hold(t, slices.Contains(e.Compared, want), "no %+v in %+v", want, e.Compared)
	}
}

// TestExplainAFirewall: a new VM gets its rules again; a VM that stays keeps them.
func TestExplainAFirewall(t *testing.T) {
	t.Parallel()
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		e := explain(t, "wk1", func(wanted []cluster.Wanted, o *observe.Observation) {
			wanted[1].Strategy = s
			o.Found[1].Ties.Firewall = cluster.FirewallConfig{Options: cluster.FirewallEntry{"enable": "1"}}
		})
		must.Equal(t, string(s), s == cluster.Recreate, strings.Contains(paths(e), "bring-up/attach/firewall"))
	}
}

// The obstacles of every strategy are listed, whichever is taken.
func TestExplainWhatIsImpossible(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk1", func(_ []cluster.Wanted, o *observe.Observation) {
		o.Found[1].Ties.Dropped = []string{"an ACL entry at /vms/9002"}
		o.Found[1].Node = &cluster.KubeNode{FailedBuild: clustertest.WantedBuild().ID}
	})
	if e.Plan.Strategy != cluster.Reimage || len(e.Strategies[0].Against) != 1 || !e.Strategies[1].Taken || len(e.Strategies[2].Against) != 1 {
		t.Errorf("%s: %+v", e.Plan.Strategy, e.Strategies)
	}
	if fateIn(e, "scsi1") != FateStays || strings.Contains(paths(e), "delete-vm") || !strings.Contains(paths(e), "bring-up/blank-disk") {
		t.Errorf("%+v, %s", e.Disks, paths(e))
	}
	single := explain(t, "cp1", func(_ []cluster.Wanted, o *observe.Observation) {
		o.Found[0].Machine.TalosVersion = "v1.13.0"
		o.Found[0].Machine.Volumes = []cluster.Volume{{Device: "sda4", Disk: "sda", Label: "EPHEMERAL"}}
		o.Nodes = []cluster.KubeNode{{Name: "cp1", ControlPlane: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
		o.Found[0].Node = &o.Nodes[0]
	})
	if single.Plan.Strategy != cluster.InPlace || !strings.Contains(strings.Join(single.Strategies[0].Against, " "), "the only etcd member") {
		t.Errorf("%s: %+v", single.Plan.Strategy, single.Strategies)
	}
	must.Contain(t, "steps", paths(single), "upgrade/install upgrade/reboot wait-healthy finish/eject")
	must.Equal(t, "a fallback", false, strings.Contains(paths(single), "fallback"))
}

func TestExplainHolder(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk1", func(wanted []cluster.Wanted, o *observe.Observation) {
		wanted[1].Holder = 9201
		o.Found[1].VM.Config["scsi1"] = "fast:vm-9201-disk-0,size=20G,serial=data-wk1"
		o.VMs = append(o.VMs, cluster.VM{ID: 9201, Name: "data", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9201-disk-0,size=20G"}})
	})
	must.Equal(t, "strategy", []any{cluster.Recreate, FateDetached}, []any{e.Plan.Strategy, fateIn(e, "scsi1")})
	if !slices.ContainsFunc(e.Steps, func(s StepOutline) bool { return s.Title == "detach scsi1, which stays with VM 9201" }) {
		t.Errorf("%+v", e.Steps)
	}
}

// A node that is up to date is explained by what would be possible; one that is not in the plan is an error.
func TestExplainTheRest(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk2", nil)
	must.Hold(t, e.Turn == 0 && len(e.Steps) == 0 && len(e.Strategies) == 3 && fateIn(e, "scsi0") == FateStays, "%+v", e)
	for _, c := range e.Compared {
		must.Hold(t, c.Same, "%+v", c)
	}
	wanted, o := observetest.World()
	plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}}))(t)
	must.FailAs(t, must.Err(Explain(t.Context(), plan, "wk2", o, clustertest.Past, cluster.Timing{})), fault.Config)
}

// An unfinished replacement is explained as it will be finished: according to its record.
func TestExplainWhatWasBegun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config       bool
		strategy     cluster.Strategy
		scsi0, scsi1 Fate
		step         string
	}{
		"finished": {true, cluster.Recreate, FateReplaced, FateBack, "bring-up/attach/scsi1"},
		"put back": {false, cluster.PutBack, FateBack, FateBack, "put-back/attach/scsi0"},
	} {
		e := explain(t, "wk1", func(_ []cluster.Wanted, o *observe.Observation) {
			packed := must.Get(parking.Memory{VM: *o.Found[1].VM, SystemKey: "scsi0"}.Pack())(t)
			o.Found[1].VM, o.Found[1].Machine, o.Found[1].ConfigKnown = nil, nil, c.config
			o.Found[1].Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: parking.Record{
				Run: "r1", Open: true, Build: "b1", Strategy: cluster.Recreate, VMID: 9002, UUID: "u-wk1", Memory: packed, Disks: []parking.ParkedDisk{
					{Key: "scsi0", ParkKey: "scsi30", Volid: clustertest.Volid(9002, 0), Options: "size=10G", System: true},
					{Key: "scsi1", ParkKey: "scsi1", Volid: clustertest.Volid(9002, 1), Options: "size=20G"},
				},
			}}
		})
		must.Hold(t, e.Plan.Strategy == c.strategy && e.Turn == 1 && len(e.Strategies) == 0 && len(e.Compared) == 0,
			"%s: %s, %+v", name, e.Plan.Strategy, e)
		must.Equal(t, name, []any{c.scsi0, c.scsi1}, []any{fateIn(e, "scsi0"), fateIn(e, "scsi1")})
		if !slices.Contains(strings.Fields(paths(e)), c.step) {
			t.Errorf("%s: no %s in %s", name, c.step, paths(e))
		}
	}
}
