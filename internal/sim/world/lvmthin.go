package world

import (
	"maps"
	"slices"
)

// ThinPool is an LVM thin pool as its host sees it.
type ThinPool struct {
	VolumeGroup, Name          string
	Size, Used                 int64 // bytes; Used counts bytes written, not allocated
	MetadataSize, MetadataUsed int64
}

// SetThinPool sets the usage of a host's pool below an lvmthin storage. Its names and size
// are the storage's.
func (w *World) SetThinPool(id, host string, p ThinPool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		s.pools[host] = p
	}
}

// ThinPools lists the thin pools of a host, by storage.
func (w *World) ThinPools(host string) []ThinPool {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []ThinPool
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		s := w.storages[id]
		if s.Type != "lvmthin" || !s.on(host) || s.offline[host] {
			continue
		}
		p, ok := s.pools[host]
		if !ok {
			p = ThinPool{MetadataSize: s.Capacity / 100, MetadataUsed: s.Capacity / 1000}
		}
		p.VolumeGroup, p.Name, p.Size, p.Used = s.VolumeGroup, s.ThinPool, s.Capacity, s.used(host)
		list = append(list, p)
	}
	return list
}
