package simtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// window is an unfinished hand-over of a disk: Proxmox's worker ends between two of its
// three actions.
type window struct {
	move    int // which of the roll's hand-overs: three park the disks, two return them
	stop    world.MoveStage
	crash   bool // the host crashes too
	journal bool
}

// The hand-overs of wk1: the EFI variables, the system disk and the data disk are parked,
// the first and the last are returned.
const (
	parksSystem  = 2
	parksData    = 3
	attachesData = 5
)

func (w window) String() string {
	what := map[int]string{parksSystem: "park the system disk", parksData: "park the data disk", attachesData: "attach the data disk"}[w.move]
	when := map[world.MoveStage]string{world.AfterRename: "after the rename", world.AfterSource: "after the source"}[w.stop]
	with, journal := "the worker is killed", "without-journal"
	if w.crash {
		with = "the host crashes"
	}
	if w.journal {
		journal = "with-journal"
	}
	return strings.Join([]string{what, when, with, journal}, "/")
}

func windows() []window {
	var all []window
	for _, move := range []int{parksSystem, parksData, attachesData} {
		for _, stop := range []world.MoveStage{world.AfterRename, world.AfterSource} {
			for _, crash := range []bool{false, true} {
				for _, journal := range []bool{true, false} {
					all = append(all, window{move, stop, crash, journal})
				}
			}
		}
	}
	return all
}

// chosen is the default slice.
func (w window) chosen() bool {
	parks, renamed := w.move == parksData, w.stop == world.AfterRename
	return *crashAll || w.move != parksSystem && w.crash == (parks == renamed) && w.journal != renamed
}

// beforeMove calls f before the n-th move_disk.
func (l *Lab) beforeMove(n int, f func()) {
	var mu sync.Mutex
	seen := 0
	l.Recorder.Hooks(func(call record.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if call.Method == "POST" && strings.HasSuffix(call.Path, "/move_disk") {
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
	lab.beforeMove(w.move, func() { lab.World.StopNextMove(w.stop, w.crash) })
	defer lab.Recorder.Hooks(nil, nil)
	c := lab.Client()
	_, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
	if err == nil {
		t.Fatal("the roll succeeded")
	}
	c.Kill()
	lab.World.BootHost("pve1")
	return err
}

// TestCutOffHandOver: a volume that lost its name in a hand-over is found and named again,
// and the roll completes normally.
func TestCutOffHandOver(t *testing.T) {
	long(t)
	reference := sync.OnceValue(func() reference {
		return resumption{strategy: cluster.Recreate, node: "wk1"}.undisturbed(t)
	})
	for _, w := range windows() {
		if !w.chosen() {
			continue
		}
		t.Run(w.String(), func(t *testing.T) {
			ref := reference()
			o := oneWorker()
			o.Talos = ref.secrets
			inLab(t, o, func(t *testing.T, lab *Lab) {
				resumption{strategy: cluster.Recreate}.prepare(lab)
				err := w.interrupt(t, lab)
				if !strings.Contains(err.Error(), "hand ") {
					t.Errorf("the first roll: %v", err)
				}
				if len(lab.strays()) != 1 {
					t.Fatalf("without a name: %q", lab.strays())
				}
				must(t, lab.waitReady(t))
				if !w.journal {
					lab.loseJournal()
				}
				must(t, lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
				lab.RequireIntact()
				if diff := cmp.Diff(ref.dump, lab.settledDump()); diff != "" {
					t.Errorf("the world differs from an undisturbed one:\n%s", diff)
				}
				lab.requireKept(1)
			})
		})
	}
}

// waitReady waits until the control plane is back after its host was down.
func (l *Lab) waitReady(t *testing.T) error {
	for {
		node, err := l.Kube.Node(t.Context(), "cp1")
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				if _, err := l.Client().Plan(t.Context(), planning.Policy{}); err == nil {
					return nil
				}
			}
		}
		if !l.World.Delay(10 * time.Second) {
			return errors.New("the lab has ended")
		}
	}
}

// TestHandOverLosesQuorum: the volume is renamed, and neither configuration can be
// written. With quorum the roll continues.
func TestHandOverLosesQuorum(t *testing.T) {
	long(t)
	for _, move := range []int{parksData, attachesData} {
		t.Run(strings.SplitN(window{move: move}.String(), "/", 2)[0], func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				resumption{strategy: cluster.Recreate}.prepare(lab)
				lab.beforeMove(move, func() { lab.World.SetQuorum(false) })
				c := lab.Client()
				_, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
				if err == nil || !strings.Contains(err.Error(), "Permission denied") {
					t.Fatalf("err = %v", err)
				}
				lab.Recorder.Hooks(nil, nil)
				c.Kill()
				if len(lab.strays()) != 1 {
					t.Fatalf("without a name: %q", lab.strays())
				}
				mutations := lab.Recorder.Mutations()
				_, err = lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
				if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "no quorum") || lab.Recorder.Mutations() != mutations {
					t.Errorf("without quorum: %v; %d changes were sent", err, lab.Recorder.Mutations()-mutations)
				}
				lab.World.SetQuorum(true)
				must(t, lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
				requireInSync(t, lab, "cp1")
				lab.requireKept(1)
			})
		})
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
			vm, err := lab.World.LookupVM("pve1", from)
			must(t, err)
			volid, _, _ := strings.Cut(vm.Config["scsi1"], ",")
			for lab.stray(t, from) != volid {
				strays++ // lower numbers are free too
			}
			requireUndecided(t, lab, to, lost, volid)
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1")
			requireInTheWay(t, lab, volid)
		}
		must(t, lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
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
	_, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), " volumes could be it: ") ||
		!strings.Contains(err.Error(), lost) || !strings.Contains(err.Error(), fresh) {
		t.Fatalf("err = %v; want %s and %s named", err, lost, fresh)
	}
	want := fmt.Sprintf("attach it as scsi1 of VM %d yourself", to)
	if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, want) {
		t.Errorf("hints %q lack %q", hints, want)
	}
	if diff := cmp.Diff(before, lab.machinesDump()); diff != "" {
		t.Errorf("it changed something:\n%s", diff)
	}
}

// requireInTheWay: the volume with the old name is under the disk's key on the VM to
// delete, and is not deleted with it. Then a person frees it.
func requireInTheWay(t *testing.T, lab *Lab, fresh string) {
	t.Helper()
	_, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), " has scsi1 ("+fresh+",") || !strings.Contains(err.Error(), "only one of them is the disk") {
		t.Fatalf("kind %d: %v; want %s named", fault.KindOf(err), err, fresh)
	}
	for _, key := range []string{"scsi1", "unused0"} {
		must(t, lab.World.SetConfig("", "pve1", world.ChangeRequest{ID: 9031, Delete: []string{key}}))
	}
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
