package world

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Protected is a persistent disk: its volume must never be freed, never lack a name in some VM's configuration, never
// be in two running VMs, and only be changed by its own guest.
type Protected struct {
	Serial string // in the lab; its drive should have it too
	Media  *Media
	// Identity returns the part of the content that must not change, for a disk whose own guest writes the rest; nil:
	// the whole content must not change.
	Identity func(content []byte) string
	// Want returns the expected checksum of Identity, for disks whose own guest writes; nil: the checksum at the time
	// of Protect.
	Want func() string
	// Held says that the volume belongs to a VM that only holds it for others: its name must
	// not change, because others refer to it.
	Held bool
}

type guarded struct {
	Protected
	volid   string        // at the time of Protect
	unnamed time.Time     // since when no configuration names the volume; zero: a configuration names it
	longest time.Duration // longest earlier time without a name
}

func (p Protected) checksum() string {
	if p.Identity == nil {
		return p.Media.SHA256()
	}
	return NewMedia([]byte(p.Identity(p.Media.Bytes()))).SHA256()
}

// DiskState is the present state of a persistent disk.
type DiskState struct {
	Serial, SHA256 string // SHA256 is of what must not change
	Volid          string // "" once the volume was freed
	VMID           int    // of the configuration that names it; 0: none
	Key            string // in that configuration: "scsi1", "unused0"
	// Unnamed is how long no configuration has named the volume now, LongestUnnamed the longest such time since the
	// world began. An uninterrupted move takes no time.
	Unnamed, LongestUnnamed time.Duration
}

// Protect registers a persistent disk.
func (w *World) Protect(p Protected) {
	if p.Want == nil {
		sum := p.checksum()
		p.Want = func() string { return sum }
	}
	defer w.mu.changing()()
	g := &guarded{Protected: p}
	w.protected = append(w.protected, g)
	if places := w.allPlaces()[p.Media]; len(places) > 0 {
		g.volid = places[0]
	}
}

// Violations lists every broken promise since the world began, oldest first; tests expect an empty list.
func (w *World) Violations() []string {
	w.mu.Look()
	if w.brokenAt != w.mu.changes {
		w.broken, w.brokenAt = w.brokenSoFar(), w.mu.changes
	}
	list, protected := slices.Clone(w.broken), slices.Clone(w.protected)
	w.mu.Unlock()
	for _, p := range protected { // Want is foreign code
		if got, want := p.checksum(), p.Want(); got != want {
			list = append(list, fmt.Sprintf("disk %s: content is %s, was %s", p.Serial, got, want))
		}
	}
	return list
}

// brokenSoFar lists the broken promises except those about the content of disks.
func (w *World) brokenSoFar() []string {
	list := slices.Clone(w.violations)
	refs, places := w.references(), w.allPlaces()
	for _, p := range w.protected {
		for _, broken := range w.brokenNow(p, refs[p.Media], places[p.Media]) {
			if !slices.Contains(list, broken) {
				list = append(list, broken)
			}
		}
	}
	return list
}

// Persistent lists the persistent disks by serial.
func (w *World) Persistent() []DiskState {
	defer w.mu.changing()()
	w.noteNames()
	all, places := w.references(), w.allPlaces()
	var list []DiskState
	for _, p := range w.protected {
		d := DiskState{Serial: p.Serial, SHA256: p.checksum(), LongestUnnamed: p.longest}
		if !p.unnamed.IsZero() {
			d.Unnamed = time.Since(p.unnamed)
			d.LongestUnnamed = max(d.LongestUnnamed, d.Unnamed)
		}
		if places := places[p.Media]; len(places) > 0 {
			d.Volid = places[0]
		}
		if refs := all[p.Media]; len(refs) > 0 {
			d.VMID, d.Key = refs[0].vm.id, refs[0].key
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b DiskState) int { return strings.Compare(a.Serial, b.Serial) })
	return list
}

