package world

import "slices"

// thick says whether a new image takes its whole size at once: LVM always, ZFS unless the
// storage is sparse, files if preallocated (LVMPlugin.pm, ZFSPoolPlugin.pm,
// preallocation_cmd_opt of Storage/Plugin.pm).
func (s *storage) thick() bool {
	switch s.Type {
	case "lvmthin", "rbd":
		return false
	case "lvm":
		return true
	case "zfspool", "zfs":
		return !s.Sparse
	}
	return slices.Contains([]string{"falloc", "full"}, s.Preallocation)
}

// taken is the space that a volume takes.
func (s *storage) taken(v *volume) int64 {
	if v.content != imageKind || s.thick() {
		return v.size
	}
	return v.filled()
}

// firstTaken is the space that a new image of that size takes.
func (s *storage) firstTaken(size int64) int64 {
	if s.thick() {
		return size
	}
	return min(size, firstBlock)
}

// used is the used space, as the plugins' status reports it.
func (s *storage) used(host string) int64 {
	if s.full {
		return s.Capacity
	}
	if pool, ok := s.pools[host]; ok {
		return pool.Used
	}
	var sum int64
	for _, v := range s.at(host) {
		sum += s.taken(v)
	}
	return sum
}

func (s *storage) room(host string, size int64) bool {
	return s.used(host)+size <= s.Capacity
}

// SetCapacity sets a storage's size, per host if it is not shared.
func (w *World) SetCapacity(id string, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.Capacity = bytes
	}
}

// Preallocate makes a storage of files allocate new images fully, like its option
// preallocation.
func (w *World) Preallocate(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.Preallocation = "falloc"
	}
}
