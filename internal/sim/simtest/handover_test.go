package simtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// window is an unfinished hand-over of a disk: Proxmox's worker ends between two of its
// three actions, or the volume is renamed and neither configuration can be written.
type window struct {
	move     int // which of the roll's hand-overs
	stop     world.MoveStage
	crash    bool // the host crashes too
	noQuorum bool // that is why
	journal  bool
}

// The hand-overs of wk1: the EFI variables, the system disk and the data disk are parked,
// the first and the last are returned.
const (
	parksSystem  = 2
	parksData    = 3
	attachesData = 5
)

// beforeMove calls f before the n-th move_disk of one of wk1's disks: scratch VMs hand volumes over, too.
func (l *Lab) beforeMove(n int, f func()) {
	var mu sync.Mutex
	seen := 0
	l.Recorder.Hooks(func(call record.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if call.Method == "POST" && strings.HasSuffix(call.Path, "/move_disk") && (strings.Contains(call.Path, "/9031/") || call.Params["target-vmid"] == "9031") {
			if seen++; seen == n {
				f()
			}
		}
		return nil
	}, nil)
}

// interrupt rolls wk1 into the window.
func (w window) interrupt(t *testing.T, lab *Lab) error {
	t.Helper()
	lab.beforeMove(w.move, func() {
		if w.noQuorum {
			lab.World.SetQuorum(false)
			return
		}
		lab.World.StopNextMove(w.stop, w.crash)
	})
	defer lab.Recorder.Hooks(nil, nil)
	c := lab.Client()
	err := c.roll(onlyWorker)(t.Context())
	if err == nil {
		t.Fatal("the roll succeeded")
	}
	c.Kill()
	if w.noQuorum {
		lab.World.SetQuorum(true)
	}
	lab.World.BootHost("pve1")
	return err
}

// TestCutOffHandOver: a volume that lost its name in a hand-over is found and named again,
// and the roll completes normally. TestMatrix does this in every hand-over of an exchange.
func TestCutOffHandOver(t *testing.T) {
	long(t)
	t.Parallel()
	ref := resumption{strategy: cluster.Recreate, node: "wk1"}.undisturbed(t)
	options := func(window) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, Talos: ref.secrets} }
	eachIn(t, options, map[string]window{
		"park the system disk, after the rename":                   {move: parksSystem, stop: world.AfterRename, journal: true},
		"park the data disk, after the rename, the host crashes":   {move: parksData, stop: world.AfterRename, crash: true},
		"park the data disk, after the source":                     {move: parksData, stop: world.AfterSource, journal: true},
		"attach the data disk, after the rename":                   {move: attachesData, stop: world.AfterRename},
		"attach the data disk, after the source, the host crashes": {move: attachesData, stop: world.AfterSource, crash: true, journal: true},
		"park the data disk, no quorum":                            {move: parksData, noQuorum: true, journal: true},
		"attach the data disk, no quorum":                          {move: attachesData, noQuorum: true, journal: true},
	}, func(t *testing.T, lab *Lab, w window) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		if err := w.interrupt(t, lab); !strings.Contains(err.Error(), "hand ") {
			t.Errorf("the first roll: %v", err)
		}
		if len(lab.strays()) != 1 {
			t.Fatalf("without a name: %q", lab.strays())
		}
		lab.waitReady(t)
		if !w.journal {
			lab.loseJournal()
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.RequireIntact()
		if diff := cmp.Diff(ref.dump, lab.settledDump()); diff != "" {
			t.Errorf("the world differs from an undisturbed one:\n%s", diff)
		}
		lab.requireKept(1)
	})
}

// waitReady waits until the control plane is back after its host was down.
func (l *Lab) waitReady(t *testing.T) {
	t.Helper()
	for {
		node, err := l.Kube.Node(t.Context(), "cp1")
		must(t, err)
		if isReady(node) {
			if _, err := l.Client().Plan(t.Context(), planning.Policy{}); err == nil {
				return
			}
		}
		time.Sleep(10 * time.Second)
	}
}

