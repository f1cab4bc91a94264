package simtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// foreignWay is the kind of replacement of a scene's worker, the owner of its data disk, and
// whether its new system disk is made from a disk image.
type foreignWay struct {
	strategy cluster.Strategy // Recreate, Reimage, Rollback or PutBack
	holder   bool
	prepared bool
}

func (w foreignWay) String() string {
	name := string(w.strategy)
	if w.prepared {
		name += "-prepared"
	}
	if w.holder {
		return name + "/holder"
	}
	return name + "/owned"
}

func foreignWays() []foreignWay {
	var all []foreignWay
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback, cluster.PutBack} {
		all = append(all, foreignWay{s, false, false}, foreignWay{s, true, false})
	}
	return append(all, foreignWay{cluster.Recreate, false, true}, foreignWay{cluster.Reimage, true, true}, foreignWay{cluster.PutBack, false, true})
}

// foreignMoment is right before Proxmox acts on the n-th change, or the first one of a
// kind, or right after that.
type foreignMoment struct {
	change int
	is     func(record.Call) bool
	after  bool
}

func (m foreignMoment) String() string {
	if m.after {
		return fmt.Sprintf("after %d", m.change)
	}
	return fmt.Sprintf("before %d", m.change)
}

// foreignScene is a Proxmox with an exchange of a VM's system.
type foreignScene struct {
	world    *world.World
	recorder *record.Recorder
	way      foreignWay
	host     string
	other    string // another one
	vm       int
	holder   int    // owner of the data disk, if not the VM itself
	park     int    // number of the parking VM, existing or planned
	disk     string // the world's name of the data disk
	storage  string // of the data disk
	act      func(ctx context.Context) error
	again    func(ctx context.Context) error // the next run
	cancel   func(ctx context.Context) error // recast undo
	ended    func() error                    // how the final state deviates
	giveUp   bool                            // the exchange is cancelled
	changes  []string                        // changes in Proxmox, in order, without the claim's

	mu    sync.Mutex
	notes []string // notes of the run
}

// isForeignChange says whether a call is one of the counted changes.
func isForeignChange(c record.Call) bool {
	return c.Proto == "proxmox" && c.Mutation && !strings.Contains(c.Path, fmt.Sprintf("/qemu/%d", claimVM)) && c.Params["vmid"] != fmt.Sprint(claimVM)
}

// disturbed runs the replacement and calls do at a moment. came is false if the run ended
// earlier.
func (s *foreignScene) disturbed(ctx context.Context, t *testing.T, at foreignMoment, do func()) (came bool, err error) {
	t.Helper()
	var mu sync.Mutex
	passed := false
	s.changes = nil
	s.recorder.Hooks(func(c record.Call) error {
		mu.Lock()
		now := false
		switch {
		case came:
		case passed:
			now = c.Proto == "proxmox" && !s.ourTasks()
		case isForeignChange(c) && (len(s.changes)+1 == at.change || at.is != nil && at.is(c)):
			passed, now = true, !at.after
		}
		if isForeignChange(c) {
			s.changes = append(s.changes, c.Method+" "+strings.TrimPrefix(c.Path, "/api2/json/nodes/"))
		}
		came = came || now
		mu.Unlock()
		if now {
			do()
		}
		return nil
	}, nil)
	err = inTime(ctx, t, s.act)
	s.recorder.Hooks(nil, nil)
	return came, err
}

// undisturbed is the number of changes in Proxmox without interference.
func (s *foreignScene) undisturbed(t *testing.T) int {
	t.Helper()
	_, err := s.disturbed(t.Context(), t, foreignMoment{}, nil)
	if err != nil || len(s.changes) < 8 {
		t.Fatalf("%d changes: %q: %v", len(s.changes), s.changes, err)
	}
	return len(s.changes)
}

// listen records the run's notes.
func (s *foreignScene) listen(e step.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, e.Text)
}

func (s *foreignScene) heard(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.notes, text)
}

// ourTasks says whether a task of recast is running.
func (s *foreignScene) ourTasks() bool {
	return slices.ContainsFunc(s.world.Tasks(), func(task world.Task) bool { return task.Running && task.User != "" })
}

// parking is the parking VM; 0 if there is none.
func (s *foreignScene) parking() int {
	for _, vm := range s.world.VMs() {
		if strings.HasPrefix(vm.Config["name"], "recast-parking-") {
			return vm.ID
		}
	}
	return 0
}

var errNoVM = errors.New("there is no such VM")

func (s *foreignScene) look(id int) (world.VM, error) {
	for _, vm := range s.world.VMs() {
		if vm.ID == id {
			return vm, nil
		}
	}
	return world.VM{}, errNoVM
}

// change is another person's change of a VM.
func (s *foreignScene) change(id int, set map[string]string, del ...string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	return s.world.SetConfig("", vm.Host, world.ChangeRequest{ID: id, Set: set, Delete: del})
}

// task waits for another person's task.
func (s *foreignScene) task(upid string, err error) error {
	if err != nil {
		return err
	}
	task, found := s.world.WaitTask(upid)
	if !found || task.ExitStatus != "OK" {
		return fmt.Errorf("%s: %s", upid, task.ExitStatus)
	}
	return nil
}

// data is the data disk's present state.
func (s *foreignScene) data() world.DiskState { return s.diskNamed(s.disk) }

func (s *foreignScene) diskNamed(serial string) world.DiskState {
	for _, d := range s.world.Persistent() {
		if d.Serial == serial {
			return d
		}
	}
	return world.DiskState{}
}

// dataKey finds the drive with the data disk on the VM or its parking VM.
func (s *foreignScene) dataKey() (vm world.VM, key string, err error) {
	volid := s.data().Volid
	for _, id := range []int{s.vm, s.parking()} {
		vm, err := s.look(id)
		if err != nil {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			if have, _, _ := strings.Cut(vm.Config[key], ","); have == volid && volid != "" && !strings.HasPrefix(key, "unused") {
				return vm, key, nil
			}
		}
	}
	return vm, "", errors.New("the data disk is in neither")
}

// saidForeign is an error's text, and its hints except those that only say that something
// is unfinished.
func saidForeign(err error) (said string, hints []string) {
	hints = slices.DeleteFunc(fault.Hints(err), func(h string) bool { return strings.HasPrefix(h, "still unfinished, cordoned or down") })
	return err.Error() + "\n" + strings.Join(hints, "\n"), hints
}
