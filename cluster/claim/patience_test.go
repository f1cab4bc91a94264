package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// lockedVM is a Proxmox with one VM that another task has locked.
type lockedVM struct {
	cluster.Proxmox
	vm       cluster.VM
	until    time.Time // when the lock ends
	leaves   map[string]string
	noQuorum bool
	done     int
}

func (f *lockedVM) VM(context.Context, cluster.VMID) (cluster.VM, error) {
	vm := f.vm
	vm.Config = maps.Clone(vm.Config)
	if vm.Lock != "" && !time.Now().Before(f.until) {
		maps.Copy(vm.Config, f.leaves)
		vm.Lock, vm.Running, vm.QMP = "", false, ""
		delete(vm.Config, "lock")
	}
	vm.Digest = fmt.Sprint(vm.Config)
	return vm, nil
}

func (f *lockedVM) Quorate(context.Context) (bool, error) { return !f.noQuorum, nil }

func (f *lockedVM) SetConfig(ctx context.Context, vm cluster.VM, _ map[string]string, _ []string) error {
	switch now, err := f.VM(ctx, vm.ID); {
	case err != nil:
		return err
	case now.Lock != "" && vm.Config["lock"] != "":
		return fmt.Errorf("VM is locked: %w", cluster.ErrLocked)
	case now.Digest != vm.Digest:
		return fmt.Errorf("checksum mismatch: %w", cluster.ErrChanged)
	}
	f.done++
	return nil
}

func TestPatience(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	type row struct {
		lock     string
		lasts    time.Duration
		before   bool // the VM was read before it was locked
		leaves   map[string]string
		noQuorum bool
		took     time.Duration // at least; at most a poll more
		err      string
		hint     string
		said     []string
	}
	must.Bubbles(t, map[string]row{
		"free":                        {before: true},
		"locked since":                {lock: "backup", lasts: 3 * minute, before: true, took: 3 * minute, said: []string{"waiting for VM 101: it is locked (backup)"}},
		"locked already":              {lock: "snapshot-delete", lasts: minute, took: minute, said: []string{"waiting for VM 101: it is locked (snapshot-delete)"}},
		"changed under the lock":      {lock: "snapshot", lasts: minute, before: true, leaves: map[string]string{"parent": "theirs"}, took: minute, err: "changed by someone else", said: []string{"waiting for VM 101: it is locked (snapshot)"}},
		"quorum is lost meanwhile":    {lock: "backup", lasts: minute, before: true, noQuorum: true, took: minute, err: "no quorum", hint: "pvecm status", said: []string{"waiting for VM 101: it is locked (backup)"}},
		"for too long":                {lock: "backup", lasts: 24 * time.Hour, before: true, took: lockWait, err: "VM 101 free: gave up after 15m0s; last seen: it is locked (backup)", hint: "qm unlock 101", said: []string{"waiting for VM 101: it is locked (backup)"}},
		"a lock that no task has":     {lock: "suspended", lasts: 24 * time.Hour, before: true, err: `VM 101 "wk1" on pve1 is locked (suspended)`, hint: "qm unlock 101"},
		"such a lock before the read": {lock: "suspended", lasts: 24 * time.Hour, err: "is locked (suspended): VM is locked", hint: "throws the saved state away"},
	}, func(t *testing.T, c row) {
		f := &lockedVM{vm: cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"memory": "512"}}, leaves: c.leaves, noQuorum: c.noQuorum}
		read, _ := f.VM(t.Context(), 101)
		if c.lock != "" {
			f.vm.Lock, f.vm.Config["lock"], f.until = c.lock, c.lock, time.Now().Add(c.lasts)
		}
		if !c.before {
			read, _ = f.VM(t.Context(), 101)
		}
		var said []string
		px := WithPatience(f, 2*time.Second, func(text string) { said = append(said, text) })
		start := time.Now()
		err := px.SetConfig(t.Context(), read, map[string]string{"onboot": "0"}, nil)
		must.Take(t, start, c.took, c.took+2*time.Second)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || f.done != map[bool]int{true: 1}[err == nil] {
			t.Errorf("done %d times: %v; want %q", f.done, err, c.err)
		}
		must.Contain(t, "hints", strings.Join(fault.Hints(err), "\n"), c.hint)
		must.Equal(t, "said", c.said, said)
	})
}

