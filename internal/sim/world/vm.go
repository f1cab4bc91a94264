package world

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
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

// Value returns the value of one key in Merged.
func (v VM) Value(key string) string {
	if _, gone := v.PendingDelete[key]; gone {
		return ""
	}
	if value, waits := v.Pending[key]; waits {
		return value
	}
	return v.Config[key]
}

// Merged returns the configuration with pending changes applied: the API's default view.
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
	// made is when the VM was made, stopped when it last stopped, and ranSince when the run that then ended had started.
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

// digest returns the digest of the configuration file.
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

// uuid returns the SMBIOS UUID, lower-case.
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

// vmOn finds a VM through its host; through another host the VM does not exist.
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

// sharedView returns a VM that shares the maps of its reading.
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

// Container is an LXC container. It only occupies its VMID.
type Container struct {
	ID         int
	Name, Host string
}

// DefineContainer adds a container without a request.
func (w *World) DefineContainer(c Container) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.unused(c.ID); err != nil {
		return fmt.Errorf("define container: %w", err)
	}
	w.containers = append(w.containers, c)
	return nil
}

func (w *World) Containers() []Container { return cloned(w, &w.containers) }

// unused fails if a VM or a container has that number (pve-cluster, Cluster.pm, check_vmid_unused).
func (w *World) unused(id int) error {
	if old, ok := w.vms[id]; ok {
		return fmt.Errorf("VM %d already exists on node '%s'", id, old.host)
	}
	for _, c := range w.containers {
		if c.ID == id {
			return fmt.Errorf("CT %d already exists on node '%s'", id, c.Host)
		}
	}
	return nil
}

func (w *World) CreatePool(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.hasQuorum():
		return failf("create pool failed: cfs-lock 'file-user_cfg' error: no quorum!")
	case w.pools[name]:
		return failf("create pool failed: pool '%s' already exists", name)
	}
	w.pools[name] = true
	return nil
}

// JoinPool adds a VM to a pool, or moves the VM to that pool; the VM's configuration does not change (pve-manager,
// PVE/API2/Pool.pm, update_pool).
func (w *World) JoinPool(user string, id int, pool string, move bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	vm, err := w.inPools(user, id, pool)
	switch {
	case err != nil:
		return err
	case vm.pool == pool:
		return failf(poolsFailed+"VM %d is already a pool member", id)
	case vm.pool != "" && !move:
		return failf(poolsFailed+"VM %d belongs already to pool '%s'", id, vm.pool)
	}
	vm.pool = pool
	return nil
}

// LeavePool takes a VM out of a pool.
func (w *World) LeavePool(user string, id int, pool string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	vm, err := w.inPools(user, id, pool)
	switch {
	case err != nil:
		return err
	case vm.pool != pool:
		return failf(poolsFailed+"VM %d is not a pool member", id)
	}
	vm.pool = ""
	return nil
}

const poolsFailed = "update pools failed: "

// inPools returns a VM whose pool the user may change; mu must be held.
func (w *World) inPools(user string, id int, pool string) (*vm, error) {
	switch {
	case !w.hasQuorum():
		return nil, failf(poolsFailed + "cfs-lock 'file-user_cfg' error: no quorum!")
	case !w.pools[pool]:
		return nil, failf(poolsFailed+"pool '%s' does not exist", pool)
	}
	if err := w.check(user, vmPath(id), "Permissions.Modify", "VM.Allocate"); err != nil { // check_perm_modify of RPCEnvironment.pm
		return nil, err
	}
	if w.vms[id] == nil {
		return nil, failf(poolsFailed+"VM %d does not exist", id)
	}
	return w.vms[id], nil
}

// statusRound is how often a host's pvestatd reports its VMs to the cluster.
const statusRound = 10 * time.Second

// Report is the cluster's knowledge of a VM, which may lag behind its host's.
type Report struct {
	Known   bool // its host has reported it since it was made: else status and name are unknown
	Running bool
}

