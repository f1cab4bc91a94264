package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// mutation is one change, with the means to find out its outcome if the answer is lost.
type mutation struct {
	method, path string
	params       map[string]string

	worker worker // kind "": the answer comes only when all is done
	clean  bool   // a worker that ends with warnings has failed
	slot   bool   // the worker changes storages or configurations: see slots

	// repeatable says that Proxmox refuses a second request because of its digest,
	// VMID or requested state: sent twice, it is done once.
	repeatable bool
	// lockable says that the change can go on once the VM's lock is released. A change with a digest cannot: the lock
	// is part of the configuration.
	lockable bool

	look func(ctx context.Context) (sight, error)
	// unseen says that a successful worker proves the change, whatever look says: the effect shows later.
	unseen bool
}

// carryOut makes a change and returns when the change is done. If the answer is lost, carryOut looks for the effect,
// and sends a change again that certainly did not happen, where that is safe. It waits for locks that others hold.
func (c *Client) carryOut(ctx context.Context, m mutation) error {
	if m.slot {
		release, err := c.slots.take(ctx, m.worker.host)
		if err != nil {
			return fmt.Errorf("wait for our other tasks on %s: %w", m.worker.host, err)
		}
		defer release()
	}
	return retryLocked(ctx, m, func() error { return c.once(ctx, m) })
}

// once makes a change once, however often it has to be sent.
func (c *Client) once(ctx context.Context, m mutation) error {
	sent := time.Now()
	upid, err := c.submit(ctx, m)
	if !errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil {
		return err
	}
	again, err := c.findOut(ctx, m, upid, sent, err)
	if !again || ctx.Err() != nil {
		return err
	}
	cluster.NoteUnanswered(ctx) // the first request may still arrive, after the second
	upid, err = c.submit(ctx, m)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// The second request may also have collided with the first, which arrived late.
	_, err = c.findOut(ctx, m, upid, sent, err)
	return err
}

// submit sends a change and waits for its worker. It returns the worker's UPID if there was one.
func (c *Client) submit(ctx context.Context, m mutation) (upid string, err error) {
	if m.worker.kind == "" {
		return "", c.conn.Change(ctx, m.method, m.path, m.params, nil)
	}
	if err := c.conn.Change(ctx, m.method, m.path, m.params, &upid); err != nil {
		return "", err
	}
	if _, err := api.ParseUPID(upid); err != nil {
		return "", fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return upid, c.end(ctx, m, upid)
}

func (c *Client) end(ctx context.Context, m mutation, upid string) error {
	if m.clean {
		return c.tasks.await(ctx, upid)
	}
	return c.tasks.finish(ctx, upid)
}

const (
	// lockTime bounds how long a change is retried because of a lock.
	lockTime = 2 * time.Minute
	// lockPause is added to the 10 s that Proxmox itself waits for most locks.
	lockPause = 3 * time.Second
)

// retryLocked retries a change while a lock blocks it, as long as nothing else changed.
func retryLocked(ctx context.Context, m mutation, do func() error) error {
	start := time.Now()
	for {
		err := do()
		if !api.IsLockTimeout(err) && !(m.lockable && api.IsVMLocked(err)) || time.Since(start) >= lockTime {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockPause):
		}
		seen, lookErr := m.look(ctx)
		switch {
		case lookErr != nil:
			return errors.Join(err, lookErr)
		case seen.state == reached && m.lockable:
			return nil // the VM is on, or off, as wanted, whoever switched it
		case seen.is != nil:
			return fmt.Errorf("%w; %w: %s", err, seen.is, seen.what)
		case seen.state != untouched:
			return fmt.Errorf("%w; since then: %s", err, seen.what)
		}
	}
}

// slotsPerHost bounds how many of our tasks change storages and configurations on one host at a time. The tasks wait
// for each other's locks, and Proxmox gives up on a lock after 10 s (pve-cluster, Cluster.pm, cfs_lock): with more
// tasks some would fail, and none be faster. Proxmox's own bulk actions use 4 (datacenter.cfg, max_workers).
const slotsPerHost = 4

// slots counts our tasks on each host. It is safe for concurrent use.
type slots struct{ hosts sync.Map }

