package roll

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/sim/must"
)

// rebootingMachine answers once with the cluster's certificates, and then reboots.
type rebootingMachine struct {
	cluster.Talos
	looks int
}

func (r *rebootingMachine) ReadParts(context.Context, netip.Addr, cluster.MachineParts) (cluster.Machine, error) {
	if r.looks++; r.looks == 2 {
		return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u", Stage: "installing"}}, nil
	}
	return cluster.Machine{}, errors.New("connection refused")
}

// TestConfiguredStaysTrue: the reboot that ends an installation may come between configure's last
// check and the check of its goal.
func TestConfiguredStaysTrue(t *testing.T) {
	t.Parallel()
	n := (&Roller{Roll: &rolling.Roll{Talos: &rebootingMachine{}}}).node(rolling.Node{Plan: planning.NodePlan{UUID: "u"}})
	for look, want := range []string{"", "it answers with the cluster's certificates", "it answers with the cluster's certificates"} {
		must.Equal(t, fmt.Sprint("look ", look+1), want, must.Get(n.configured(t.Context()))(t))
	}
}

// TestBlankMachineOfAnotherKind: a machine that reports another architecture, platform or Secure
// Boot state than wanted is refused. What it does not report is not compared.
func TestBlankMachineOfAnotherKind(t *testing.T) {
	t.Parallel()
	n := (&Roller{}).node(rolling.Node{Plan: planning.NodePlan{UUID: "u1"}, Want: cluster.Wanted{Build: clustertest.WantedBuild()}})
	n.Want.Build.SecureBoot = true
	for name, tc := range map[string]struct {
		change func(*cluster.Machine)
		want   string
	}{
		"as wanted":    {func(m *cluster.Machine) { m.SecureBoot = new(true) }, ""},
		"not reported": {func(m *cluster.Machine) { m.Arch, m.Platform, m.SecureBoot = "", "", nil }, ""},
		"all different": {func(m *cluster.Machine) { m.Arch, m.Platform = "arm64", "metal" }, "what it booted is not what is wanted: architecture arm64 → amd64\n" +
			"what it booted is not what is wanted: platform metal → nocloud\nwhat it booted is not what is wanted: Secure Boot off → on"},
	} {
		m := clustertest.InSync()
		m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "s", Blank: true}}
		tc.change(&m)
		if got := clustertest.Message(n.checkBlank(m, parking.Memory{VM: cluster.VM{Config: map[string]string{"virtio0": "f:vm-1-disk-0"}}, SystemKey: "virtio0", DiskSerial: "s"}, parking.Record{})); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestABlankMachineShowsEachPersistentDiskInItsPlace: otherwise it gets no configuration.
func TestABlankMachineShowsEachPersistentDiskInItsPlace(t *testing.T) {
	t.Parallel()
	lun := func(n string) string { return "/pci0000:00/0000:00:05.0/virtio1/host0/target0:0:0/0:0:0:" + n }
	a, b := cluster.Volume{Device: "sdb1", Disk: "sdb", Label: "u-a", PartitionUUID: "pa", FilesystemUUID: "fa"}, cluster.Volume{Device: "sdc", Disk: "sdc", Format: cluster.FormatLVM, FilesystemLabel: "pv"}
	mem := parking.Memory{
		SystemKey: "scsi0", DiskSerial: "recast-1", Volumes: []cluster.Volume{a, b},
		VM: cluster.VM{ID: 1, Config: map[string]string{
			"scsihw": "virtio-scsi-single", "scsi0": "f:vm-1-disk-0,size=10G", "scsi1": "f:vm-1-disk-1,size=20G", "scsi2": "f:vm-1-disk-2,size=20G", "scsi3": "f:vm-1-disk-3,size=30G",
		}},
		Persistent: []parking.PersistentDisk{{Key: "scsi1", Device: "sdb", SizeBytes: 20 << 30, Blank: false}, {Key: "scsi2", Device: "sdc", SizeBytes: 20 << 30, Blank: false}, {Key: "scsi3", Device: "sdd", SizeBytes: 30 << 30, Blank: true}},
	}
	on := func(device string, v cluster.Volume) cluster.Volume {
		v.Disk, v.Device = device, strings.Replace(v.Device, v.Disk, device, 1)
		return v
	}
	blank := func(volumes ...cluster.Volume) cluster.Machine {
		return cluster.Machine{Volumes: volumes, Disks: []cluster.MachineDisk{
			{Device: "sda", WWID: "naa.37eb0b496c370925", SizeBytes: 10 << 30, Blank: true},
			{Device: "sdb", BusPath: lun("1"), SizeBytes: 20 << 30},
			{Device: "sdc", BusPath: lun("2"), SizeBytes: 20 << 30},
			{Device: "sdd", BusPath: lun("3"), SizeBytes: 30 << 30, Blank: true},
		}}
	}
	disks := func(m cluster.Machine, change func(disks []cluster.MachineDisk)) cluster.Machine {
		change(m.Disks)
		return m
	}
	const swapped = "the persistent volume u-a with partition UUID pa, filesystem UUID fa is on sdc, and not on sdb, which is scsi1\n" +
		"the persistent volume pv with partition UUID none, filesystem UUID none is on sdb, and not on sdc, which is scsi2"
	type testCase struct {
		m          cluster.Machine
		configured bool
		want       string
	}
	must.Each(t, map[string]testCase{
		"as it was":                {m: blank(a, b)},
		"swapped":                  {m: blank(on("sdc", a), on("sdb", b)), want: swapped},
		"another LVM member":       {m: blank(a, cluster.Volume{Device: "sdc", Disk: "sdc", Format: cluster.FormatLVM, FilesystemLabel: "other"}), want: "the persistent volume pv with partition UUID none, filesystem UUID none is missing"},
		"a missing disk":           {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[3].BusPath = lun("7") }), want: "0 disks of the machine are the persistent disk scsi3, expected one"},
		"blank, of another size":   {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[3].SizeBytes = 31 << 30 }), want: "the persistent disk scsi3 is sdd with 33285996544 bytes, and had 32212254720 before"},
		"an enlarged disk":         {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[1].SizeBytes = 31 << 30 })},
		"no longer blank":          {m: disks(blank(a, b, on("sdd", cluster.Volume{Device: "sdd", Label: "u-x"})), func(d []cluster.MachineDisk) { d[3].Blank = false }), want: "the persistent disk scsi3 is sdd, and had no volume before: now it has u-x with partition UUID none, filesystem UUID none"},
		"used by its own node":     {m: disks(blank(a, b, on("sdd", cluster.Volume{Device: "sdd", Label: "u-x"})), func(d []cluster.MachineDisk) { d[3].Blank = false }), configured: true},
		"only now known":           {m: disks(blank(a, b, on("sdd", cluster.Volume{Device: "sdd", Format: "btrfs"})), func(d []cluster.MachineDisk) { d[3].Blank = false })},
		"a partition table on one": {m: disks(blank(a, b), func(d []cluster.MachineDisk) { d[3].Blank = false }), want: "the persistent disk scsi3 is sdd, which is not as it was: blank false, before true"},
	}, func(t *testing.T, tc testCase) {
		must.Equal(t, "got", tc.want, clustertest.Message(errors.Join(mem.WrongBlank(tc.m, tc.configured, false)...)))
	})
}