func (w *World) brokenNow(p *guarded, refs []reference, places []string) []string {
	var list []string
	if len(places) != 1 {
		list = append(list, fmt.Sprintf("disk %s: is in %d volumes %v", p.Serial, len(places), places))
	}
	if len(refs) == 0 {
		list = append(list, fmt.Sprintf("disk %s: no VM's configuration names its volume", p.Serial))
	}
	if p.Held && !slices.Contains(places, p.volid) {
		list = append(list, fmt.Sprintf("disk %s: is not %s any more, as its holder called it", p.Serial, p.volid))
	}
	if running := runningIn(refs); len(running) > 1 {
		list = append(list, fmt.Sprintf("disk %s: is in the running VMs %v", p.Serial, running))
	}
	return list
}

func runningIn(refs []reference) []int {
	var running []int
	for _, r := range refs {
		_, plugged := r.vm.config[r.key]
		plugged = plugged && !strings.HasPrefix(r.key, "unused")
		if plugged && r.vm.proc != nil && !r.vm.proc.paused && !slices.Contains(running, r.vm.id) {
			running = append(running, r.vm.id)
		}
	}
	return running
}

func (w *World) allPlaces() map[*Media][]string {
	all := make(map[*Media][]string, len(w.protected))
	for _, p := range w.protected {
		all[p.Media] = nil
	}
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		for _, host := range slices.Sorted(maps.Keys(w.storages[id].volumes)) {
			for name, v := range w.storages[id].volumes[host] {
				if list, is := all[v.media]; is {
					all[v.media] = append(list, id+":"+name)
				}
			}
		}
	}
	return all
}

type reference struct {
	vm  *vm
	key string
}

func (w *World) references() map[*Media][]reference {
	all := map[*Media][]reference{}
	for _, id := range w.vmids() {
		v := w.vms[id]
		for _, d := range v.reading().named() {
			if vol := w.volumeNamed(d.volid, v.host); vol != nil {
				all[vol.media] = append(all[vol.media], reference{vm: v, key: d.key})
			}
		}
	}
	return all
}

func (w *World) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// violateOf notes what happened to the volume of a persistent disk, or only to a holder's.
func (w *World) violateOf(v *volume, held bool, format, volid string) {
	for _, p := range w.protected {
		if p.Media == v.media && (p.Held || !held) {
			w.violate(format, p.Serial, volid)
		}
	}
}

func (w *World) violateSharing(v *vm) {
	for _, key := range driveKeys(v.config) {
		vol := w.volumeNamed(driveVolid(key, v.config[key]), v.host)
		if v.proc == nil || vol == nil || vol.content == "iso" || strings.HasPrefix(key, "unused") {
			continue
		}
		running := runningIn(w.references()[vol.media])
		if len(running) < 2 {
			continue
		}
		name := "volume " + driveVolid(key, v.config[key])
		if i := slices.IndexFunc(w.protected, func(p *guarded) bool { return p.Media == vol.media }); i >= 0 {
			name = "disk " + w.protected[i].Serial
		}
		if broken := fmt.Sprintf("%s: is in the running VMs %v", name, running); !slices.Contains(w.violations, broken) {
			w.violations = append(w.violations, broken)
		}
	}
}

// noteNames updates the list of persistent disks that no configuration names; mu must be held. It runs whenever a
// task or a change ends.
func (w *World) noteNames() {
	if len(w.protected) == 0 {
		return
	}
	refs := w.references()
	for _, p := range w.protected {
		switch named := len(refs[p.Media]) > 0; {
		case named && !p.unnamed.IsZero():
			p.longest, p.unnamed = max(p.longest, time.Since(p.unnamed)), time.Time{}
		case !named && p.unnamed.IsZero():
			p.unnamed = time.Now()
		}
	}
}

// Renewed is a value that Proxmox regenerates: it may differ between two worlds that count as equal.
type Renewed struct {
	Name   string // configuration key, or "volume numbers", "tasks"
	Reason string
}

// RenewedByProxmox returns the values that comparisons of two worlds ignore.
func RenewedByProxmox() []Renewed {
	return []Renewed{
		{"digest", "the checksum of the whole configuration, names of volumes included"},
		{"vmgenid", "made up on every create, and a token may not set it"},
		{"meta", "holds the time of creation"},
		{"volume numbers", "the lowest free one at that moment; they are reused"},
		{"tasks", "the list of what was done grows with every interruption"},
	}
}

