package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Snapshot is a snapshot of a VM.
type Snapshot struct {
	Name        string
	Description string
	Memory      bool // with the state of the running VM, in a volume of its own
	Time        time.Time
	Parent      string
	Config      map[string]string // what the VM had then
}

// AddSnapshot gives a VM a snapshot of its configuration; disk content is not kept.
func (w *World) AddSnapshot(id int, s Snapshot) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.vms[id]
	if !ok {
		return fmt.Errorf("add snapshot %s: no VM %d", s.Name, id)
	}
	s.Config, s.Parent = maps.Clone(v.config), v.config["parent"]
	s.Time = cmp.Or(s.Time, time.Now())
	s.Config["snaptime"] = strconv.FormatInt(s.Time.Unix(), 10)
	if s.Description != "" {
		s.Config["description"] = s.Description
	}
	if s.Memory {
		state, err := w.saveState(v, s.Name)
		if err != nil {
			return fmt.Errorf("add snapshot %s: %w", s.Name, err)
		}
		s.Config["vmstate"] = state
	}
	v.config["parent"] = s.Name
	v.snapshots = append(v.snapshots, s)
	return nil
}

// DeleteSnapshot removes a snapshot of a VM; those made after it follow the one before it.
func (w *World) DeleteSnapshot(id int, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.vms[id]
	if !ok {
		return fmt.Errorf("delete snapshot %s: no VM %d", name, id)
	}
	i := slices.IndexFunc(v.snapshots, func(s Snapshot) bool { return s.Name == name })
	if i < 0 {
		return fmt.Errorf("delete snapshot %s: VM %d has none of that name", name, id)
	}
	gone := v.snapshots[i]
	if state := gone.Config["vmstate"]; state != "" {
		if err := w.freeVolume(state, v.host); err != nil {
			return fmt.Errorf("delete snapshot %s: %w", name, err)
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

// saveState allocates the volume for a VM's memory beside its first disk.
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

// inSnapshot says that a snapshot of the VM needs a volume.
func (v *vm) inSnapshot(volid string) bool {
	return slices.ContainsFunc(v.snapshots, func(s Snapshot) bool {
		return slices.ContainsFunc(driveKeys(s.Config), func(key string) bool {
			return driveVolid(key, s.Config[key]) == volid
		})
	})
}