// take waits for a free slot. The caller gives the slot back with release.
func (s *slots) take(ctx context.Context, host string) (release func(), err error) {
	kept, _ := s.hosts.LoadOrStore(host, make(chan struct{}, slotsPerHost))
	slot := kept.(chan struct{})
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

const (
	// searchTime bounds how long recast asks Proxmox for the outcome of a change, including the time in which Proxmox
	// is unreachable.
	searchTime = 2 * time.Minute
	// lateness is how long a change whose answer was lost may take to show its effect or its worker. The server waits
	// up to 10 s for the VM's lock (Qemu.pm, create_vm), then starts the worker.
	lateness = 15 * time.Second
	// writeLateness is the lateness of a repeatable change without a worker: Proxmox refuses whichever of two
	// requests comes second.
	writeLateness = 5 * time.Second
	// settled is how long after a worker's end its result may take to show on every host.
	settled = 10 * time.Second
)

// state is how far a change has progressed, as observed.
type state int

const (
	untouched  state = iota // everything is as before
	partial                 // neither as before nor as wanted
	superseded              // another change made ours impossible
	reached                 // everything is as wanted
)

type sight struct {
	state state
	what  string
	is    error // the error that stands for a superseding change
}

// findOut finds out the outcome of a change whose answer was lost: from its worker if there is one, otherwise from
// its goal. err is nil if the change was made, and the worker's error if the worker failed. again says that the
// change did not happen and can be sent again; err then wraps lost.
func (c *Client) findOut(ctx context.Context, m mutation, known string, sent time.Time, lost error) (again bool, err error) {
	upid, seen := known, sight{}
	if upid == "" {
		if upid, seen, err = c.trace(ctx, m, sent); err != nil {
			return false, fmt.Errorf("%w; %w", lost, err)
		}
	}
	if upid != "" && known == "" {
		err := c.end(ctx, m, upid)
		if err == nil && m.unseen || err != nil && !errors.Is(err, cluster.ErrLostAnswer) {
			return false, err
		}
		if err != nil {
			lost = err
		}
	}
	if upid != "" {
		if seen, err = c.watch(ctx, m); err != nil {
			return false, fmt.Errorf("%w; %w", lost, err)
		}
	}
	switch {
	case seen.state == reached:
		if m.unseen && upid == "" { // someone else may have done the same
			cluster.NoteUnanswered(ctx)
		}
		return false, nil
	case seen.state == superseded && seen.is != nil:
		return false, fmt.Errorf("%w; %w: %s", lost, seen.is, seen.what)
	case seen.state == untouched && upid == "":
		return m.repeatable && errors.Is(lost, cluster.ErrLostAnswer), fmt.Errorf("%w; since then: %s", lost, seen.what)
	}
	return false, fmt.Errorf("%w; since then: %s", lost, seen.what)
}

// trace looks for the change's worker and checks its goal, until either shows or should have shown.
func (c *Client) trace(ctx context.Context, m mutation, sent time.Time) (upid string, seen sight, err error) {
	late := lateness
	if m.worker.kind == "" && m.repeatable {
		late = writeLateness
	}
	w := wait.For{Name: "find out whether it happened", Every: c.conn.Poll}
	err = search(ctx, w, late, func(ctx context.Context) (_ bool, _ string, err error) {
		if m.worker.kind != "" {
			if upid, err = c.tasks.startedSince(ctx, m.worker, sent); err != nil || upid != "" {
				return true, "", err
			}
		}
		seen, err = m.look(ctx)
		// A change without a worker is a single write, which cannot follow a superseding change.
		return seen.state == reached || seen.state == superseded && m.worker.kind == "", seen.what, err
	})
	return upid, seen, err
}

// watch polls the goal of a change whose worker has ended, or can no longer be asked.
func (c *Client) watch(ctx context.Context, m mutation) (seen sight, err error) {
	w := wait.For{Name: "check its outcome", Every: c.conn.Poll}
	err = search(ctx, w, settled, func(ctx context.Context) (_ bool, _ string, err error) {
		seen, err = m.look(ctx)
		return seen.state == reached, seen.what, err
	})
	return seen, err
}

// search calls look until its result is final, or until late has passed since Proxmox first answered.
func search(ctx context.Context, w wait.For, late time.Duration, look func(context.Context) (bool, string, error)) error {
	var since time.Time // when Proxmox first answered
	w.Timeout = searchTime
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		final, what, err := look(ctx)
		if err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		if since.IsZero() {
			since = time.Now()
		}
		return final || time.Since(since) >= late, what, nil
	})
}