// Dump writes the whole world as text, deterministically and without what leaveOut names.
// describe renders a medium's content; nil: its hash.
func (w *World) Dump(describe func(*Media) string, leaveOut ...Renewed) string {
	if describe == nil {
		describe = func(m *Media) string { return m.SHA256()[:16] }
	}
	defer w.mu.changing()()
	d := dumper{skip: map[string]bool{}, describe: describe}
	for _, r := range leaveOut {
		d.skip[r.Name] = true
	}
	for _, id := range w.vmids() {
		w.dumpVM(&d, w.vms[id])
	}
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		w.dumpStorage(&d, w.storages[id])
	}
	w.dumpAccess(&d)
	if !d.skip["tasks"] {
		for _, t := range w.tasks {
			d.linef("task %s %s", t.UPID, t.ExitStatus)
		}
	}
	return d.String()
}

type dumper struct {
	strings.Builder
	skip     map[string]bool
	describe func(*Media) string
}

func (d *dumper) linef(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if d.skip["volume numbers"] {
		line = regexp.MustCompile(`\b(vm-\d+-disk-)\d+`).ReplaceAllString(line, "$1*")
	}
	d.WriteString(line + "\n")
}

func (w *World) dumpVM(d *dumper, v *vm) {
	d.linef("VM %d on %s: %s, pool %q", v.id, v.host, map[bool]string{true: "running", false: "stopped"}[v.proc != nil], v.pool)
	section := func(title string, config map[string]string) {
		for _, key := range slices.SortedFunc(maps.Keys(config), compareKeys) {
			if !d.skip[key] {
				d.linef("  %s%s: %s%s", title, key, config[key], w.contentOf(d, v.host, key, config[key]))
			}
		}
	}
	section("", v.config)
	section("pending ", v.pending)
	for _, key := range slices.Sorted(maps.Keys(v.pendingDelete)) {
		d.linef("  pending delete %s", key)
	}
	for _, s := range v.snapshots {
		section("snapshot "+s.Name+" ", s.Config)
	}
	if !d.skip["digest"] {
		d.linef("  digest %s", v.digest())
	}
}

func (w *World) contentOf(d *dumper, host, key, value string) string {
	if vol := w.volumeNamed(driveVolid(key, value), host); vol != nil && isDriveKey(key) {
		return " = " + d.describe(vol.media)
	}
	return ""
}

func (w *World) dumpStorage(d *dumper, s *storage) {
	for _, host := range slices.Sorted(maps.Keys(s.volumes)) {
		var lines []string
		for name, v := range s.volumes[host] {
			if d.skip["volume numbers"] { // the order would reveal the numbers
				name = regexp.MustCompile(`-disk-\d+`).ReplaceAllString(name, "-disk-*")
			}
			lines = append(lines, fmt.Sprintf("  %s %s = %s", name, formatSize(v.size), d.describe(v.media)))
		}
		slices.Sort(lines)
		d.linef("storage %s on %q: %d volumes", s.ID, host, len(lines))
		for _, line := range lines {
			d.linef("%s", line)
		}
	}
}

func (w *World) dumpAccess(d *dumper) {
	pools := w.poolMembers()
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		d.linef("pool %s: %v", name, pools[name])
	}
	for _, sid := range slices.Sorted(maps.Keys(w.ha)) {
		d.linef("HA %s: %v", sid, w.ha[sid].options)
	}
	for _, r := range w.haRules {
		d.linef("HA rule %s: %s %v %v", r.ID, r.Type, r.Resources, r.Options)
	}
	for _, j := range w.replication {
		j.done = nil
		d.linef("replication %+v", j)
	}
	for _, j := range w.backups {
		d.linef("backup %+v", j)
	}
	for _, id := range slices.Sorted(maps.Keys(w.firewalls)) {
		d.linef("firewall of VM %d: %+v", id, w.firewalls[id])
	}
	var lines []string
	for _, a := range w.acls {
		lines = append(lines, fmt.Sprintf("ACL %s %s %s propagate=%v", a.Path, a.Who, a.Role, a.Propagate))
	}
	slices.Sort(lines)
	for _, line := range lines {
		d.linef("%s", line)
	}
	for _, id := range slices.Sorted(maps.Keys(w.tokens)) {
		d.linef("token %s privsep=%v", id, w.tokens[id].Privsep)
	}
}
