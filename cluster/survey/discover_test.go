package survey

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestRequireOneCluster(t *testing.T) {
	t.Parallel()
	members, others := []cluster.Member{{Nodename: "cp1"}, {Nodename: "wk1"}}, []cluster.KubeNode{{Name: "a"}, {Name: "b"}}
	if err := requireOneCluster(members, others); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), "Talos has the nodes cp1, wk1, Kubernetes has a, b") {
		t.Errorf("err = %v", err)
	}
	for name, err := range map[string]error{
		"one in common": requireOneCluster(members, append(others, cluster.KubeNode{Name: "wk1"})), "no kubeconfig": requireOneCluster(members, nil), "no discovery": requireOneCluster(nil, others),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
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
	if _, _, _, err := discoverSources(t.Context(), observe.Sources{Proxmox: noVMs{}, Talos: onlyCP1{}, Kube: onlyA{}}); fault.KindOf(err) != fault.Config {
		t.Errorf("err = %v", err)
	}
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
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: err = %v, want %q", name, err, c.err)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", name, err)
		}
		var keys []string
		for _, p := range d.Persistent {
			keys = append(keys, p.Key)
		}
		if got := strings.Join(keys, " "); got != c.persistent || d.Holder != c.holder || d.System.Key != "scsi0" || d.Unproven != nil {
			t.Errorf("%s: persistent %q of holder %d, system disk %q (%v); want %q, %d, scsi0", name, got, d.Holder, d.System.Key, d.Unproven, c.persistent, c.holder)
		}
	}
}

// TestDiscoveredUnproven: without a proven system disk, the persistent disks are unknown too.
func TestDiscoveredUnproven(t *testing.T) {
	t.Parallel()
	d, vm := discovered(map[string]string{"scsi1": "fast:vm-9201-disk-0,size=20G"})
	d.Machine.SystemDisk = ""
	if err := d.match([]cluster.VM{vm, {ID: 9201, Name: "data", Host: "pve1"}}); err != nil {
		t.Fatal(err)
	}
	if d.Unproven == nil || d.Persistent != nil || len(d.Candidates) != 2 || d.Holder != 9201 {
		t.Errorf("unproven %v, persistent %v, candidates %v, holder %d", d.Unproven, d.Persistent, d.Candidates, d.Holder)
	}
}

func TestDiscoveryUnfinished(t *testing.T) {
	t.Parallel()
	park := func(r parking.Record) cluster.VM {
		text, err := r.Description()
		if err != nil {
			t.Fatal(err)
		}
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
		if err := d.unfinished(); (err != nil) != c.refused || d.Cluster != c.cluster {
			t.Errorf("%s: cluster %q, %v", name, d.Cluster, err)
		}
		p.Config["description"] = strings.Replace(p.Config["description"], `"version":1`, `"version":2`, 1)
		d = Discovery{Nodes: []Discovered{n}, VMs: []cluster.VM{vm, p}}
		if err := d.unfinished(); (err != nil) != (c.record.UUID == discoveredUUID) {
			t.Errorf("%s, by a newer recast: %v", name, err)
		}
	}
}

func TestDiscoveryVersions(t *testing.T) {
	t.Parallel()
	d := Discovery{}
	for _, v := range []string{"v1.9.5", "v1.13.9", "v1.14.0-beta.1", "v1.13.9"} {
		d.Nodes = append(d.Nodes, Discovered{Name: v, Machine: cluster.Machine{RunningSystem: cluster.RunningSystem{TalosVersion: v}}})
	}
	got, err := d.Versions()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"v1.14.0-beta.1", "v1.13.9", "v1.9.5"}, got); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	d.Nodes = append(d.Nodes, Discovered{Name: "odd"})
	if _, err := d.Versions(); err == nil {
		t.Error("a node without a version was taken")
	}
}
