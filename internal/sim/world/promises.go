package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Protected is a persistent disk: its volume must never be freed, never be
// without a name in some VM's configuration, never be in two running VMs, and
// never change but by its own guest's hand.
type Protected struct {
	Serial string // as the lab calls it; what its drive should carry
	Media  *Media
	// Want is the SHA-256 that the content should have, for disks whose own
	// guest writes; nil: the one at the time of Protect, for ever.
	Want func() string
}

// DiskState is a persistent disk as it is now.
type DiskState struct {
	Serial, SHA256 string
	Volid          string // "" once the volume is gone
	VMID           int    // whose configuration names it; 0: nobody's
	Key            string // under which key: "scsi1", "unused0"
}

// Protect registers a persistent disk.
func (w *World) Protect(p Protected) {
	if p.Want == nil {
		sum := p.Media.SHA256()
		p.Want = func() string { return sum }
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.protected = append(w.protected, p)
}

// Violations lists every promise that was broken since the world began or is
// broken now, oldest first; none is what a test wants.
func (w *World) Violations() []string {
	w.mu.Lock()
	list := slices.Clone(w.violations)
	protected := slices.Clone(w.protected)
	for _, p := range protected {
		list = append(list, w.brokenNow(p)...)
	}
	w.mu.Unlock()
	for _, p := range protected { // Want is foreign code
		if got, want := p.Media.SHA256(), p.Want(); got != want {
			list = append(list, fmt.Sprintf("disk %s: content is %s, was %s", p.Serial, got, want))
		}
	}
	return list
}

// Persistent lists the persistent disks by serial.
func (w *World) Persistent() []DiskState {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []DiskState
	for _, p := range w.protected {
		d := DiskState{Serial: p.Serial, SHA256: p.Media.SHA256()}
		if places := w.places(p.Media); len(places) > 0 {
			d.Volid = places[0]
		}
		if refs := w.references(p.Media); len(refs) > 0 {
			d.VMID, d.Key = refs[0].vm.id, refs[0].key
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b DiskState) int { return strings.Compare(a.Serial, b.Serial) })
	return list
}

func (w *World) brokenNow(p Protected) []string {
	var list []string
	if places := w.places(p.Media); len(places) != 1 {
		list = append(list, fmt.Sprintf("disk %s: is in %d volumes %v", p.Serial, len(places), places))
	}
	refs := w.references(p.Media)
	if len(refs) == 0 {
		list = append(list, fmt.Sprintf("disk %s: no VM's configuration names its volume", p.Serial))
	}
	var running []int
	for _, r := range refs {
		if r.vm.proc != nil && !slices.Contains(running, r.vm.id) {
			running = append(running, r.vm.id)
		}
	}
	if len(running) > 1 {
		list = append(list, fmt.Sprintf("disk %s: is in the running VMs %v", p.Serial, running))
	}
	return list
}

// places lists the volids that hold this content.
func (w *World) places(m *Media) []string {
	var list []string
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		for _, host := range slices.Sorted(maps.Keys(w.storages[id].volumes)) {
			for name, v := range w.storages[id].volumes[host] {
				if v.media == m {
					list = append(list, id+":"+name)
				}
			}
		}
	}
	return list
}

type reference struct {
	vm  *vm
	key string
}

// references lists the configuration keys that name the volume with this content.
func (w *World) references(m *Media) []reference {
	var list []reference
	for _, id := range w.vmids() {
		v := w.vms[id]
		for _, config := range []map[string]string{v.config, v.pending} {
			for _, key := range driveKeys(config) {
				_, vol, err := w.volume(driveVolid(key, config[key]), v.host)
				if err == nil && vol.media == m {
					list = append(list, reference{vm: v, key: key})
				}
			}
		}
	}
	return list
}

func (w *World) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// violateLosses records the persistent disks that the destruction of v frees.
func (w *World) violateLosses(v *vm) {
	for _, volid := range v.volids() {
		_, vol, err := w.volume(volid, v.host)
		if err != nil || volumeOwner(volid) != v.id {
			continue
		}
		for _, p := range w.protected {
			if p.Media == vol.media {
				w.violate("VM %d was deleted while it owned disk %s", v.id, p.Serial)
			}
		}
	}
}
