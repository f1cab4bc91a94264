package roll

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// drainedKube is a cluster of one node, whose calls may fail.
type drainedKube struct {
	cluster.Kube
	mark     *cluster.Mark
	fails    map[string]error
	attached []cluster.AttachedVolume
	calls    []string
}

func (k *drainedKube) call(name string) error {
	k.calls = append(k.calls, name)
	return k.fails[name]
}

func (k *drainedKube) Node(context.Context, string) (cluster.KubeNode, error) {
	return cluster.KubeNode{Name: "wk1", UUID: "u1", Mark: k.mark}, nil
}

func (k *drainedKube) Cordon(context.Context, string, cluster.Mark) error { return k.call("cordon") }

func (k *drainedKube) Uncordon(context.Context, string) error { return k.call("uncordon") }

func (k *drainedKube) Drain(context.Context, string, cluster.DrainOptions, func(string)) error {
	return k.call("drain")
}

func (k *drainedKube) WatchDetached(context.Context, string, func(bool)) error {
	return errors.New("no watches")
}

func (k *drainedKube) AttachedVolumes(context.Context, string) ([]cluster.AttachedVolume, error) {
	return k.attached, k.call("attached")
}

// machineIs is one machine.
type machineIs struct {
	cluster.Talos
	now func() (cluster.Machine, error)
}

func (s machineIs) ReadParts(_ context.Context, _ netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	m, err := s.now()
	return clustertest.Parts(m, parts), err
}

// runningVMs is a Proxmox whose VMs run.
type runningVMs struct{ cluster.Proxmox }

func (runningVMs) VMState(_ context.Context, id cluster.VMID) (cluster.VMState, error) {
	return cluster.VMState{ID: id, Running: true}, nil
}

// drainedNode is the node wk1, whose wanted build is "new".
func drainedNode(k *drainedKube) *node {
	booted := machineIs{now: func() (cluster.Machine, error) {
		return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u1"}, Nodename: "wk1", BootID: "b1"}, nil
	}}
	r := &Roller{Roll: &rolling.Roll{Kube: k, Talos: booted, Proxmox: runningVMs{}, Run: "r2", Timing: cluster.Timing{Poll: time.Second, Drain: time.Minute}, Say: func(string, string) {}}}
	return r.node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u1", VMID: 9031}, Want: cluster.Wanted{Build: cluster.Build{ID: "new"}}})
}

// TestDrainInPlaceKeepsTheMarkOfAnInstalledSystem: if a drain fails after the new system is
// installed, the node stays cordoned, because only its mark says so.
func TestDrainInPlaceKeepsTheMarkOfAnInstalledSystem(t *testing.T) {
	t.Parallel()
	begun := cluster.Mark{Run: "r1", Strategy: cluster.InPlace, Build: "new", BootID: "b1"}
	installed, earlier := begun, begun
	installed.Installed, earlier.Installed, earlier.BootID = true, true, "b0"
	const again = "the new system is installed on wk1 already"
	type testCase struct {
		mark  *cluster.Mark
		calls []string
		hint  bool
	}
	must.Each(t, map[string]testCase{
		"no mark":              {nil, []string{"cordon", "drain", "uncordon"}, false},
		"nothing installed":    {&begun, []string{"cordon", "drain", "uncordon"}, false},
		"installed":            {&installed, []string{"cordon", "drain"}, true},
		"installed and booted": {&earlier, []string{"cordon", "drain", "uncordon"}, false},
	}, func(t *testing.T, c testCase) {
		budget := errors.New("pods left")
		k := &drainedKube{mark: c.mark, fails: map[string]error{"drain": budget}}
		err := (&inPlace{node: drainedNode(k)}).drainMarked(t.Context())
		must.Hold(t, errors.Is(err, budget) && strings.Contains(strings.Join(fault.Hints(err), "\n"), again) == c.hint,
			"%v, hints %q", err, fault.Hints(err))
		must.Equal(t, "calls", c.calls, k.calls)
	})
}

