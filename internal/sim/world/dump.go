package world

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Renewed is something that Proxmox regenerates, so that it may differ between two worlds
// that count as equal.
type Renewed struct {
	Name   string // configuration key, or "volume numbers", "tasks"
	Reason string
}

// RenewedByProxmox is what comparisons of two worlds ignore.
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
	w.mu.Lock()
	defer w.mu.Unlock()
	skip := map[string]bool{}
	for _, r := range leaveOut {
		skip[r.Name] = true
	}
	d := dumper{skip: skip, describe: describe}
	for _, id := range w.vmids() {
		w.dumpVM(&d, w.vms[id])
	}
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		w.dumpStorage(&d, w.storages[id])
	}
	w.dumpAccess(&d)
	if !skip["tasks"] {
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
	state := "stopped"
	if v.proc != nil {
		state = "running"
	}
	d.linef("VM %d on %s: %s, pool %q", v.id, v.host, state, v.pool)
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

// contentOf adds the content of a drive.
func (w *World) contentOf(d *dumper, host, key, value string) string {
	if !isDriveKey(key) {
		return ""
	}
	_, vol, err := w.volume(driveVolid(key, value), host)
	if err != nil {
		return ""
	}
	return " = " + d.describe(vol.media)
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
	pools := map[string][]int{}
	for name := range w.pools {
		pools[name] = nil
	}
	for _, id := range w.vmids() {
		if p := w.vms[id].pool; p != "" {
			pools[p] = append(pools[p], id)
		}
	}
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
