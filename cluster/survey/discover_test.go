package survey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
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

// These are of two clusters.
type (
	noVMs   struct{ cluster.Proxmox }
	onlyCP1 struct{ cluster.Talos }
	onlyA   struct{ cluster.Kube }
)

func (noVMs) VMs(context.Context) ([]cluster.VM, error) { return nil, nil }

func (onlyCP1) Members(context.Context) ([]cluster.Member, error) {
	return []cluster.Member{{Nodename: "cp1"}}, nil
}

func (onlyA) Nodes(context.Context) ([]cluster.KubeNode, error) {
	return []cluster.KubeNode{{Name: "a"}}, nil
}

func TestTwoClustersAreNotDiscovered(t *testing.T) {
	t.Parallel()
	_, _, _, err := discoverSources(t.Context(), observe.Sources{Proxmox: noVMs{}, Talos: onlyCP1{}, Kube: onlyA{}})
	must.FailAs(t, err, fault.Config)
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
		var keys []string
		for _, p := range d.Persistent {
			keys = append(keys, p.Key)
		}
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
	if d.Unproven == nil || d.Persistent != nil || len(d.Candidates) != 2 || d.Holder != 9201 {
		t.Errorf("unproven %v, persistent %v, candidates %v, holder %d", d.Unproven, d.Persistent, d.Candidates, d.Holder)
	}
}

func TestDiscoveryUnfinished(t *testing.T) {
	t.Parallel()
	park := func(r parking.Record) cluster.VM {
		text := must.Get(r.Description())(t)
		return cluster.VM{ID: 9101, Name: "recast-parking", Host: "pve1", Config: map[string]string{"description": text}}
	}
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
		p := park(c.record)
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
}

func (l listing) VMs(context.Context) ([]cluster.VM, error) { return l.vms, nil }

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
	type row struct {
		members []cluster.Member
		kube    cluster.Kube
		on      map[netip.Addr]cluster.Machine
		addrs   []netip.Addr
		silent  []netip.Addr
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
		"nowhere":                          {members: members, on: map[netip.Addr]cluster.Machine{a: machine("cp1")}, addrs: []netip.Addr{d}, err: "node wk1: read its machine", hint: "--exclude wk1"},
	}, func(t *testing.T, tc row) {
		src := observe.Sources{Proxmox: listing{vms: vms}, Talos: machines{members: tc.members, on: tc.on}, Kube: tc.kube}
		got, err := Discover(t.Context(), src, DiscoverOptions{Addrs: tc.addrs})
		if said := fmt.Sprint(err); tc.err != "" {
			if !strings.Contains(said, tc.err) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), tc.hint) {
				t.Errorf("err = %s, %q; want %q, %q", said, fault.Hints(err), tc.err, tc.hint)
			}
			return
		}
		must.Do(t, err)
		var names []string
		for _, n := range got.Nodes {
			names = append(names, n.Name)
		}
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
	park := func(id cluster.VMID, r parking.Record) cluster.VM {
		text := must.Get(r.Description())(t)
		return cluster.VM{ID: id, Name: "recast-parking", Host: "pve1", Config: map[string]string{"description": text}}
	}
	claim := func(id cluster.VMID, name string) cluster.VM {
		text := must.Get(claim.State{Cluster: name, Run: "r1"}.Description())(t)
		return cluster.VM{ID: id, Name: claim.VMName, Host: "pve1", Config: map[string]string{"description": text}}
	}
	d := Discovery{uuids: []string{discoveredUUID}, VMs: []cluster.VM{
		{ID: 101, Name: "wk1"},
		claim(9000, "homelab"), claim(9100, "other"),
		park(9001, parking.Record{Cluster: "former", Node: "wk1", UUID: discoveredUUID}),
		park(9002, parking.Record{Cluster: "homelab", Node: "gone", UUID: "x"}),
		park(9101, parking.Record{Cluster: "other", Node: "wk1", UUID: "y"}),
		{ID: 9102, Config: map[string]string{"description": parking.RecordMark + "{"}},
	}}
	newer := d.VMs[3].Config
	newer["description"] = strings.Replace(newer["description"], `{"version":1,`, `{"version":2,"also":true,`, 1)
	for _, tc := range []struct{ cluster, learned, want string }{
		{"homelab", "", "[9000 9001 9002]"}, {"new", "", "[9001]"}, {"new", "homelab", "[9000 9001 9002]"}, {"other", "", "[9100 9001 9101]"},
	} {
		d.Cluster = tc.learned
		var got []cluster.VMID
		for _, vm := range d.Own(tc.cluster) {
			got = append(got, vm.ID)
		}
		must.Equal(t, "claims", tc.want, fmt.Sprint(got))
	}
	must.Equal(t, "a claim, and a parking VM, are claims", []bool{true, false}, []bool{IsClaim(d.VMs[1]), IsClaim(d.VMs[3])})
}