// TestEvictBacksOutOfACordon: a cordon that failed may still have taken effect.
func TestEvictBacksOutOfACordon(t *testing.T) {
	t.Parallel()
	type testCase struct {
		cordon error
		backs  bool
	}
	must.Each(t, map[string]testCase{
		"it failed":         {errors.New("etcdserver: request timed out"), true},
		"the claim is lost": {fault.As(fault.Claimed, errors.New("another run has it")), false},
	}, func(t *testing.T, c testCase) {
		k := &drainedKube{fails: map[string]error{"cordon": c.cordon}}
		empty := func(context.Context, time.Time) error { t.Error("not drained, and yet empty"); return nil }
		backs := false
		err := drainedNode(k).evict(t.Context(), "take-down/drain", cluster.Mark{}, empty, func() error { backs = true; return nil })
		must.Hold(t, errors.Is(err, c.cordon) && backs == c.backs && !slices.Contains(k.calls, "drain"),
			"%v, backed out: %t, calls %q", err, backs, k.calls)
	})
}

// TestOwnPodIsEvicted: the node stays cordoned for the run that goes on with it.
func TestOwnPodIsEvicted(t *testing.T) {
	t.Parallel()
	k := &drainedKube{fails: map[string]error{"drain": fault.As(fault.Interrupted, errors.New("this run's own pod was evicted"))}}
	empty := func(context.Context, time.Time) error { t.Error("not drained, and yet empty"); return nil }
	err := drainedNode(k).evict(t.Context(), "take-down/drain", cluster.Mark{}, empty, func() error { t.Error("it backed out"); return nil })
	must.Hold(t, fault.KindOf(err) == fault.Interrupted && !cluster.IsUnanswered(err),
		"%v (kind %d)", err, fault.KindOf(err))
	must.Equal(t, "calls", []string{"cordon", "drain"}, k.calls)
}

// TestAwaitDetached: we don't wait for volumes of pods that a drain leaves in place.
func TestAwaitDetached(t *testing.T) {
	t.Parallel()
	stays := cluster.AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Claim: "csi/agent", Driver: "csi.example.com", User: "DaemonSet pod csi/agent-x"}
	goes := cluster.AttachedVolume{Attachment: "csi-2b", Volume: "pv-2", Claim: "shop/data", Driver: "csi.example.com"}
	type testCase struct {
		attached []cluster.AttachedVolume
		want     string // "": there is no wait
	}
	must.Bubbles(t, map[string]testCase{
		"none":        {nil, ""},
		"one stays":   {[]cluster.AttachedVolume{stays}, ""},
		"one is left": {[]cluster.AttachedVolume{stays, goes}, "last seen: still attached: PersistentVolume pv-2 (claim shop/data, driver csi.example.com): "},
	}, func(t *testing.T, c testCase) {
		n := drainedNode(&drainedKube{attached: c.attached})
		must.Fail(t, n.awaitDetached(t.Context(), "take-down/drain", time.Minute), c.want)
	})
}

// TestDisksStay: the hint names the pod that uses a disk, and blames the driver only for disks that no pod uses.
func TestDisksStay(t *testing.T) {
	t.Parallel()
	used := cluster.AttachedVolume{Attachment: "csi-1a", Volume: "pvc-0b5f", Driver: "csi.proxmox.sinextra.dev", Handle: "cluster-1/pve1/fast/vm-9999-pvc-0b5f", User: "DaemonSet pod csi/agent-x"}
	other := used
	other.Handle = "0001-0009-rook-ceph-0000000000000001-0b5f"
	disk := func(key, volid string) cluster.Disk { return cluster.Disk{Key: key, Volid: volid} }
	const keep, lost = "which DaemonSet pod csi/agent-x uses", "its driver lost track"
	type testCase struct {
		attached []cluster.AttachedVolume
		disks    []cluster.Disk
		keep     bool
		lost     bool
	}
	must.Each(t, map[string]testCase{
		"used by no pod":     {nil, []cluster.Disk{disk("scsi7", "fast:vm-9999-pvc-0b5f")}, false, true},
		"a DaemonSet's":      {[]cluster.AttachedVolume{used}, []cluster.Disk{disk("scsi7", "fast:vm-9999-pvc-0b5f")}, true, false},
		"in a file":          {[]cluster.AttachedVolume{used}, []cluster.Disk{disk("scsi7", "fast:9999/vm-9999-pvc-0b5f.raw")}, true, false},
		"one of each":        {[]cluster.AttachedVolume{used}, []cluster.Disk{disk("scsi6", "fast:vm-9999-pvc-77"), disk("scsi7", "fast:vm-9999-pvc-0b5f")}, true, true},
		"of another storage": {[]cluster.AttachedVolume{other}, []cluster.Disk{disk("scsi7", "fast:vm-9999-pvc-0b5f")}, false, true},
		"of a drained pod":   {[]cluster.AttachedVolume{{Handle: used.Handle}}, []cluster.Disk{disk("scsi7", "fast:vm-9999-pvc-0b5f")}, false, true},
	}, func(t *testing.T, c testCase) {
		err := drainedNode(&drainedKube{attached: c.attached}).disksStay(t.Context(), c.disks, errors.New("still there"))
		hints := strings.Join(fault.Hints(err), "\n")
		must.Hold(t, strings.Contains(hints, keep) == c.keep && strings.Contains(hints, lost) == c.lost,
			"hints %q", fault.Hints(err))
	})
}

