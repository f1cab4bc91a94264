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

// VM is one VM as the world knows it at one moment.
type VM struct {
	ID            int
	Host          string
	Config        map[string]string // as stored; without pending changes
	Pending       map[string]string // values that wait for the VM to stop
	PendingDelete map[string]bool   // keys that go when it stops; true: freed instead of detached
	Digest        string
	Pool          string
	HA            HAStatus
	Running       bool
	QMP           string // qmpstatus
	Started       time.Time
	Snapshots     []Snapshot // oldest first
}

// Merged is the configuration with pending changes applied: what the API shows by default.
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
	read          reading
	proc          *process
	qmp           string // while running
	// When it was made, when it last ended, and since when it had been running then.
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

// digest is asked for far more often than a configuration changes.
func (v *vm) digest() string {
	if len(v.snapshots) == 0 && v.read.of(v) {
		return v.read.digest
	}
	sum := sha1.Sum([]byte(v.render()))
	if len(v.snapshots) > 0 {
		return hex.EncodeToString(sum[:])
	}
	v.read = reading{
		config: maps.Clone(v.config), pending: maps.Clone(v.pending), pendingDelete: maps.Clone(v.pendingDelete), digest: hex.EncodeToString(sum[:]),
	}
	return v.read.digest
}

// reading is a configuration without snapshots and its digest.
type reading struct {
	config, pending map[string]string
	pendingDelete   map[string]bool
	digest          string
}

// of says whether the VM's configuration is still the one that was read.
func (r reading) of(v *vm) bool {
	return r.digest != "" && maps.Equal(r.config, v.config) && maps.Equal(r.pending, v.pending) && maps.Equal(r.pendingDelete, v.pendingDelete)
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

// vmOn finds a VM through the host it is on; through another one it does not exist.
func (w *World) vmOn(host string, id int) (*vm, error) {
	v, ok := w.vms[id]
	if !ok || v.host != host {
		return nil, noConfigFile(host, id)
	}
	return v, nil
}

// LookupVM reads a VM through the host it is on.
func (w *World) LookupVM(host string, id int) (VM, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, err := w.vmOn(host, id)
	if err != nil {
		return VM{}, err
	}
	return w.view(v), nil
}

// VMs lists all VMs of the datacentre by VMID.
func (w *World) VMs() []VM {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []VM
	for _, id := range w.vmids() {
		list = append(list, w.view(w.vms[id]))
	}
	return list
}

func (w *World) view(v *vm) VM {
	out := VM{
		ID: v.id, Host: v.host, Config: maps.Clone(v.config), Pending: maps.Clone(v.pending),
		PendingDelete: maps.Clone(v.pendingDelete), Digest: v.digest(), Pool: v.pool, HA: w.haStatus(v.id),
		Running: v.proc != nil, QMP: "stopped", Snapshots: slices.Clone(v.snapshots),
	}
	if v.proc != nil {
		out.QMP, out.Started = cmp.Or(v.qmp, "running"), v.proc.started
	}
	return out
}
