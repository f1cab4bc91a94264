package survey

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// machines answers for the addresses that are on.
type machines struct {
	cluster.Talos
	members []cluster.Member
	on      map[netip.Addr]cluster.Machine
}

func (m machines) Members(context.Context) ([]cluster.Member, error) { return m.members, nil }

func (m machines) ReadParts(_ context.Context, addr netip.Addr, _ cluster.MachineParts) (cluster.Machine, error) {
	if found, ok := m.on[addr]; ok {
		return found, nil
	}
	return cluster.Machine{}, fmt.Errorf("%s: %w", addr, errors.New("connection refused"))
}

// listing lists VMs, or Kubernetes nodes.
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
	for name, tc := range map[string]struct {
		members []cluster.Member
		kube    cluster.Kube
		on      map[netip.Addr]cluster.Machine
		addrs   []netip.Addr
		silent  []netip.Addr
		nodes   string
		err     string
		hint    string
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := observe.Sources{Proxmox: listing{vms: vms}, Talos: machines{members: tc.members, on: tc.on}, Kube: tc.kube}
			got, err := Discover(t.Context(), src, DiscoverOptions{Addrs: tc.addrs})
			if said := fmt.Sprint(err); tc.err != "" {
				if !strings.Contains(said, tc.err) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), tc.hint) {
					t.Errorf("err = %s, %q; want %q, %q", said, fault.Hints(err), tc.err, tc.hint)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, n := range got.Nodes {
				names = append(names, n.Name)
			}
			if diff := cmp.Diff(tc.nodes, strings.Join(names, " ")); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(fmt.Sprint(tc.silent), fmt.Sprint(got.Silent)); diff != "" {
				t.Errorf("silent (-want +got):\n%s", diff)
			}
		})
	}
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
		text, err := r.Description()
		if err != nil {
			t.Fatal(err)
		}
		return cluster.VM{ID: id, Name: "recast-parking", Host: "pve1", Config: map[string]string{"description": text}}
	}
	claim := func(id cluster.VMID, name string) cluster.VM {
		text, err := claim.State{Cluster: name, Run: "r1"}.Description()
		if err != nil {
			t.Fatal(err)
		}
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
		if fmt.Sprint(got) != tc.want {
			t.Errorf("of cluster %s, once %q: %v, want %s", tc.cluster, tc.learned, got, tc.want)
		}
	}
	if !IsClaim(d.VMs[1]) || IsClaim(d.VMs[3]) {
		t.Error("a claim is taken for a parking VM, or the other way round")
	}
}