// TestConfiguredStaysTrue: the reboot that ends an installation may come between configure's last
// check and the check of its goal.
func TestConfiguredStaysTrue(t *testing.T) {
	t.Parallel()
	looks := 0
	rebooting := machineIs{now: func() (cluster.Machine, error) { // it answers once
		if looks++; looks == 2 {
			return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u", Stage: "installing"}}, nil
		}
		return cluster.Machine{}, errors.New("connection refused")
	}}
	n := (&Roller{Roll: &rolling.Roll{Talos: rebooting}}).node(rolling.Node{Plan: planning.NodePlan{UUID: "u"}})
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
		got := clustertest.Message(n.checkBlank(m, parking.Memory{VM: cluster.VM{Config: map[string]string{"virtio0": "f:vm-1-disk-0"}}, SystemKey: "virtio0", DiskSerial: "s"}, parking.Record{}))
		must.Hold(t, got == tc.want, "%s: %s", name, got)
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

// TestSettledIsRevoked: a sign that another system runs revokes that a node has settled; a failed read does not.
func TestSettledIsRevoked(t *testing.T) {
	t.Parallel()
	type testCase struct {
		just  bool // the wait has just ended
		lacks string
		err   error
		want  bool
	}
	must.Each(t, map[string]testCase{
		"it was just seen":     {just: true, lacks: "not asked", want: true},
		"nothing is missing":   {want: true},
		"something is missing": {lacks: "its Node is not Ready"},
		"no answer":            {err: errors.New("connection refused"), want: true},
		"its old system":       {err: fmt.Errorf("%w: v1 → v2", errRolledBack)},
		"another system":       {err: fmt.Errorf("%w: v1 → v2", errOtherSystem)},
	}, func(t *testing.T, c testCase) {
		n := (&Roller{}).node(rolling.Node{})
		n.settledAt = time.Now().Add(-rolling.JustNow)
		if c.just {
			n.settledAt = time.Now()
		}
		got, err := n.settled(t.Context(), func(context.Context) (string, error) { return c.lacks, c.err })
		must.Pass(t, err)
		must.Equal(t, "waits", c.want, got != "")
	})
}

// TestApplyHints: the hint that a machine waits for a configuration is given only if it has refused one.
func TestApplyHints(t *testing.T) {
	t.Parallel()
	type testCase struct {
		answer error
		waits  bool
	}
	must.Each(t, map[string]testCase{
		"refused": {fault.Refusedf("unknown keys"), true},
		"lost":    {fmt.Errorf("apply: %w", cluster.ErrLostAnswer), false},
	}, func(t *testing.T, c testCase) {
		s := rollingtest.NewScene()
		all(begun, saved, fails("apply", c.answer))(s)
		s.Ready()
		err := nodeOf(s).applyToBlank(t.Context(), cluster.Proof{}, cluster.MachineDisk{}, cluster.KubernetesImages{})
		must.Hold(t, errors.Is(err, c.answer) && strings.Contains(strings.Join(fault.Hints(err), "\n"), "waits in maintenance mode for another one") == c.waits,
			"%v, %q", err, fault.Hints(err))
	})
}

// TestRunsWantedIsSeenOnce: a positive result is reused for a moment; a negative one is not,
// because the next check may follow a change.
func TestRunsWantedIsSeenOnce(t *testing.T) {
	t.Parallel()
	b := clustertest.WantedBuild()
	right := clustertest.InSync()
	old := right
	old.TalosVersion = "v1.0.0"
	type testCase struct {
		machine cluster.Machine
		pause   time.Duration
		want    bool
		asked   int
	}
	must.Bubbles(t, map[string]testCase{
		"it does":         {machine: right, want: true, asked: 1},
		"it did":          {machine: right, pause: rolling.JustNow, want: true, asked: 2},
		"it does not yet": {machine: old, asked: 2},
	}, func(t *testing.T, c testCase) {
		asked := 0
		machine := machineIs{now: func() (cluster.Machine, error) { asked++; return c.machine, nil }}
		unmarked := oneNode{node: cluster.KubeNode{Name: "wk1"}}
		r := &Roller{Roll: &rolling.Roll{Talos: machine, Kube: unmarked}, History: func(string) (cluster.LockedContent, bool) { return cluster.LockedContent{}, false }}
		n := &inPlace{node: r.node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u1"}, Want: cluster.Wanted{Build: b}})}
		for range 2 {
			must.Equal(t, "runs the wanted build", c.want, must.Get(n.runsWanted(t.Context()))(t) != "")
			time.Sleep(c.pause)
		}
		must.Equal(t, "asked", c.asked, asked)
	})
}

// TestISOIsNoBootEntry: a system that runs from an ISO has not booted the old disk, whatever entry it reports.
func TestISOIsNoBootEntry(t *testing.T) {
	t.Parallel()
	iso := machineIs{now: func() (cluster.Machine, error) {
		return cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u", Stage: "running"}, RunningSystem: cluster.RunningSystem{FromISO: true}}, nil
	}}
	n := (&Roller{Roll: &rolling.Roll{Talos: iso, Journal: keptMemory{}, Timing: cluster.Timing{Poll: time.Second}}}).node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", UUID: "u"}})
	s := n.bootEntryStep(func(parking.Memory) string { return "talos-v1.14.1.efi" })
	must.Equal(t, "reason to skip", "", must.Get(s.Skip(t.Context()))(t))
}

// keptMemory is a journal that remembers a node.
type keptMemory struct{ rolling.Journal }

func (keptMemory) Get(string, any) (bool, error) { return true, nil }

// parkingPlace is a Proxmox that has some VMs and creates more.
type parkingPlace struct {
	cluster.Proxmox
	taken  []cluster.VMID
	late   map[cluster.VMID]string // records of parking VMs that an earlier request creates before we do
	ready  time.Time               // when a late one is created: until then it is locked
	killed bool                    // the task that creates it was killed
	looked int
}

func (p *parkingPlace) OwnTasksOf(context.Context, string, cluster.VMID) ([]string, error) {
	if p.killed || time.Now().After(p.ready) {
		return nil, nil
	}
	return []string{"qmcreate"}, nil
}

func (p *parkingPlace) VMConfig(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	p.looked++
	if !slices.Contains(p.taken, id) {
		return cluster.VM{}, cluster.ErrNotFound
	}
	if time.Now().Before(p.ready) {
		return cluster.VM{ID: id, Host: "pve1", Lock: "create"}, nil
	}
	return cluster.VM{ID: id, Host: "pve1", Config: map[string]string{"description": p.late[id]}}, nil
}

func (p *parkingPlace) CreateVM(_ context.Context, _ string, id cluster.VMID, _ map[string]string) error {
	p.taken = append(p.taken, id)
	if p.late[id] != "" {
		return cluster.ErrExists
	}
	return nil
}

func (p *parkingPlace) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, _ []string) error {
	p.late[vm.ID] = set["description"]
	return nil
}

// TestNumbersOfParkingVMs: a VMID that was taken for one parking VM is not tried again for the
// next, unless no other is left.
func TestNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	px := &parkingPlace{taken: []cluster.VMID{9001, 9003}}
	ids := []cluster.VMID{9001, 9002, 9003, 9004, 9005}
	var numbers parking.Numbers
	for i, c := range []struct {
		freed, want cluster.VMID
		looks       int
	}{{0, 9002, 2}, {0, 9004, 2}, {0, 9005, 1}, {9003, 9003, 2}} {
		px.taken = slices.DeleteFunc(px.taken, func(id cluster.VMID) bool { return id == c.freed })
		px.looked = 0
		got, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, parking.Record{Node: fmt.Sprint("wk", i)}, ids, &numbers, noted)
		must.Hold(t, err == nil && got == c.want && px.looked == c.looks,
			"took %d after %d looks, want %d after %d: %v", got, px.looked, c.want, c.looks, err)
	}
	if id, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, parking.Record{}, ids, &numbers, noted); err == nil {
		t.Errorf("took %d", id)
	}
}