// stray makes a volume with a VM's number that no configuration names.
func (l *Lab) stray(t *testing.T, vmid int) string {
	t.Helper()
	volid, err := l.World.Alloc(sim.DiskStorage, "pve1", vmid, 1<<30, world.NewMedia(nil))
	must(t, err)
	return volid
}

// TestHandOverWithStrays: older unnamed volumes are distinguished; one that appeared
// meanwhile is not, and a person must decide.
func TestHandOverWithStrays(t *testing.T) {
	long(t)
	type story struct {
		window
		fresh string // where a volume appears meanwhile; "": nowhere
	}
	eachInLab(t, oneWorker(), map[string]story{
		"none, but some from long ago": {window{move: parksData, stop: world.AfterRename}, ""},
		"at the target":                {window{move: parksData, stop: world.AfterSource, journal: true}, "target"},
		"at the source":                {window{move: parksData, stop: world.AfterSource}, "source"},
		"beside a dangling name":       {window{move: parksData, stop: world.AfterRename}, "source"},
		"under the old name":           {window{move: parksData, stop: world.AfterRename, journal: true}, "old name"},
		"at the target, on attaching":  {window{move: attachesData, stop: world.AfterRename}, "target"},
		"at the source, on attaching":  {window{move: attachesData, stop: world.AfterSource, journal: true}, "source"},
	}, func(t *testing.T, lab *Lab, c story) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		old := []string{lab.stray(t, 9031), lab.stray(t, 9031)}
		_ = c.interrupt(t, lab)
		if !c.journal {
			lab.loseJournal()
		}
		park := lab.parkingID(t)
		from, to := 9031, park
		if c.move == attachesData {
			from, to = park, 9031
		}
		lost := slices.DeleteFunc(lab.strays(), func(volid string) bool { return slices.Contains(old, volid) })[0]
		strays := len(old)
		switch c.fresh {
		case "source", "target":
			vmid := map[string]int{"source": from, "target": to}[c.fresh]
			requireUndecided(t, lab, to, lost, lab.stray(t, vmid))
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1") // as the hint says
			strays++
		case "old name":
			volid := volidOf(lab, from, "scsi1")
			for lab.stray(t, from) != volid {
				strays++ // lower numbers are free too
			}
			requireUndecided(t, lab, to, lost, volid)
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1")
			requireInTheWay(t, lab, volid)
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireInSync(t, lab, "cp1")
		if got := lab.strays(); len(got) != strays {
			t.Errorf("strays %q, want %d: none is recast's to free", got, strays)
		}
	})
}

// requireUndecided: the roll names both volumes, says what to do, and changes nothing.
func requireUndecided(t *testing.T, lab *Lab, to int, lost, fresh string) {
	t.Helper()
	before := lab.machinesDump()
	hint := fmt.Sprintf("attach it as scsi1 of VM %d yourself", to)
	hostsRefused(t, "roll", lab.Client().roll(onlyWorker), " volumes could be it: ", lost, fresh, hint)
	if diff := cmp.Diff(before, lab.machinesDump()); diff != "" {
		t.Errorf("it changed something:\n%s", diff)
	}
}

// requireInTheWay: the volume with the old name is under the disk's key on the VM to
// delete, and is not deleted with it. Then a person frees it.
func requireInTheWay(t *testing.T, lab *Lab, fresh string) {
	t.Helper()
	hostsRefused(t, "roll", lab.Client().roll(onlyWorker), " has scsi1 ("+fresh+",", "only one of them is the disk")
	remove("scsi1")(lab)
	remove("unused0")(lab)
}

// parkingID is the VM that has wk1's disks now.
func (l *Lab) parkingID(t *testing.T) int {
	t.Helper()
	res, err := l.Client().Status(t.Context())
	if err != nil || len(res.Open) != 1 {
		t.Fatalf("status %+v, %v", res, err)
	}
	return int(res.Open[0].Parking)
}