// seeCreated checks whether the VM exists as it was to be created. A VM that differs belongs to someone else, even if
// the same token made it.
func (c *Client) seeCreated(host string, id cluster.VMID, want map[string]string) func(context.Context) (sight, error) {
	want = maps.Clone(want)
	delete(want, "pool") // not part of the configuration
	return func(ctx context.Context) (sight, error) {
		vm := cluster.VM{ID: id, Host: host}
		err := c.readConfig(ctx, &vm)
		switch {
		case isNoConfig(err):
			return c.seeAbsent(ctx, id, sight{state: untouched, what: fmt.Sprintf("there is no VM %d", id)})
		case err != nil:
			return sight{}, err
		case vm.Lock == "create":
			return sight{state: partial, what: fmt.Sprintf("VM %d is being created", id)}, nil
		}
		if differs := differing(want, vm.Config); len(differs) > 0 {
			return sight{superseded, fmt.Sprintf("VM %d exists, but not as wanted: %v differ", id, differs), cluster.ErrExists}, nil
		}
		return sight{state: reached, what: fmt.Sprintf("VM %d is there", id)}, nil
	}
}

// seeAbsent returns absent for a VM that is missing on its host, if no other host has the VM either.
func (c *Client) seeAbsent(ctx context.Context, id cluster.VMID, absent sight) (sight, error) {
	free, err := c.isFree(ctx, id)
	if err != nil || free {
		return absent, err
	}
	return sight{partial, fmt.Sprintf("VMID %d is taken, but not on that host", id), cluster.ErrExists}, nil
}

// seeConfig checks whether the keys were set and deleted as wanted.
func (c *Client) seeConfig(vm cluster.VM, set map[string]string, del []string) func(context.Context) (sight, error) {
	return c.seeVM(vm, func(_ context.Context, now cluster.VM) (sight, error) {
		for _, key := range del {
			if now.Config[key] != "" && !slices.Contains(now.Pending, key) {
				return conflicting(vm, key), nil
			}
		}
		if differs := differing(set, now.Config); len(differs) > 0 {
			return conflicting(vm, differs...), nil
		}
		// Only the volume distinguishes a newly allocated drive from the drive before.
		for key, value := range set {
			if allocates(key, value) && volid(now.Config[key]) == volid(vm.Config[key]) {
				return conflicting(vm, key), nil
			}
		}
		return sight{state: reached, what: vm.String() + " is as wanted"}, nil
	})
}

// seeReverted checks whether none of these keys is pending any more.
func (c *Client) seeReverted(vm cluster.VM, keys []string) func(context.Context) (sight, error) {
	return c.seeVM(vm, func(_ context.Context, now cluster.VM) (sight, error) {
		for _, key := range keys {
			if slices.Contains(now.Pending, key) {
				return conflicting(vm, key), nil
			}
		}
		return sight{state: reached, what: "nothing of it is pending"}, nil
	})
}

func (c *Client) seeFreed(vm cluster.VM, disk cluster.Disk) func(context.Context) (sight, error) {
	return c.seeVM(vm, func(ctx context.Context, _ cluster.VM) (sight, error) {
		if err := c.checkFreed(ctx, vm, disk); err != nil {
			return sight{state: partial, what: err.Error()}, nil
		}
		return sight{state: reached, what: disk.Volid + " is freed"}, nil
	})
}

// seeGrown checks whether a drive has the wanted size, or more.
func (c *Client) seeGrown(vm cluster.VM, key, size string) func(context.Context) (sight, error) {
	wanted := cluster.Disk{Options: []string{"size=" + size}}.SizeBytes()
	return c.seeVM(vm, func(_ context.Context, now cluster.VM) (sight, error) {
		disk, err := cluster.ParseDisk(key, now.Config[key])
		if err != nil || volid(now.Config[key]) != volid(vm.Config[key]) || disk.SizeBytes() < wanted {
			return conflicting(vm, key), nil
		}
		return sight{state: reached, what: key + " has " + disk.Option("size")}, nil
	})
}

func (c *Client) seePool(id cluster.VMID, pool string) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		now, err := c.Pool(ctx, id)
		if err != nil {
			return sight{}, err
		}
		seen := sight{state: untouched, what: fmt.Sprintf("VM %d is in pool %q", id, now)}
		if now == pool {
			seen.state = reached
		}
		return seen, nil
	}
}