func noted(cluster.VMID) error { return nil }

// TestLateParkingVMs: an earlier request may create a parking VM late, just when another node is
// about to use its VMID. The VM stays with its own node.
func TestLateParkingVMs(t *testing.T) {
	t.Parallel()
	record := func(node string) parking.Record {
		return parking.Record{Cluster: "lab", Node: node, Run: "r2", Build: "b", VMID: 9032, UUID: "u", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	}
	text := must.Get(record("wk2").Description())(t)
	px := &parkingPlace{late: map[cluster.VMID]string{9001: text}}
	var numbers parking.Numbers
	for _, c := range []struct {
		node string
		want cluster.VMID
	}{{"wk1", 9002}, {"wk2", 9001}, {"wk3", 9003}} {
		got, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, record(c.node), []cluster.VMID{9001, 9002, 9003}, &numbers, noted)
		must.Pass(t, err)
		must.Equal(t, c.node+" took", c.want, got)
	}
	must.Contain(t, "the record", px.late[9001], `"node":"wk2"`)
}

// TestSlowParkingVM: while the task that creates it runs, we wait, so that the node does not get a
// second one. If the task was killed, we wait only briefly.
func TestSlowParkingVM(t *testing.T) {
	t.Parallel()
	rec := parking.Record{Cluster: "lab", Node: "wk1", Run: "r2", Build: "b", VMID: 9031, UUID: "u", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	text := must.Get(rec.Description())(t)
	type testCase struct {
		killed bool
		want   cluster.VMID
		after  time.Duration
	}
	must.Bubbles(t, map[string]testCase{
		"it runs":       {false, 9001, 3*time.Minute + time.Second},
		"it was killed": {true, 9002, 31 * time.Second},
	}, func(t *testing.T, c testCase) {
		begun := time.Now()
		px := &parkingPlace{taken: []cluster.VMID{9001}, late: map[cluster.VMID]string{9001: text}, ready: begun.Add(3 * time.Minute), killed: c.killed}
		var numbers parking.Numbers
		got, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, rec, []cluster.VMID{9001, 9002}, &numbers, noted)
		must.Hold(t, err == nil && got == c.want && time.Since(begun) <= c.after,
			"took %d after %s, want %d within %s: %v", got, time.Since(begun), c.want, c.after, err)
	})
}

