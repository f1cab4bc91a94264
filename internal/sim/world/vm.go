package world

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// VM is a snapshot of one VM.
type VM struct {
	ID            int
	Host          string
	Config        map[string]string // as stored, without pending changes
	Pending       map[string]string // values that apply when the VM stops
	PendingDelete map[string]bool   // keys that are deleted when it stops; true: freed instead of detached
	Digest        string
	Pool          string
	HA            HAStatus
	Running       bool
	QMP           string // qmpstatus
	Started       time.Time
	Snapshots     []Snapshot // oldest first
}

// Value is the value of one key in Merged.
func (v VM) Value(key string) string {
	if _, gone := v.PendingDelete[key]; gone {
		return ""
	}
	if value, waits := v.Pending[key]; waits {
		return value
	}
	return v.Config[key]
}

// Merged is the configuration with pending changes applied: the API's default view.
func (v VM) Merged() map[string]string {
	config := maps.Clone(v.Config)
	maps.Copy(config, v.Pending)
	for key := range v.PendingDelete {
		delete(config, key)
	}
	return config
}

type vm struct {
	id            int
	host          string
	config        map[string]string
	pending       map[string]string
	pendingDelete map[string]bool
	snapshots     []Snapshot
	pool          string
	read          *reading
	proc          *process
	qmp           string // while running
	// When it was made, when it last stopped, and when that run had started.
	made, stopped, ranSince time.Time
}

func newVM(id int, host string, config map[string]string) *vm {
	return &vm{id: id, host: host, config: config, pending: map[string]string{}, pendingDelete: map[string]bool{}}
}

// render writes the configuration file.
func (v *vm) render() string {
	var b strings.Builder
	section := func(config map[string]string) {
		for _, key := range slices.SortedFunc(maps.Keys(config), compareKeys) {
			fmt.Fprintf(&b, "%s: %s\n", key, config[key])
		}
	}
	section(v.config)
	if len(v.pending)+len(v.pendingDelete) > 0 {
		b.WriteString("\n[PENDING]\n")
		section(v.pending)
		for _, key := range slices.Sorted(maps.Keys(v.pendingDelete)) {
			fmt.Fprintf(&b, "delete: %s\n", key)
		}
	}
	for _, s := range v.snapshots {
		fmt.Fprintf(&b, "\n[%s]\n", s.Name)
		section(s.Config)
	}
	return b.String()
}

// digest of the configuration file.
func (v *vm) digest() string {
	r := v.reading()
	if len(v.snapshots) == 0 && r.digest != "" {
		return r.digest
	}
	sum := sha1.Sum([]byte(v.render()))
	digest := hex.EncodeToString(sum[:])
	if len(v.snapshots) == 0 {
		r.digest = digest
	}
	return digest
}

// reading is a cached copy of a configuration, which is read far more often than it
// changes. Its maps never change and may be shared.
type reading struct {
	config, pending map[string]string
	pendingDelete   map[string]bool
	digest          string    // for VMs without snapshots; "": not computed yet
	drives          []driveAt // of both maps; nil: not computed yet
}

// driveAt is a key that names a volume.
type driveAt struct{ key, volid string }

// reading returns the cached copy, and renews it if the configuration has changed.
func (v *vm) reading() *reading {
	if !v.read.of(v) {
		v.read = &reading{config: maps.Clone(v.config), pending: maps.Clone(v.pending), pendingDelete: maps.Clone(v.pendingDelete)}
	}
	return v.read
}

func (r *reading) of(v *vm) bool {
	return r != nil && maps.Equal(r.config, v.config) && maps.Equal(r.pending, v.pending) && maps.Equal(r.pendingDelete, v.pendingDelete)
}

// named lists the keys that name volumes, in bus order.
func (r *reading) named() []driveAt {
	if r.drives != nil {
		return r.drives
	}
	r.drives = []driveAt{}
	for _, config := range []map[string]string{r.config, r.pending} {
		for _, key := range driveKeys(config) {
			r.drives = append(r.drives, driveAt{key, driveVolid(key, config[key])})
		}
	}
	return r.drives
}

func (v *vm) checkLock() error {
	if lock := v.config["lock"]; lock != "" {
		return failf("VM is locked (%s)", lock)
	}
	return nil
}

// uuid is the SMBIOS UUID, lower-case.
func (v *vm) uuid() string { return strings.ToLower(property(v.config["smbios1"], "uuid")) }

// property reads one value of "a=1,b=2".
func property(list, name string) string {
	for part := range strings.SplitSeq(list, ",") {
		if v, ok := strings.CutPrefix(part, name+"="); ok {
			return v
		}
	}
	return ""
}

// macs lists the MAC addresses in order of netN.
func (v *vm) macs() []string {
	var macs []string
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		if optionName(key) != "net" {
			continue
		}
		if mac := netMAC(v.config[key]); mac != "" {
			macs = append(macs, mac)
		}
	}
	return macs
}

// netMAC reads the MAC of "virtio=BC:24:11:00:00:01,bridge=vmbr0", upper-case.
func netMAC(value string) string {
	first, _, _ := strings.Cut(value, ",")
	_, mac, _ := strings.Cut(first, "=")
	return strings.ToUpper(mac)
}

func (w *World) vmids() []int { return slices.Sorted(maps.Keys(w.vms)) }

// vmOn finds a VM through its host; through another one it does not exist.
func (w *World) vmOn(host string, id int) (*vm, error) {
	v, ok := w.vms[id]
	if !ok || v.host != host {
		return nil, noConfigFile(host, id)
	}
	return v, nil
}

// LookupVM reads a VM through its host.
func (w *World) LookupVM(host string, id int) (VM, error) {
	w.mu.Look()
	defer w.mu.Unlock()
	v, err := w.vmOn(host, id)
	if err != nil {
		return VM{}, err
	}
	return w.view(v), nil
}

// VMs lists all VMs of the datacentre by VMID. The caller must not change their maps.
func (w *World) VMs() []VM {
	w.mu.Look()
	defer w.mu.Unlock()
	if w.seenAt != w.mu.changes {
		w.seen, w.seenAt = nil, w.mu.changes
		for _, id := range w.vmids() {
			w.seen = append(w.seen, w.sharedView(w.vms[id]))
		}
	}
	return slices.Clone(w.seen)
}

func (w *World) view(v *vm) VM {
	out := w.sharedView(v)
	out.Config, out.Pending, out.PendingDelete = maps.Clone(out.Config), maps.Clone(out.Pending), maps.Clone(out.PendingDelete)
	return out
}

// sharedView is a VM that shares the maps of its reading.
func (w *World) sharedView(v *vm) VM {
	r := v.reading()
	out := VM{
		ID: v.id, Host: v.host, Config: r.config, Pending: r.pending,
		PendingDelete: r.pendingDelete, Digest: v.digest(), Pool: v.pool, HA: w.haStatus(v.id),
		Running: v.proc != nil, QMP: "stopped", Snapshots: slices.Clone(v.snapshots),
	}
	if v.proc != nil {
		out.QMP, out.Started = cmp.Or(v.qmp, "running"), v.proc.started
	}
	return out
}