// seeMoved checks whether the drive belongs to the other VM.
func (c *Client) seeMoved(vm cluster.VM, key string, to cluster.VMID, toKey string) func(context.Context) (sight, error) {
	return c.seeVM(vm, func(ctx context.Context, now cluster.VM) (sight, error) {
		if now.Config[key] != "" {
			return conflicting(vm, key), nil
		}
		target := cluster.VM{ID: to, Host: vm.Host}
		if err := c.readConfig(ctx, &target); err != nil {
			return sight{}, err
		}
		disk, err := cluster.ParseDisk(toKey, target.Config[toKey])
		if err != nil || disk.Owner != to || !hasOptions(vm.Config[key], target.Config[toKey]) {
			return sight{state: partial, what: fmt.Sprintf("%s is gone from %s, and VM %d does not have it as %s", key, vm, to, toKey)}, nil
		}
		return sight{state: reached, what: fmt.Sprintf("it is %s of VM %d", toKey, to)}, nil
	})
}

func (c *Client) seeDeleted(vm cluster.VM) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		now := cluster.VM{ID: vm.ID, Host: vm.Host}
		err := c.readConfig(ctx, &now)
		switch {
		case isNoConfig(err):
			return c.seeAbsent(ctx, vm.ID, sight{state: reached, what: vm.String() + " is gone"})
		case err != nil:
			return sight{}, err
		case now.Digest != vm.Digest:
			return conflicting(vm), nil
		}
		return sight{state: untouched, what: vm.String() + " is there"}, nil
	}
}

// seeVM observes a VM whose configuration was read before: untouched while its
// digest is the same, otherwise what look returns.
func (c *Client) seeVM(vm cluster.VM, look func(context.Context, cluster.VM) (sight, error)) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		now := cluster.VM{ID: vm.ID, Host: vm.Host, Name: vm.Name}
		if err := c.readConfig(ctx, &now); err != nil {
			if isNoConfig(err) {
				return sight{superseded, vm.String() + " is gone", cluster.ErrChanged}, nil
			}
			return sight{}, err
		}
		if now.Digest == vm.Digest {
			return sight{state: untouched, what: "the configuration of " + vm.String() + " is as before"}, nil
		}
		return look(ctx, now)
	}
}

func conflicting(vm cluster.VM, keys ...string) sight {
	what := "the configuration of " + vm.String() + " was changed"
	if len(keys) > 0 {
		what += fmt.Sprintf(", but not as wanted: %v", keys)
	}
	return sight{superseded, what, cluster.ErrChanged}
}

// differing lists the keys, sorted, whose value is not the requested one.
func differing(want, now map[string]string) []string {
	return cluster.Where(slices.Sorted(maps.Keys(want)), func(key string) bool { return !sameValue(key, want[key], now[key]) })
}

// moveWorker is the worker of a move, which is named after both drives (Qemu.pm, move_vm_disk).
func moveWorker(vm cluster.VM, key string, to cluster.VMID, toKey string) worker {
	return worker{vm.Host, "qmmove", strconv.Itoa(int(vm.ID)) + "-" + key + ">" + strconv.Itoa(int(to)) + "-" + toKey}
}

func (c *Client) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	for _, key := range []string{"start", "force", "archive", "vmid", "digest"} {
		if _, has := config[key]; has {
			return fmt.Errorf("create VM %d: %q is not a configuration key", id, key)
		}
	}
	params := map[string]string{"vmid": strconv.Itoa(int(id))}
	maps.Copy(params, config)
	err := c.carryOut(ctx, mutation{
		method: http.MethodPost, path: "/nodes/" + url.PathEscape(host) + "/qemu", params: params,
		worker: worker{host, "qmcreate", strconv.Itoa(int(id))}, slot: true, repeatable: true, look: c.seeCreated(host, id, config),
	})
	if err == nil {
		c.seen.add(id, sighting{host: host, at: time.Now(), off: true})
		c.proofs.makes(id, true)
	}
	return err
}