// TestTouchedBy: tasks of an earlier run concern only VMs of its own cluster.
func TestTouchedBy(t *testing.T) {
	t.Parallel()
	held := clustertest.Edited(clustertest.Park(9901, "pve1", "wk2"), func(p *parking.Parking) {
		p.Record.VMID, p.Record.Disks = 102, []parking.ParkedDisk{{Key: "scsi1", Holder: 200}}
	})
	theirs := clustertest.Edited(clustertest.Park(7901, "pve1", "wk1"), func(p *parking.Parking) { p.Record.Cluster, p.Record.VMID = "another", 301 })
	vms := []cluster.VM{{ID: 101, Name: "wk1"}, {ID: 301, Name: "their-wk1"}}
	for _, p := range []parking.Parking{held, theirs} {
		text := must.Get(p.Record.Description())(t)
		vms = append(vms, cluster.VM{ID: p.VM.ID, Config: map[string]string{"description": text}})
	}
	of := must.Get(exchange.TouchedBy(vms, held.Record.Cluster, []cluster.Wanted{{Name: "wk1"}, {Name: "wk3", VMID: 103, Holder: 201}}, func(id cluster.VMID) bool { return id == 9000 }))(t)
	var got []cluster.VMID
	for _, id := range []cluster.VMID{101, 102, 103, 200, 201, 301, 7901, 9000, 9001, 9901} {
		if of(id) {
			got = append(got, id)
		}
	}
	must.Equal(t, "VMs", []cluster.VMID{101, 102, 103, 200, 201, 9000, 9901}, got)
}

