package world

import (
	"fmt"
	"maps"
)

// DefineVM adds a VM without a request. config is as in the API ("scsi0":
// "fast:10,serial=s"); content is the content of newly allocated disks, by key.
func (w *World) DefineVM(host string, id int, config map[string]string, content map[string]*Media) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.vms[id] != nil {
		return fmt.Errorf("define VM %d: it exists already", id)
	}
	v := newVM(id, host, map[string]string{})
	config = maps.Clone(config)
	if v.pool = config["pool"]; v.pool != "" {
		w.pools[v.pool] = true
		delete(config, "pool")
	}
	if err := checkOptions(config); err != nil {
		return fmt.Errorf("define VM %d: %w", id, err)
	}
	if _, err := w.fill(v, config, content); err != nil {
		return fmt.Errorf("define VM %d: %w", id, err)
	}
	w.vms[id] = v
	return nil
}

// WriteByHand adds a line to a VM's configuration file, as an editor would: unchecked and
// unnormalized.
func (w *World) WriteByHand(id int, key, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vms[id].config[key] = value
}

// AddISO puts an ISO file on a storage; host matters if the storage is not shared.
func (w *World) AddISO(storageID, host, name string, content []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(storageID, host)
	if err != nil {
		return fmt.Errorf("add ISO %s: %w", name, err)
	}
	s.putISO(host, name, content)
	return nil
}

// AddSnippet puts a file on a storage that configurations can name.
func (w *World) AddSnippet(storageID, host, name string, content []byte) error {
	return w.addFile(snippetKind, storageID, host, name, content)
}

// AddImage puts a disk image on a storage from which drives can be made.
func (w *World) AddImage(storageID, host, name string, content []byte) error {
	return w.addFile(importKind, storageID, host, name, content)
}

func (w *World) addFile(kind, storageID, host, name string, content []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(storageID, host)
	if err != nil {
		return fmt.Errorf("add %s/%s: %w", kind, name, err)
	}
	v := s.put(host, kind+"/"+name)
	v.media.Write(content)
	v.size = int64(len(content))
	return nil
}

// AddPool makes a resource pool.
func (w *World) AddPool(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pools[name] = true
}

// Pools maps each pool to the VMIDs in it, in order.
func (w *World) Pools() map[string][]int {
	w.mu.Look()
	defer w.mu.Unlock()
	pools := map[string][]int{}
	for name := range w.pools {
		pools[name] = nil
	}
	for _, id := range w.vmids() {
		if p := w.vms[id].pool; p != "" {
			pools[p] = append(pools[p], id)
		}
	}
	return pools
}

// SetLock sets or, with "", clears the lock of a VM's configuration: "backup", "migrate", ….
func (w *World) SetLock(vmid int, lock string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.vms[vmid]; v != nil {
		if v.config["lock"] = lock; lock == "" {
			delete(v.config, "lock")
		}
	}
}

// SetQMP makes a running VM report another QMP status: "io-error", "internal-error", "paused".
func (w *World) SetQMP(vmid int, status string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.vms[vmid]; v != nil {
		v.qmp = status
	}
}