// SetConfig implements cluster.Editor. If it fails, it leaves nothing pending for the VM's next stop or start.
func (c *Client) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	if len(set) == 0 && len(del) == 0 {
		return nil
	}
	params := map[string]string{}
	maps.Copy(params, set)
	if len(del) > 0 {
		params["delete"] = strings.Join(del, ",")
	}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	m := configChange(vm, params, touchesDisk(set, del))
	m.look = c.seeConfig(vm, set, del)
	if err := c.carryOut(ctx, m); err != nil {
		return c.refused(ctx, vm, slices.AppendSeq(slices.Clone(del), maps.Keys(set)), err)
	}
	return nil
}

// refused returns the error of a failed change of those keys, after reverting what the change left pending.
func (c *Client) refused(ctx context.Context, vm cluster.VM, touched []string, err error) error {
	if errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, cluster.ErrChanged) {
		return err
	}
	if isNoConfig(err) {
		return fault.WithHint(err, "VM %d was deleted or migrated by someone else since it was read: see where it is, then run the same command again", vm.ID)
	}
	// Deleting a device first removes it from the boot order. The pending change of the boot order outlives the
	// revert of the deletion (Qemu.pm, update_vm_api).
	touched = append(touched, "boot")
	if revertErr := c.revertPending(ctx, vm, touched); revertErr != nil {
		return errors.Join(err, revertErr)
	}
	return err
}

// configChange returns a change of a configuration. A slow change runs in a worker, because the node that forwards a
// long request gives up.
func configChange(vm cluster.VM, params map[string]string, slow bool) mutation {
	m := mutation{method: http.MethodPut, path: vmPath(vm, "config"), params: params, repeatable: true}
	if slow {
		m.method, m.worker, m.slot = http.MethodPost, vmWorker(vm, "qmconfig"), true
	}
	return m
}

// revertPending reverts what a refused change left pending. Proxmox keeps a delete that the running guest did not
// follow, or that failed on a stopped VM, and retries it when the VM stops or starts (QemuServer.pm,
// vmconfig_apply_pending). Changes that were pending before stay.
func (c *Client) revertPending(ctx context.Context, was cluster.VM, touched []string) error {
	now := was
	if err := c.readConfig(ctx, &now); isNoConfig(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("see what the refused change left pending: %w", err)
	}
	left := slices.DeleteFunc(now.Pending, func(key string) bool {
		return !slices.Contains(touched, key) || slices.Contains(was.Pending, key)
	})
	if len(left) == 0 {
		return nil
	}
	params := map[string]string{"revert": strings.Join(left, ",")}
	if err := withDigest(params, now); err != nil {
		return err
	}
	m := configChange(now, params, false)
	m.look = c.seeReverted(now, left)
	if err := c.carryOut(ctx, m); err != nil {
		return fmt.Errorf("revert what the refused change left pending (%s): %w", strings.Join(left, ", "), err)
	}
	return nil
}

// DeleteVM implements cluster.Editor. A task that ends with warnings is an error: a volume could not be freed.
func (c *Client) DeleteVM(ctx context.Context, vm cluster.VM) error {
	defer c.seen.deleted(vm.ID)
	c.proofs.makes(vm.ID, false)
	return c.carryOut(ctx, mutation{
		method: http.MethodDelete, path: vmPath(vm, ""), worker: vmWorker(vm, "qmdestroy"), slot: true, clean: true, look: c.seeDeleted(vm),
	})
}

func (c *Client) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	params := map[string]string{"disk": key, "target-vmid": strconv.Itoa(int(to)), "target-disk": toKey}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	return c.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "move_disk"), params: params,
		worker: moveWorker(vm, key, to, toKey), slot: true, repeatable: true, look: c.seeMoved(vm, key, to, toKey),
	})
}

func (c *Client) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	params := map[string]string{"disk": key, "size": size}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	return c.carryOut(ctx, mutation{
		method: http.MethodPut, path: vmPath(vm, "resize"), params: params,
		worker: vmWorker(vm, "resize"), slot: true, repeatable: true, look: c.seeGrown(vm, key, size),
	})
}

// SetPool implements cluster.Editor. Proxmox refuses a second request, because the VM is in the pool already.
func (c *Client) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	return c.carryOut(ctx, mutation{
		method: http.MethodPut, path: "/pools", params: map[string]string{"poolid": pool, "vms": strconv.Itoa(int(id)), "allow-move": "1"},
		repeatable: true, look: c.seePool(id, pool),
	})
}