// TestPatienceWithABackupOfAStoppedVM: a stopped VM runs while it is backed up. It is not mistaken
// for a VM that someone started.
func TestPatienceWithABackupOfAStoppedVM(t *testing.T) {
	t.Parallel()
	whole := func(px cluster.Proxmox, ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
		vm, err := px.VM(ctx, id)
		if (vm.Lock == "backup") != vm.Running {
			err = errors.Join(err, fmt.Errorf("lock %q of a VM that runs: %t", vm.Lock, vm.Running))
		}
		return vm.State(), err
	}
	type reading func(cluster.Proxmox, context.Context, cluster.VMID) (cluster.VMState, error)
	cases := map[string]reading{"VM": whole, "VMState": cluster.Proxmox.VMState}
	must.Bubbles(t, cases, func(t *testing.T, read reading) {
		f := &lockedVM{vm: cluster.VM{ID: 101, Host: "pve1", Running: true, QMP: "prelaunch", Lock: "backup", Config: map[string]string{"lock": "backup"}}, until: time.Now().Add(time.Minute)}
		px := WithPatience(f, 2*time.Second, func(string) {})
		vm, err := read(px, t.Context(), 101)
		must.Equal(t, "error and value", []any{nil, false}, []any{err, vm.Running})
		f.vm.QMP = "running" // now its guest runs
		f.until = time.Now().Add(time.Hour)
		if vm, err := read(px, t.Context(), 101); err != nil || !vm.Running {
			t.Errorf("%+v, %v", vm, err)
		}
	})
}

// pairedVMs is a Proxmox with a locked source VM, and the VM that is to get its disk.
type pairedVMs struct {
	lockedVM
	to    cluster.VM
	later func(to *cluster.VM) // changes the target when the lock ends
	moved int
}

func (f *lockedVM) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	vm, err := f.VM(ctx, id)
	return vm.State(), err
}

func (f *pairedVMs) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	if id == f.vm.ID {
		return f.lockedVM.VM(ctx, id)
	}
	to := f.to
	to.Config = maps.Clone(to.Config)
	if !time.Now().Before(f.until) {
		f.later(&to)
	}
	return to, nil
}

func (f *pairedVMs) MoveDisk(ctx context.Context, vm cluster.VM, _ string, _ cluster.VMID, _ string) error {
	err := f.SetConfig(ctx, vm, nil, nil)
	f.moved = f.done
	return err
}

// TestPatienceWithATarget: the VM that is to get a disk must be unchanged, too.
func TestPatienceWithATarget(t *testing.T) {
	t.Parallel()
	type row struct {
		later func(to *cluster.VM)
		moved int
	}
	must.Bubbles(t, map[string]row{
		"as it was":         {func(*cluster.VM) {}, 1},
		"another VM":        {func(to *cluster.VM) { to.Config["smbios1"] = "uuid=b" }, 0},
		"on another host":   {func(to *cluster.VM) { to.Host = "pve2" }, 0},
		"started meanwhile": {func(to *cluster.VM) { to.Running = true }, 0},
	}, func(t *testing.T, c row) {
		f := &pairedVMs{
			lockedVM: lockedVM{vm: cluster.VM{ID: 101, Host: "pve1", Config: map[string]string{"scsi1": "fast:vm-101-disk-1"}}},
			to:       cluster.VM{ID: 9900, Host: "pve1", Config: map[string]string{"smbios1": "uuid=a"}}, later: c.later,
		}
		read, _ := f.VM(t.Context(), 101)
		f.vm.Lock, f.vm.Config["lock"], f.until = "backup", "backup", time.Now().Add(time.Minute)
		err := WithPatience(f, 2*time.Second, func(string) {}).MoveDisk(t.Context(), read, "scsi1", 9900, "scsi1")
		if f.moved != c.moved || (err == nil) != (c.moved == 1) || err != nil && !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("moved %d times: %v", f.moved, err)
		}
	})
}
