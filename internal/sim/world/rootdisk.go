package world

// rootDisk is the disk of a host that /, and with it /var/tmp, is on.
type rootDisk struct{ total, used int64 }

// SetRootDisk says how large a host's root disk is and how much of it is in use.
func (w *World) SetRootDisk(host string, total, used int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*w.root(host) = rootDisk{total: total, used: used}
}

// RootDisk is how large a host's root disk is and how much of it is in use,
// uploads that lie in /var/tmp included.
func (w *World) RootDisk(host string) (total, used int64) {
	w.mu.Look()
	defer w.mu.Unlock()
	d := w.root(host)
	return d.total, d.used
}

// root is a host's root disk, of 1 TiB and used to a tenth unless said otherwise; mu must be held.
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