// withDigest makes a change conditional on the configuration that vm was read with.
func withDigest(params map[string]string, vm cluster.VM) error {
	if vm.Digest == "" {
		return fmt.Errorf("%s was read without a digest, so a change could overwrite someone else's", vm)
	}
	params["digest"] = vm.Digest
	return nil
}

// FreeDisk implements cluster.Editor. It refuses a volume that another VM owns:
// Proxmox would drop the key and leave the volume.
func (c *Client) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	disk, err := cluster.ParseDisk(key, vm.Config[key])
	if err != nil {
		return fmt.Errorf("free a disk of %s: %w", vm, err)
	}
	if disk.Owner != vm.ID {
		return fault.PruneRefused.Refusedf("%s of %s: %s is not a volume of this VM, so it is not freed", key, vm, disk.Volid)
	}
	params := map[string]string{"delete": key, "force": "1"}
	if err := withDigest(params, vm); err != nil {
		return err
	}
	m := configChange(vm, params, true)
	m.look = c.seeFreed(vm, disk)
	if err := c.carryOut(ctx, m); err != nil {
		return c.refused(ctx, vm, []string{key}, err)
	}
	return c.checkFreed(ctx, vm, disk)
}

// checkFreed checks that the disk is gone: a task may succeed while a running guest
// still holds the disk, or while its storage does not free it.
func (c *Client) checkFreed(ctx context.Context, vm cluster.VM, disk cluster.Disk) error {
	now := vm
	if err := c.readConfig(ctx, &now); err != nil {
		return fmt.Errorf("see whether %s is freed: %w", disk.Volid, err)
	}
	if slices.Contains(now.Pending, disk.Key) {
		return fmt.Errorf("%s is not freed: the removal of %s from %s is pending", disk.Volid, disk.Key, vm)
	}
	for _, key := range slices.Sorted(maps.Keys(now.Config)) {
		if d, err := cluster.ParseDisk(key, now.Config[key]); err == nil && d.Volid == disk.Volid {
			return fmt.Errorf("%s is not freed: it is %s of %s", disk.Volid, key, vm)
		}
	}
	if _, still := now.Config[disk.Key]; still {
		return fmt.Errorf("%s is freed, but %s of %s is there again", disk.Volid, disk.Key, vm)
	}
	there, err := c.HasVolume(ctx, vm.Host, disk.Volid)
	if err != nil {
		return fmt.Errorf("see whether %s is freed: %w", disk.Volid, err)
	}
	if there {
		return fmt.Errorf("%s is not freed: no drive of %s holds it, but its storage still has it", disk.Volid, vm)
	}
	return nil
}

const (
	// firstPoll is the shortest pause between two polls of a task or a VM.
	firstPoll = 20 * time.Millisecond
	// outage is how long a task's state may be unreadable before the wait gives up.
	outage = 2 * time.Minute
	// logTail is how many lines of a task's log go into its error.
	logTail = 8
	// logLines is how much of the log is read to find its tail.
	logLines = 500
)

type tasks struct {
	*api.Conn
	workers   sync.Map // by UPID: the tasks whose names we received
	durations durations
}

// finish waits for the task that a change started. A task that ends with warnings has done its work: finish passes
// the warnings to Options.Warn. Where a warning means incomplete work, use await.
func (c *tasks) finish(ctx context.Context, upid string) error {
	err := c.await(ctx, upid)
	if e, ok := errors.AsType[*api.TaskError](err); ok && api.IsWarnings(e.Exit) {
		c.Warn(e.Error())
		return nil
	}
	return err
}

