package pve

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	flock   = "can't lock file '/var/lock/qemu-server/lock-9011.conf' - got timeout"
	cfsLock = "cfs-lock 'storage-fast' error: got lock request timeout"
	// activeLock comes when the worker is already running.
	activeLock = "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout"
)

// someoneElse changes the VM concurrently.
func someoneElse(t *testing.T, l lab) {
	t.Helper()
	must(t, l.world.SetConfig("recast@pve!roll", "pve1", world.ChangeRequest{ID: 9011, Set: map[string]string{"cores": "3"}}))
}

func TestIsLock(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err             error
		timeout, locked bool
	}{
		"VM's file":                  {err: &api.Error{Status: 500, Reason: flock, Message: flock}, timeout: true},
		"storage":                    {err: &api.TaskError{Exit: cfsLock}, timeout: true},
		"storage, while creating":    {err: &api.TaskError{Exit: "unable to create VM 9090 - " + cfsLock}, timeout: true},
		"no quorum":                  {err: &api.Error{Status: 500, Message: "cfs-lock 'file-user_cfg' error: no quorum!"}},
		"command took too long":      {err: &api.TaskError{Exit: "cfs-lock 'storage-fast' error: got lock timeout - aborting command"}},
		"one parameter of several":   {err: &api.Error{Status: 400, Params: map[string]string{"scsi1": cfsLock}}},
		"after something else":       {err: &api.TaskError{Exit: "unable to apply pending change: " + cfsLock}},
		"locked":                     {err: &api.TaskError{Exit: "VM is locked (backup)"}, locked: true},
		"a worker is at work":        {err: &api.Error{Status: 500, Reason: activeLock, Message: activeLock}},
		"answer lost as well":        {err: errors.Join(cluster.ErrLostAnswer, &api.TaskError{Exit: flock})},
		"without a kind":             {err: &api.Error{Status: 500, Message: "VM is locked"}, locked: true},
		"something that is no error": {},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := api.IsLockTimeout(tc.err); got != tc.timeout {
				t.Errorf("timeout: %v", got)
			}
			if got := api.IsVMLocked(tc.err); got != tc.locked {
				t.Errorf("locked: %v", got)
			}
		})
	}
}

// TestLocksAreWaitedFor: changes are refused because of a lock until it is released,
// the VM is changed, or time is up.
func TestLocksAreWaitedFor(t *testing.T) {
	t.Parallel()
	onboot := func(t *testing.T, l lab) error {
		return l.SetConfig(t.Context(), l.read(t, 9011), map[string]string{"onboot": "1"}, nil)
	}
	create := func(t *testing.T, l lab) error {
		return l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"scsi0": "fast:1"})
	}
	remove := func(t *testing.T, l lab) error { return l.DeleteVM(t.Context(), l.read(t, 9011)) }
	cases := map[string]struct {
		match, message string
		times          int
		meanwhile      func(*testing.T, lab)
		do             func(*testing.T, lab) error
		is             error
		want           string // expected error
		hint           string
	}{
		"gone in time":        {match: "PUT /nodes/pve1/qemu/9011/config", message: flock, times: 3, do: onboot},
		"storage's, a worker": {match: "qmcreate", message: cfsLock, times: 2, do: create},
		"before a removal":    {match: "DELETE /nodes/pve1/qemu/9011", message: flock, times: 2, do: remove},
		"for ever":            {match: "PUT /nodes/pve1/qemu/9011/config", message: flock, times: 1000, do: onboot, want: flock, hint: "at work on the same VM"},
		"changed meanwhile": {
			match: "PUT /nodes/pve1/qemu/9011/config", message: flock, times: 1000, do: onboot, is: cluster.ErrChanged, want: flock, hint: "running tasks",
			meanwhile: someoneElse,
		},
		"changed before a removal": {
			match: "DELETE /nodes/pve1/qemu/9011", message: flock, times: 1, do: remove, is: cluster.ErrChanged, want: flock,
			meanwhile: someoneElse,
		},
		"a backup's, start": {
			match: "qmstart", message: "VM is locked (backup)", times: 3,
			do: func(t *testing.T, l lab) error { return l.Start(t.Context(), l.read(t, 9011)) },
		},
		"a backup's, and the VM stops by itself": {
			match: "qmstop", message: "VM is locked (backup)", times: 1000,
			meanwhile: func(t *testing.T, l lab) { must(t, l.world.PowerOff(9011)) },
			do: func(t *testing.T, l lab) error {
				must(t, l.world.PowerOn(9011))
				return l.Stop(t.Context(), l.read(t, 9011))
			},
		},
		"a backup's, configuration": {
			match: "PUT /nodes/pve1/qemu/9011/config", message: "VM is locked (backup)", times: 1, do: onboot, want: "VM is locked (backup)", hint: "qm unlock",
		},
	}
	for name, tc := range cases {
		runInBubble(t, name, func(t *testing.T) {
			l := newLab(t)
			for range tc.times {
				l.world.FailNext(tc.match, tc.message)
			}
			if tc.meanwhile != nil {
				time.AfterFunc(lockPause/2, func() { tc.meanwhile(t, l) })
			}
			start := time.Now()
			err := tc.do(t, l)
			if tc.want == "" && tc.is == nil && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) || !errors.Is(err, tc.is) && tc.is != nil {
				t.Errorf("error is %v", err)
			}
			if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, tc.hint) {
				t.Errorf("hints are %q", hints)
			}
			if took := time.Since(start); took > lockTime+time.Minute {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	var s slots
	var release func()
	for _, host := range []string{"pve1", "pve2"} {
		for range slotsPerHost {
			var err error
			release, err = s.take(t.Context(), host)
			must(t, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.take(ended, "pve2"); !errors.Is(err, context.Canceled) {
		t.Errorf("while all are taken: %v", err)
	}
	release()
	_, err := s.take(t.Context(), "pve2")
	must(t, err)
}

// TestSlotsLimitWorkers creates many VMs at once, and shuts one down meanwhile.
func TestSlotsLimitWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.world.SetFirmware(nil) // nothing reacts to the power button
		must(t, l.Start(t.Context(), l.read(t, 9011)))
		vm := l.read(t, 9011)
		shutdowns, end := context.WithCancel(t.Context())
		defer end()
		var wg sync.WaitGroup
		for range 2 * slotsPerHost {
			wg.Go(func() {
				if err := l.Shutdown(shutdowns, vm, time.Minute); err == nil {
					t.Error("it is off")
				}
			})
		}
		time.Sleep(time.Second)
		most, stop := 0, make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				running := 0
				for _, task := range l.world.Tasks() {
					if task.Running && task.Type == "qmcreate" {
						running++
					}
				}
				most = max(most, running)
			}
		})
		start := time.Now()
		var creates sync.WaitGroup
		for i := range 3 * slotsPerHost {
			creates.Go(func() {
				if err := l.CreateVM(t.Context(), "pve1", cluster.VMID(9100+i), nil); err != nil {
					t.Error(err)
				}
			})
		}
		creates.Wait()
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("the shutdowns delayed them: %s", took)
		}
		close(stop)
		end()
		wg.Wait()
		if most != slotsPerHost {
			t.Errorf("%d at once, want %d", most, slotsPerHost)
		}
	})
}