// Report returns the latest report of the VM's host.
func (w *World) Report(id int) Report {
	w.mu.Look()
	defer w.mu.Unlock()
	v, ok := w.vms[id]
	if !ok {
		return Report{}
	}
	last := time.Now().Truncate(w.scaled(statusRound))
	before := func(t time.Time) bool { return !t.After(last) }
	known := v.made.Before(last)
	switch {
	case v.proc != nil:
		return Report{Known: known, Running: before(v.proc.started)}
	case before(v.stopped):
		return Report{Known: known}
	}
	return Report{Known: known, Running: before(v.ranSince)}
}

// markNew says that a VM was just made.
func (v *vm) markNew() { v.made = time.Now() }

// Firewall is the firewall of one VM: /etc/pve/firewall/<vmid>.fw.
type Firewall struct {
	Options map[string]string // "enable", "policy_in"
	Rules   []FirewallRule
	Aliases []FirewallAlias
	IPSets  []FirewallSet
}

// FirewallRule is one rule by its API fields ("type", "action", "dport"); the first
// matching rule counts. A rule without "enable" is disabled.
type FirewallRule map[string]string

// FirewallAlias is a name for an address.
type FirewallAlias struct{ Name, CIDR, Comment string }

// FirewallSet is a set of addresses.
type FirewallSet struct {
	Name, Comment string
	Members       []FirewallMember
}

// FirewallMember is one address of a set.
type FirewallMember struct {
	CIDR, Comment string
	NoMatch       bool
}

func (f Firewall) clone() Firewall {
	f.Options = maps.Clone(f.Options)
	f.Rules, f.Aliases, f.IPSets = slices.Clone(f.Rules), slices.Clone(f.Aliases), slices.Clone(f.IPSets)
	for i, r := range f.Rules {
		f.Rules[i] = maps.Clone(r)
	}
	for i := range f.IPSets {
		f.IPSets[i].Members = slices.Clone(f.IPSets[i].Members)
	}
	return f
}

// SetFirewall sets a VM's firewall file.
func (w *World) SetFirewall(vmid int, f Firewall) { w.set(func() { w.setFirewall(vmid, f.clone()) }) }

// setFirewall removes an empty file, as save_vmfw_conf does.
func (w *World) setFirewall(vmid int, f Firewall) {
	if len(f.Options)+len(f.Rules)+len(f.Aliases)+len(f.IPSets) == 0 {
		delete(w.firewalls, vmid)
		return
	}
	w.firewalls[vmid] = f
}

// ChangeFirewall changes a VM's firewall file under its lock, unless change fails. As in
// Proxmox, the VM need not exist.
func (w *World) ChangeFirewall(vmid int, change func(*Firewall) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.firewalls[vmid].clone()
	if err := change(&f); err != nil {
		return err
	}
	w.setFirewall(vmid, f)
	return nil
}

// FirewallOf returns a VM's firewall; an empty firewall if the VM has no file.
func (w *World) FirewallOf(vmid int) Firewall {
	return look(w, func() Firewall { return w.firewalls[vmid].clone() })
}

// Alias returns the index of an alias, by its name in any case; -1 if the firewall has no such alias.
func (f Firewall) Alias(name string) int {
	return slices.IndexFunc(f.Aliases, func(a FirewallAlias) bool { return strings.EqualFold(a.Name, name) })
}

// Set returns the index of a set; -1 if the firewall has no such set.
func (f Firewall) Set(name string) int {
	return slices.IndexFunc(f.IPSets, func(s FirewallSet) bool { return s.Name == name })
}

// aliasName distinguishes a name from an address.
var aliasName = regexp.MustCompile(`^(?:guest/|dc/)?([A-Za-z][A-Za-z0-9\-_]+)$`)

// Resolves says which alias or set in an address is missing (pve-firewall,
// PVE/Firewall.pm, verify_rule). The cluster has no sets or aliases.
func (f Firewall) Resolves(param, address string) error {
	if set, is := strings.CutPrefix(address, "+"); is {
		_, name, scoped := strings.Cut(set, "/")
		if !scoped {
			name = set
		}
		if f.Set(name) < 0 {
			return BadParam(param, "no such ipset '%s'", name)
		}
		return nil
	}
	if m := aliasName.FindStringSubmatch(address); m != nil && f.Alias(m[1]) < 0 {
		return BadParam(param, "no such alias '%s'", address)
	}
	return nil
}