// await waits until a task has ended and returns nil only for OK. If await gives up earlier, the task goes on: the
// error wraps cluster.ErrLostAnswer.
func (c *tasks) await(ctx context.Context, raw string) error {
	upid, err := api.ParseUPID(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	c.workers.Store(raw, true)
	exit := ""
	begun, ran := time.Now(), time.Duration(0)
	readable := begun
	w := wait.For{Name: "task " + upid.String(), First: firstPoll, Every: c.Poll, Expected: c.durations.expected(upid)}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		status, ended, err := c.taskStatus(ctx, upid)
		if err != nil {
			// Reads also fail with 500 while the host's pmxcfs restarts.
			if e, ok := errors.AsType[*api.Error](err); ok && e.Status < http.StatusInternalServerError || time.Since(readable) > outage {
				return false, "", wait.Stop(err)
			}
			return false, "", err
		}
		readable = time.Now()
		exit = ended
		if status != "stopped" {
			ran = time.Since(begun)
		}
		return status == "stopped", status, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	if exit == "OK" {
		c.durations.add(upid, ran, time.Since(begun))
		return nil
	}
	return c.Explain(&api.TaskError{UPID: upid, Exit: c.Redact(cmp.Or(exit, "unexpected status")), Log: c.taskLog(ctx, upid)})
}

// taskStatus returns "running" or "stopped", and how a stopped task ended.
func (c *tasks) taskStatus(ctx context.Context, upid api.UPID) (status, exit string, err error) {
	var s struct{ Status, ExitStatus string }
	err = c.Get(ctx, upid.Path("status"), &s)
	if api.IsForbidden(err) {
		err = fault.WithHint(fault.TokenPrivileges.Of(err), "tasks of other users can only be read with Sys.Audit on /nodes/%s", upid.Node)
	}
	return s.Status, s.ExitStatus, err
}

// taskLog returns the end of a task's log. The result is empty if the log cannot be read, because the log only
// illustrates an error.
func (c *tasks) taskLog(ctx context.Context, upid api.UPID) []string {
	var rows []struct{ T json.RawMessage }
	if err := c.Get(ctx, upid.Path("log?limit="+strconv.Itoa(logLines)), &rows); err != nil {
		return nil
	}
	var lines []string
	for _, row := range rows {
		// Proxmox shows an empty log as one line (PVE/Tools.pm, dump_logfile).
		if line := strings.TrimSpace(scalar(row.T)); line != "" && line != "no content" && !strings.HasPrefix(line, "TASK ") {
			lines = append(lines, c.Redact(line))
		}
	}
	return lines[max(0, len(lines)-logTail):]
}

// OwnTasks implements cluster.Tasks. Tasks that a killed recast process started keep running, on any host. A token
// always sees its own tasks (API2/Tasks.pm).
func (c *Client) OwnTasks(ctx context.Context, of func(cluster.VMID) bool) ([]string, error) {
	online, _, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var running []string
	for _, host := range online {
		tasks, errTasks := c.ownTasks(ctx, host, func(u api.UPID) bool { return slices.ContainsFunc(vmsOf(u), of) })
		running, err = append(running, tasks...), errors.Join(err, errTasks)
	}
	return running, err
}

// taskVMs matches the VMs in a task's ID: "101", "100-scsi1>200-scsi5".
var taskVMs = regexp.MustCompile(`^(\d+)(?:-[a-z]+\d+>(\d+)-[a-z]+\d+)?$`)

// vmsOf returns the VMs that a task is about; none if it is about something else.
func vmsOf(u api.UPID) []cluster.VMID {
	var ids []cluster.VMID
	for _, number := range taskVMs.FindStringSubmatch(u.ID) {
		if id, err := strconv.Atoi(number); err == nil && !slices.Contains(ids, cluster.VMID(id)) {
			ids = append(ids, cluster.VMID(id))
		}
	}
	return ids
}

// OwnTasksOf implements cluster.Tasks. The ID of a task about a VM is the VM's number.
func (c *Client) OwnTasksOf(ctx context.Context, host string, id cluster.VMID) ([]string, error) {
	return c.ownTasks(ctx, host, func(u api.UPID) bool { return u.ID == strconv.Itoa(int(id)) })
}

func (c *Client) ownTasks(ctx context.Context, host string, of func(api.UPID) bool) (running []string, err error) {
	tasks, err := c.activeTasks(ctx, host)
	own := cluster.Where(tasks, func(u api.UPID) bool { return u.User == c.conn.TokenID && of(u) })
	return cluster.Each(own, api.UPID.String), err
}

// activeTasks lists the tasks that run on a host: our own, and with Sys.Audit on it those of others. If some rows
// cannot be read, the other tasks are returned along with an error.
func (c *Client) activeTasks(ctx context.Context, host string) ([]api.UPID, error) {
	var rows []struct {
		UPID    string
		EndTime int64
	}
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/tasks?source=active&limit=500", &rows); err != nil {
		return nil, fmt.Errorf("list tasks on %s: %w", host, err)
	}
	var running []api.UPID
	var errs []error
	for _, r := range rows {
		u, err := api.ParseUPID(r.UPID)
		switch {
		case err != nil:
			errs = append(errs, err)
		case r.EndTime == 0: // the list keeps tasks for a while after their end
			running = append(running, u)
		}
	}
	return running, errors.Join(errs...)
}