// oneNode is a Kubernetes with one Node, or with none.
type oneNode struct {
	cluster.Kube
	node cluster.KubeNode
}

func (k oneNode) Node(context.Context, string) (cluster.KubeNode, error) {
	if k.node.Name == "" {
		return k.node, cluster.ErrNotFound
	}
	return k.node, nil
}

// oneVM is a Proxmox that has a single VM.
type oneVM struct {
	cluster.Proxmox
	vm cluster.VM
}

func (p oneVM) VM(context.Context, cluster.VMID) (cluster.VM, error) { return p.vm, nil }

// TestCutOffInstallation: a disk of this run is replaced only if nothing but an interrupted installation can be on it.
func TestCutOffInstallation(t *testing.T) {
	t.Parallel()
	type testCase struct {
		change func(vm *cluster.VM, node *cluster.KubeNode, n *node)
		want   bool
	}
	must.Each(t, map[string]testCase{
		"halted":                       {func(*cluster.VM, *cluster.KubeNode, *node) {}, true},
		"in the run that installed it": {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.Plan.Resume = false }, false},
		"renewed already":              {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.renewed = true }, false},
		"a rollback":                   {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.Plan.Strategy = cluster.Rollback }, false},
		"Ready, but out of our reach":  {func(_ *cluster.VM, node *cluster.KubeNode, _ *node) { node.Ready = true }, false},
		"given back":                   {func(_ *cluster.VM, node *cluster.KubeNode, _ *node) { node.Mark = nil }, false},
		"marked by another run":        {func(_ *cluster.VM, node *cluster.KubeNode, _ *node) { node.Mark = &cluster.Mark{Run: "r2"} }, false},
		"off":                          {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) { vm.Running = false }, false},
		"a VM of another run": {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) {
			vm.Config["description"] = "recast: run=r2 build=b"
		}, false},
		"another VM":              {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) { vm.Config["smbios1"] = "uuid=b" }, false},
		"a disk that is not ours": {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) { vm.Config["scsi0"] = "fast:vm-101-disk-6" }, false},
		"our serial on another VM's one": {func(vm *cluster.VM, _ *cluster.KubeNode, _ *node) {
			vm.Config["scsi0"] = "fast:vm-7-disk-0,serial=blank"
		}, false},
		"new, never joined": {func(_ *cluster.VM, node *cluster.KubeNode, n *node) {
			*node, n.Plan.Strategy = cluster.KubeNode{}, cluster.Create
		}, true},
		"new, has joined": {func(_ *cluster.VM, _ *cluster.KubeNode, n *node) { n.Plan.Strategy = cluster.Create }, false},
		"new, begins etcd": {func(_ *cluster.VM, node *cluster.KubeNode, n *node) {
			*node, n.Plan.Strategy, n.Plan.Bootstraps = cluster.KubeNode{}, cluster.Create, true
		}, false},
		"new, in a rebuild": {func(_ *cluster.VM, node *cluster.KubeNode, n *node) {
			*node, n.Plan.Strategy, n.Plan.Rebuild = cluster.KubeNode{}, cluster.Create, "sum"
		}, false},
	}, func(t *testing.T, c testCase) {
		vm := cluster.VM{ID: 101, Running: true, Config: map[string]string{"smbios1": "uuid=u", "description": "recast: run=r1 build=b", "scsi0": "fast:vm-101-disk-5,serial=blank"}}
		kubeNode := cluster.KubeNode{Name: "wk1", Unschedulable: true, Mark: &cluster.Mark{Run: "r1"}}
		n := (&Roller{Roll: &rolling.Roll{Run: "r1"}}).node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u", Strategy: cluster.Recreate, Resume: true}})
		c.change(&vm, &kubeNode, n)
		n.Kube = oneNode{node: kubeNode}
		r := &exchange.Replace{Proxmox: oneVM{vm: vm}, Run: "r1", VM: cluster.VM{ID: 101}, Disks: []parking.ParkedDisk{{Key: "scsi0", System: true}}, Serial: "blank"}
		must.Equal(t, "cut off", c.want, n.cutOff(t.Context(), r, parking.Memory{}))
	})
}