func TestPlanOfANodeOnAHostThatIsAway(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	o.VMs, o.Away = o.VMs[:2], &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}}, VMs: []cluster.VM{{ID: 9003, Host: "pve2"}}}
	o.Nodes = []cluster.KubeNode{{Name: "wk2", UUID: "u-wk2", Ready: true}}
	type testCase struct {
		vmid  cluster.VMID
		where string
	}
	must.Each(t, map[string]testCase{
		"which VM is known":     {9003, "its VM 9003 is on pve2"},
		"which VM is not known": {0, "its VM, or the parking VM with disks of it, is not among those that can be read"},
	}, func(t *testing.T, tc testCase) {
		o, wanted := o, append([]cluster.Wanted(nil), wanted...)
		o.Found = append([]observe.Found(nil), o.Found...)
		wanted[2].VMID = tc.vmid
		o.Found[2] = must.Get(observe.MatchNodes(wanted[2], &o, nil))(t)
		plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{}))(t)
		want := []string{"wk2: " + tc.where + ", and Proxmox host pve2 is offline: bring pve2 back, or leave the node out with --exclude"}
		diff := cmp.Diff(want, plan.Refused())
		must.Hold(t, diff == "" && plan.Nodes[2].Host == "pve2", "host %s: %s", plan.Nodes[2].Host, diff)
		_, _, err := planning.ForUndo(t.Context(), "c1", wanted, o, nil, nil, planning.Policy{Only: []string{"wk2"}}, planning.Undone{Way: planning.Cancel})
		must.Hold(t, fault.KindOf(err) == fault.Refused && err.Error() == "node wk2: no VM that can be read has its SMBIOS UUID u-wk2: Proxmox host pve2 is offline, so VM 9003 can't be read",
			"cancel: %v", err)
		drift := plan.Nodes[2].Drift
		must.Hold(t, !drift.Stale && len(drift.Unread) == 1, "drift %+v", drift)
	})
}

// TestFallbackISOIsPublished: if a later upgrade in place fails, the node is reimaged to the build
// that this upgrade installs, so the ISO of that build must be published.
func TestFallbackISOIsPublished(t *testing.T) {
	t.Parallel()
	for policy, want := range map[cluster.BootFailure]int{cluster.StopOnBootFailure: 0, cluster.RollbackOnBootFailure: 0, cluster.ReimageOnBootFailure: 1} {
		wanted, o := observetest.World()
		wanted[1].Strategy = cluster.InPlace
		plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}, BootFailure: policy}))(t)
		must.Equal(t, string(policy)+": hosts the ISO goes to", want, len(plan.ISOHosts()))
	}
}

// TestProving: a VM that boots blank gets a SKU number of ours; a person's stays.
func TestProving(t *testing.T) {
	must.Each(t, map[string]int{"uuid=u": 1, "uuid=u,sku=" + rollingtest.SKU: 1, "uuid=u,sku=mine": 0}, func(t *testing.T, writes int) {
		_, smbios, _ := strings.Cut(t.Name(), "/")
		s := rollingtest.NewScene()
		s.PX.Change(101, func(vm *cluster.VM) { vm.Config["smbios1"] = smbios })
		vm := must.Get(s.PX.VM(t.Context(), 101))(t)
		must.Do(t, nodeOf(s).proving(t.Context(), &vm))
		now := must.Get(s.PX.VM(t.Context(), 101))(t)
		must.Equal(t, "smbios1", vm.Config["smbios1"], now.Config["smbios1"])
		must.Equal(t, "it was left alone", writes == 0, now.Config["smbios1"] == smbios)
		must.Equal(t, "it proves itself", writes > 0, now.Proof() != "")
	})
}
