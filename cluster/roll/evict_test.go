package roll

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
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

// bootedTalos is a machine whose boot ID is b1.
type bootedTalos struct{ cluster.Talos }

func (bootedTalos) ReadParts(_ context.Context, _ netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	return clustertest.Parts(cluster.Machine{MachineStanding: cluster.MachineStanding{UUID: "u1"}, Nodename: "wk1", BootID: "b1"}, parts), nil
}

// runningVMs is a Proxmox whose VMs run.
type runningVMs struct{ cluster.Proxmox }

func (runningVMs) VMState(_ context.Context, id cluster.VMID) (cluster.VMState, error) {
	return cluster.VMState{ID: id, Running: true}, nil
}

// drainedNode is the node wk1, whose wanted build is "new".
func drainedNode(k *drainedKube) *node {
	r := &Roller{Roll: &rolling.Roll{Kube: k, Talos: bootedTalos{}, Proxmox: runningVMs{}, Run: "r2", Timing: cluster.Timing{Poll: time.Second, Drain: time.Minute}, Say: func(string, string) {}}}
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
		if !errors.Is(err, budget) || strings.Contains(strings.Join(fault.Hints(err), "\n"), again) != c.hint {
			t.Errorf("%v, hints %q", err, fault.Hints(err))
		}
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
		if !errors.Is(err, c.cordon) || backs != c.backs || slices.Contains(k.calls, "drain") {
			t.Errorf("%v, backed out: %t, calls %q", err, backs, k.calls)
		}
	})
}

// TestOwnPodIsEvicted: the node stays cordoned for the run that goes on with it.
func TestOwnPodIsEvicted(t *testing.T) {
	t.Parallel()
	k := &drainedKube{fails: map[string]error{"drain": fault.As(fault.Interrupted, errors.New("this run's own pod was evicted"))}}
	empty := func(context.Context, time.Time) error { t.Error("not drained, and yet empty"); return nil }
	err := drainedNode(k).evict(t.Context(), "take-down/drain", cluster.Mark{}, empty, func() error { t.Error("it backed out"); return nil })
	if fault.KindOf(err) != fault.Interrupted || cluster.IsUnanswered(err) {
		t.Errorf("%v (kind %d)", err, fault.KindOf(err))
	}
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
		if strings.Contains(hints, keep) != c.keep || strings.Contains(hints, lost) != c.lost {
			t.Errorf("hints %q", fault.Hints(err))
		}
	})
}