// uptimeSlack is the tolerance between a host's uptime, in whole seconds, and the moment we read it.
const uptimeSlack = 5 * time.Second

type worker struct{ host, kind, id string }

func vmWorker(vm cluster.VM, kind string) worker {
	return worker{vm.Host, kind, strconv.Itoa(int(vm.ID))}
}

// startedSince finds the task that our token started for a request sent at that time, if recast never received the
// task's name; "" if there is none. It uses no clock: any clock may be wrong, or be reset. A task's name says when
// its worker began, counted from its host's boot (pve-common, RESTEnvironment.pm, fork_worker), and the host's uptime
// says how long ago the boot was. startedSince does not find a task from before that boot: the task ended with its
// host, and the caller checks its goal. Another process with the same token may have made the same request at the
// same time: the caller checks what was done.
func (c *tasks) startedSince(ctx context.Context, w worker, sent time.Time) (string, error) {
	query := url.Values{"source": {"all"}, "typefilter": {w.kind}, "limit": {"500"}}
	path := "/nodes/" + url.PathEscape(w.host) + "/tasks?" + query.Encode()
	var rows []struct{ UPID string }
	var up uptime
	err := c.Get(ctx, path, &rows)
	if err == nil && len(rows) > 0 {
		up, err = readUptime(ctx, c.Conn, w.host)
	}
	if err != nil {
		return "", fmt.Errorf("look for task %s %s on %s: %w", w.kind, w.id, w.host, err)
	}
	from, until := up.ago(time.Since(sent)+uptimeSlack), up.ago(-uptimeSlack)
	var found []api.UPID
	for _, row := range rows {
		u, err := api.ParseUPID(row.UPID)
		if err != nil {
			return "", err
		}
		ours := u.User == c.TokenID && u.Type == w.kind && u.ID == w.id && u.Ticks >= from && u.Ticks <= until
		// A task that is just ending is listed twice: Proxmox reads the list of
		// running tasks first, then that of ended ones (API2/Tasks.pm, node_tasks).
		if _, known := c.workers.Load(u.Raw); ours && !known && !slices.Contains(found, u) {
			found = append(found, u)
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		c.workers.Store(found[0].Raw, true)
		return found[0].Raw, nil
	}
	return "", wait.Stop(fmt.Errorf("%d tasks could be the one: %s and %s", len(found), found[0].Raw, found[1].Raw))
}

// durations records how long tasks took, by kind. Proxmox does not announce the end of a task, so recast polls the
// next task of the same kind when its end is due.
type durations struct {
	mu   sync.Mutex
	last map[string]estimate
}

// estimate is how long a kind of task takes: the duration of the last task, or less if the last tasks (ended in a
// row) were over at the first look.
type estimate struct {
	time  time.Duration
	ended int
}

// shorter are the divisors for the next estimate: 1/n less after one, two, … tasks
// in a row that were over at the first look.
var shorter = []time.Duration{128, 64, 32, 16, 8}

// numbers matches the VM numbers in a task's subject ("100-scsi1>200-scsi5"); the rest names the drives.
var numbers = regexp.MustCompile(`\d{3,}`)

func kindOf(u api.UPID) string { return u.Type + " " + numbers.ReplaceAllString(u.ID, "") }

// expected returns how long the task will take; 0 if unknown.
func (t *durations) expected(u api.UPID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.last[kindOf(u)]; ok {
		return known.time
	}
	return t.last[u.Type].time
}

// add records a task that succeeded. The task still ran after ran (0: never seen running), and had ended after ended.
func (t *durations) add(u api.UPID, ran, ended time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]estimate{}
	}
	before := t.last[kindOf(u)].ended
	now := estimate{time: ran}
	switch {
	case ran == 0:
		now = estimate{ended - ended/shorter[min(before, len(shorter)-1)], before + 1}
	case ended-ran < ended/8: // otherwise the polls were too far apart for a better estimate
		now.time = ran + (ended-ran)/2
	}
	t.last[kindOf(u)] = now
	t.last[u.Type] = estimate{time: now.time} // the best estimate for other tasks of this type
}
