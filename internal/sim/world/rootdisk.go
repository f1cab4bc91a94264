package world

// rootDisk is a host's disk with / and /var/tmp.
type rootDisk struct{ total, used int64 }

// SetRootDisk sets the size and usage of a host's root disk.
func (w *World) SetRootDisk(host string, total, used int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*w.root(host) = rootDisk{total: total, used: used}
}

// RootDisk is the size and usage of a host's root disk, including uploads in /var/tmp.
func (w *World) RootDisk(host string) (total, used int64) {
	w.mu.Look()
	defer w.mu.Unlock()
	d := w.root(host)
	return d.total, d.used
}

// root is a host's root disk, by default 1 TiB with a tenth in use; mu must be held.
func (w *World) root(host string) *rootDisk {
	d, ok := w.roots[host]
	if !ok {
		d = &rootDisk{total: 1024 * gib, used: 102 * gib}
		w.roots[host] = d
	}
	return d
}

func (w *World) takeRoot(host string, more int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.root(host)
	if more > 0 && d.used+more > d.total {
		return false
	}
	d.used += more
	return true
}
