package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Snapshot is a snapshot of a VM.
type Snapshot struct {
	Name        string
	Description string
	Memory      bool // includes the state of the running VM, in its own volume
	Time        time.Time
	Parent      string
	Config      map[string]string // at the time of the snapshot
}

// AddSnapshot adds a snapshot of a VM's configuration, without disk content.
func (w *World) AddSnapshot(id int, s Snapshot) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.vms[id]
	if !ok {
		return fmt.Errorf("add snapshot %s: no VM %d", s.Name, id)
	}
	if err := w.snapshot(v, s); err != nil {
		return fmt.Errorf("add snapshot %s: %w", s.Name, err)
	}
	return nil
}

func (w *World) snapshot(v *vm, s Snapshot) error {
	s.Config, s.Parent = maps.Clone(v.config), v.config["parent"]
	maps.DeleteFunc(s.Config, func(key, _ string) bool { // __snapshot_copy_config in AbstractConfig.pm
		return strings.HasPrefix(key, "unused") || key == "lock" || key == "description"
	})
	s.Time = cmp.Or(s.Time, w.now(v.host))
	s.Config["snaptime"] = strconv.FormatInt(s.Time.Unix(), 10)
	if s.Description != "" {
		s.Config["description"] = s.Description
	}
	if s.Memory {
		state, err := w.saveState(v, s.Name)
		if err != nil {
			return err
		}
		s.Config["vmstate"] = state
	}
	v.config["parent"] = s.Name
	v.snapshots = append(v.snapshots, s)
	return nil
}

// DeleteSnapshot removes a snapshot of a VM; its children get its parent.
func (w *World) DeleteSnapshot(id int, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.vms[id]
	if !ok {
		return fmt.Errorf("delete snapshot %s: no VM %d", name, id)
	}
	if err := w.forgetSnapshot(v, name); err != nil {
		return fmt.Errorf("delete snapshot %s of VM %d: %w", name, id, err)
	}
	return nil
}

func (w *World) forgetSnapshot(v *vm, name string) error {
	i := slices.IndexFunc(v.snapshots, func(s Snapshot) bool { return s.Name == name })
	if i < 0 {
		return failf("snapshot '%s' does not exist", name)
	}
	gone := v.snapshots[i]
	if state := gone.Config["vmstate"]; state != "" {
		if err := w.freeVolume(state, v.host); err != nil {
			return err
		}
	}
	v.snapshots = slices.Delete(v.snapshots, i, i+1)
	for i := range v.snapshots {
		if v.snapshots[i].Parent == name {
			v.snapshots[i].Parent = gone.Parent
		}
	}
	if v.config["parent"] == name {
		if v.config["parent"] = gone.Parent; gone.Parent == "" {
			delete(v.config, "parent")
		}
	}
	return nil
}

// saveState allocates the volume for a VM's memory on the storage of its first disk.
func (w *World) saveState(v *vm, snapshot string) (volid string, err error) {
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || d.empty() || d.cdrom() {
			continue
		}
		s, _, err := w.volume(d.volid, v.host)
		if err != nil {
			return "", err
		}
		if s == nil {
			continue // a device of the host
		}
		name := fmt.Sprintf("vm-%d-state-%s", v.id, snapshot)
		if !s.block() {
			name = fmt.Sprintf("%d/%s.raw", v.id, name)
		}
		return w.allocateNamed(s, v.host, name, gib, NewMedia(nil))
	}
	return "", fmt.Errorf("VM %d has no disk", v.id)
}

// inUse says whether another key of the VM, or a snapshot, uses a volume (is_volume_in_use
// in Drive.pm).
func (v *vm) inUse(volid, but string) bool {
	names := func(config map[string]string, but string) bool {
		return slices.ContainsFunc(driveKeys(config), func(key string) bool {
			return key != but && !strings.HasPrefix(key, "unused") && driveVolid(key, config[key]) == volid
		})
	}
	return names(v.config, but) || slices.ContainsFunc(v.snapshots, func(s Snapshot) bool { return names(s.Config, "") })
}

// SnapshotRequest asks to make or remove a snapshot.
type SnapshotRequest struct {
	ID          int
	Name        string
	Description string
	Memory      bool
}

// CreateSnapshot makes a snapshot, in a task.
func (w *World) CreateSnapshot(user, host string, r SnapshotRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(r.ID), "VM.Snapshot"); err != nil {
		return "", err
	}
	if r.Name == "current" || strings.EqualFold(r.Name, "pending") {
		return "", failf("unable to use snapshot name '%s' (reserved name)", strings.ToLower(r.Name))
	}
	if _, err := w.vmOn(host, r.ID); err != nil {
		return "", err
	}
	return w.startTask(host, "qmsnapshot", strconv.Itoa(r.ID), user, func(t *task) error {
		return w.withVM(t, host, r.ID, func(v *vm) error {
			if err := w.checkSnapshot(v, r.Name); err != nil {
				return err
			}
			if err := w.writeConfig(v); err != nil {
				return err
			}
			return w.snapshot(v, Snapshot{Name: r.Name, Description: r.Description, Memory: r.Memory && v.proc != nil})
		})
	}), nil
}

// checkSnapshot checks that every volume supports snapshots (__snapshot_prepare in
// AbstractConfig.pm).
func (w *World) checkSnapshot(v *vm, name string) error {
	if v.config["template"] == "1" {
		return failf("you can't take a snapshot if it's a template")
	}
	if slices.ContainsFunc(v.snapshots, func(s Snapshot) bool { return s.Name == name }) {
		return failf("snapshot name '%s' already used", name)
	}
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || d.empty() || d.cdrom() || strings.HasPrefix(key, "unused") {
			continue
		}
		s, vol, err := w.volume(d.volid, v.host)
		if err != nil {
			return err
		}
		if s == nil || !s.snapshots(vol.format) {
			return failf("snapshot feature is not available")
		}
	}
	return nil
}

// RemoveSnapshot removes a snapshot, in a task.
func (w *World) RemoveSnapshot(user, host string, id int, name string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(id), "VM.Snapshot"); err != nil {
		return "", err
	}
	return w.startTask(host, "qmdelsnapshot", strconv.Itoa(id), user, func(t *task) error {
		return w.withVM(t, host, id, func(v *vm) error {
			if err := w.writeConfig(v); err != nil {
				return err
			}
			return w.forgetSnapshot(v, name)
		})
	}), nil
}
