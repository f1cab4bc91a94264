package world

import (
	"cmp"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
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

func (v *vm) uuid() string { return strings.ToLower(property(v.config["smbios1"], "uuid")) }

// property reads one value of "a=1,b=2".
// smbios returns a value of smbios1 as the guest sees it (QemuServer.pm, smbios1 with base64=1).
func (v *vm) smbios(name string) string {
	value := property(v.config["smbios1"], name)
	if property(v.config["smbios1"], "base64") != "1" {
		return value
	}
	b, _ := base64.StdEncoding.DecodeString(value) // Proxmox accepts only base64
	return string(b)
}

func property(list, name string) string {
	for part := range strings.SplitSeq(list, ",") {
		if v, ok := strings.CutPrefix(part, name+"="); ok {
			return v
		}
	}
	return ""
}

func (v *vm) macs() []string {
	var macs []string
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		first, _, _ := strings.Cut(v.config[key], ",") // virtio=BC:24:11:00:00:01
		if _, mac, _ := strings.Cut(first, "="); mac != "" && optionName(key) == "net" {
			macs = append(macs, strings.ToUpper(mac))
		}
	}
	return macs
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

// vmFor is vmOn with a check of the user's privilege.
func (w *World) vmFor(user, privilege, host string, id int) (*vm, error) {
	if err := w.check(user, vmPath(id), privilege); err != nil {
		return nil, err
	}
	return w.vmOn(host, id)
}

// unlocked is vmOn for a VM whose configuration is not locked.
func (w *World) unlocked(host string, id int) (*vm, error) {
	v, err := w.vmOn(host, id)
	if err == nil {
		err = v.checkLock()
	}
	return v, err
}

// LookupVM reads a VM through its host.
func (w *World) LookupVM(host string, id int) (VM, error) {
	defer w.mu.looking()()
	v, err := w.vmOn(host, id)
	if err != nil {
		return VM{}, err
	}
	return w.view(v), nil
}

// VMs lists all VMs of the datacentre by VMID. The caller must not change their maps.
func (w *World) VMs() []VM {
	defer w.mu.looking()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
	const failed = "update pools failed: "
	switch {
	case !w.hasQuorum():
		return failf(failed + "cfs-lock 'file-user_cfg' error: no quorum!")
	case !w.pools[pool]:
		return failf(failed+"pool '%s' does not exist", pool)
	}
	if err := w.check(user, vmPath(id), "Permissions.Modify", "VM.Allocate"); err != nil { // check_perm_modify of RPCEnvironment.pm
		return err
	}
	switch vm := w.vms[id]; {
	case vm == nil:
		return failf(failed+"VM %d does not exist", id)
	case vm.pool == pool:
		return failf(failed+"VM %d is already a pool member", id)
	case vm.pool != "" && !move:
		return failf(failed+"VM %d belongs already to pool '%s'", id, vm.pool)
	default:
		vm.pool = pool
		return nil
	}
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
	defer w.mu.looking()()
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
	defer w.mu.changing()()
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

const taskTime = time.Second // duration of a short task

// CreateRequest asks for a new VM.
type CreateRequest struct {
	ID     int
	Config map[string]string
	Pool   string
	Start  bool
}

// CreateVM makes a VM: it checks the request at once and does the rest in a task, whose
// UPID it returns. During the task the VM's configuration contains only its lock.
func (w *World) CreateVM(user, host string, r CreateRequest) (string, error) {
	defer w.mu.changing()()
	config := maps.Clone(r.Config)
	if config == nil {
		config = map[string]string{}
	}
	if err := checkOptions(config); err != nil {
		return "", err
	}
	resolveCDROM(config)
	if r.ID < 100 || r.ID > 999999999 {
		return "", BadParam("vmid", "invalid format - value does not look like a valid VM ID\n")
	}
	if err := w.checkCreate(user, r, config); err != nil {
		return "", err
	}
	if err := w.unused(r.ID); err != nil {
		return "", failf("unable to create VM %d - %v", r.ID, err)
	}
	v := newVM(r.ID, host, map[string]string{"lock": "create"})
	v.pool = r.Pool
	v.made = time.Now()
	w.vms[r.ID] = v
	return w.startTask(host, "qmcreate", strconv.Itoa(r.ID), user, func(t *task) error {
		if err := w.create(t, v, config); err != nil {
			return fmt.Errorf("unable to create VM %d - %w", r.ID, err)
		}
		if r.Start {
			_, _ = w.Start(user, host, r.ID) // a task of its own, whose failure does not matter here
		}
		return nil
	}), nil
}

// checkCreate checks privileges in Proxmox's order. VM.Config.Disk is not required: whoever may create a VM and
// allocate space may give the VM disks (create_vm in Qemu.pm).
func (w *World) checkCreate(user string, r CreateRequest, config map[string]string) error {
	if err := w.checkQuorum(); err != nil {
		return err
	}
	if r.Pool != "" && !w.pools[r.Pool] {
		return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (pool '%s' does not exist)", r.Pool)}
	}
	if w.checkVM(user, r.ID, r.Pool, "VM.Allocate") != nil {
		return &Error{Status: 403, Message: "Permission check failed"}
	}
	keys := slices.Sorted(maps.Keys(config))
	if err := firstError(w.checkVolumes(user, r.ID, config), w.checkKeys(user, r.ID, r.Pool, keys)); err != nil {
		return err
	}
	for _, key := range keys {
		if isDriveKey(key) || key == "tags" {
			continue
		}
		if err := w.checkDevice(user, r.ID, r.Pool, key, config[key], "set"); err != nil {
			return err
		}
	}
	return firstError(w.checkBridges(user, config), checkDrives(config))
}

// create does the worker's part. When create fails, it frees the volumes that it allocated and removes the VM;
// existing volumes stay.
func (w *World) create(t *task, v *vm, config map[string]string) error {
	err := t.begin(taskTime)
	defer w.mu.changing()()
	if err != nil {
		if !t.killed { // otherwise only the lock stays
			delete(w.vms, v.id)
		}
		return err
	}
	allocated, err := w.fill(v, config, nil)
	if tags, tagged := config["tags"]; err == nil && tagged {
		err = w.checkTags(t.User, v.id, v.pool, noTags, tags)
	}
	if err != nil {
		for _, volid := range allocated {
			if err := w.freeVolume(volid, v.host); err != nil {
				t.warnf("%v", err)
			}
		}
		delete(w.vms, v.id)
		return err
	}
	for _, key := range driveKeys(v.config) {
		if slices.Contains(allocated, driveVolid(key, v.config[key])) {
			t.logf("%s: successfully created disk '%s'", key, v.config[key])
		}
	}
	delete(v.config, "lock")
	return nil
}

// fill writes a VM's first configuration and returns the volumes allocated for it, even on an error.
func (w *World) fill(v *vm, config map[string]string, content map[string]*Media) (allocated []string, err error) {
	stored := map[string]string{}
	maps.Copy(stored, config)
	for _, key := range slices.Sorted(maps.Keys(config)) { // scsi10 is numbered before scsi2
		if !isDriveKey(key) {
			continue
		}
		value, volid, err := w.resolveDrive(v, key, config[key], content[key])
		if err != nil {
			return allocated, err
		}
		if volid != "" {
			allocated = append(allocated, volid)
		}
		stored[key] = value
	}
	for key, value := range stored {
		if optionName(key) == "net" {
			stored[key] = withMAC(value)
		}
	}
	addGenerated(stored)
	if stored["description"] == "" {
		delete(stored, "description")
	}
	maps.Copy(v.config, stored)
	return allocated, nil
}

func addGenerated(config map[string]string) {
	if config["vmgenid"] == "" || config["vmgenid"] == "1" {
		config["vmgenid"] = newUUID()
	}
	if config["smbios1"] == "" {
		config["smbios1"] = "uuid=" + newUUID()
	}
	if _, ok := config["boot"]; !ok {
		config["boot"] = defaultBoot(config)
	}
	config["meta"] = fmt.Sprintf("creation-qemu=10.1.2,ctime=%d", time.Now().Unix())
}

// resolveDrive turns a requested drive into a stored drive: it allocates space and reads the size (create_disks in
// Qemu.pm). media is the content of a new volume; nil: blank.
func (w *World) resolveDrive(v *vm, key, value string, media *Media) (stored, allocated string, err error) {
	d, err := parseDrive(key, value)
	if err != nil {
		return "", "", err
	}
	if d.empty() {
		delete(d.options, "size")
		return d.String(), "", nil
	}
	if storageID, size, ok := d.request(); ok {
		if d.volid, err = w.allocateDrive(v, key, storageID, size, d, media); err != nil {
			return "", "", err
		}
		allocated = d.volid
		delete(d.options, "format")
		delete(d.options, "import-from")
	} else if err := w.checkUsable(key, d); err != nil {
		return "", "", err
	}
	_, vol, err := w.volume(d.volid, v.host)
	if err != nil {
		return "", "", err
	}
	if strings.HasPrefix(key, "unused") {
		return d.volid, allocated, nil
	}
	d.options["size"] = formatSize(vol.size)
	return d.String(), allocated, nil
}

func (w *World) allocateDrive(v *vm, key, storageID string, size int64, d drive, media *Media) (volid string, err error) {
	s, err := w.storageOn(storageID, v.host)
	if err != nil {
		return "", err
	}
	if media == nil {
		media = NewMedia(nil)
	}
	switch source := d.options["import-from"]; {
	case isCloudInit(d.volid):
		d.options["media"] = "cdrom"
		return w.allocateNamed(s, v.host, s.cloudInitName(v.id, d.options["format"]), 4<<20, media)
	case source != "":
		return w.importVolume(s, v, key, d.options["format"], source)
	}
	if key == "efidisk0" && d.options["efitype"] == "4m" && d.options["pre-enrolled-keys"] == "1" {
		d.options["ms-cert"] = "2023" // the default of pve-edk2-firmware (create_efidisk in OVMF.pm)
	}
	if volid, err = w.allocate(s, v.host, v.id, d.options["format"], fixedSize(key, size), media); err != nil {
		return "", err
	}
	if _, vol, err := w.volume(volid, v.host); err == nil && key == "efidisk0" {
		vol.written = fixedSize(key, size) // the empty variables are fully written
	}
	return volid, nil
}

func (w *World) checkUsable(key string, d drive) error {
	if !strings.Contains(d.volid, ":") {
		return nil // a device of the host
	}
	_, kind, format, err := w.kindOf(d.volid)
	switch {
	case err != nil:
		return err
	case !attachable(kind):
		return failf("cannot use volume %s - content type needs to be 'images' or 'iso'", d.volid)
	case d.options["format"] != "" && d.options["format"] != format:
		return failf("drive '%s' - volume '%s' - 'format=%s' option different from storage format '%s'", key, d.volid, d.options["format"], format)
	case key == "tpmstate0" && format != "raw":
		return failf("tpmstate0: volume format is '%s', only 'raw' is supported!", format)
	}
	return nil
}

func withMAC(value string) string {
	model, rest, _ := strings.Cut(value, ",")
	if strings.Contains(model, "=") {
		return value
	}
	return strings.TrimSuffix(model+"="+newMAC()+","+rest, ",")
}

// newMAC returns a random address with Proxmox's prefix.
func newMAC() string {
	var b [3]byte
	rand.Read(b[:])
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// DefineVM adds a VM without a request. config is as in the API ("scsi0":
// "fast:10,serial=s"); content is the content of newly allocated disks, by key.
func (w *World) DefineVM(host string, id int, config map[string]string, content map[string]*Media) error {
	defer w.mu.changing()()
	if w.vms[id] != nil {
		return fmt.Errorf("define VM %d: it exists already", id)
	}
	v := newVM(id, host, map[string]string{})
	config = maps.Clone(config)
	if v.pool = config["pool"]; v.pool != "" {
		w.pools[v.pool] = true
		delete(config, "pool")
	}
	if err := checkOptions(config); err != nil {
		return fmt.Errorf("define VM %d: %w", id, err)
	}
	if _, err := w.fill(v, config, content); err != nil {
		return fmt.Errorf("define VM %d: %w", id, err)
	}
	w.vms[id] = v
	return nil
}

// WriteByHand adds a line to a VM's configuration file, as an editor would: unchecked and unnormalized.
func (w *World) WriteByHand(id int, key, value string) {
	w.set(func() { w.vms[id].config[key] = value })
}

// AddISO puts an ISO file on a storage; host matters if the storage is not shared.
func (w *World) AddISO(storageID, host, name string, content []byte) error {
	return w.addFile(isoKind, storageID, host, name, content)
}

// AddSnippet puts a file on a storage that configurations can name.
func (w *World) AddSnippet(storageID, host, name string, content []byte) error {
	return w.addFile(snippetKind, storageID, host, name, content)
}

// AddImage puts a disk image on a storage; drives can be made from it.
func (w *World) AddImage(storageID, host, name string, content []byte) error {
	return w.addFile(importKind, storageID, host, name, content)
}

func (w *World) addFile(kind, storageID, host, name string, content []byte) error {
	defer w.mu.changing()()
	s, err := w.storageOn(storageID, host)
	if err != nil {
		return fmt.Errorf("add %s/%s: %w", kind, name, err)
	}
	v := s.put(host, kind+"/"+name)
	v.media.Write(content)
	v.size, v.created = int64(len(content)), time.Now()
	return nil
}

func (w *World) AddPool(name string) { w.set(func() { w.pools[name] = true }) }

// Pools maps each pool to the VMIDs in it, in order.
func (w *World) Pools() map[string][]int { return look(w, w.poolMembers) }

func (w *World) poolMembers() map[string][]int {
	pools := map[string][]int{}
	for name := range w.pools {
		pools[name] = nil
	}
	for _, id := range w.vmids() {
		if p := w.vms[id].pool; p != "" {
			pools[p] = append(pools[p], id)
		}
	}
	return pools
}

// SetLock sets or, with "", clears the lock of a VM's configuration: "backup", "migrate", ….
func (w *World) SetLock(vmid int, lock string) {
	defer w.mu.changing()()
	if v := w.vms[vmid]; v != nil {
		if v.config["lock"] = lock; lock == "" {
			delete(v.config, "lock")
		}
	}
}

// SetQMP makes a running VM report another QMP status: "io-error", "internal-error", "paused".
func (w *World) SetQMP(vmid int, status string) {
	defer w.mu.changing()()
	if v := w.vms[vmid]; v != nil {
		v.qmp = status
	}
}

// DestroyRequest asks for a VM's deletion.
type DestroyRequest struct {
	ID           int
	Purge        bool // remove it from HA, backup and replication jobs too
	Unreferenced bool // also free every volume named for it, even if used elsewhere
}

// DestroyVM deletes a VM and its own volumes: checks at once, the rest in a task.
func (w *World) DestroyVM(user, host string, r DestroyRequest) (string, error) {
	defer w.mu.changing()()
	if r.Purge {
		w.violate("DELETE of VM %d with purge", r.ID)
	}
	if r.Unreferenced {
		w.violate("DELETE of VM %d with destroy-unreferenced-disks", r.ID)
	}
	if err := firstError(w.check(user, vmPath(r.ID), "VM.Allocate"), w.checkDestroy(host, r)); err != nil {
		return "", err
	}
	return w.lockedTask("qmdestroy", user, host, r.ID, func(t *task) error {
		defer w.mu.changing()()
		if err := w.checkDestroy(host, r); err != nil {
			return err
		}
		return w.destroy(t, w.vms[r.ID], r)
	}), nil
}

func (w *World) checkDestroy(host string, r DestroyRequest) error {
	v, err := w.vmOn(host, r.ID)
	switch job := w.replicates(r.ID); {
	case err != nil:
		return err
	case v.config["protection"] == "1":
		return failf("can't remove VM %d - protection mode enabled", r.ID)
	case w.haStatus(r.ID).Configured && !r.Purge:
		return failf("unable to remove VM %d - used in HA resources and purge parameter not set.", r.ID)
	case job != "" && !r.Purge:
		return failf("There is a replication job '%s' for guest '%d' - Please remove that first.", job, r.ID)
	case v.proc != nil:
		return failf("VM %d is running - destroy failed", r.ID)
	}
	return nil
}

// destroy frees first and then writes: without quorum the disks are gone and the configuration stays.
func (w *World) destroy(t *task, v *vm, r DestroyRequest) error {
	if err := firstError(v.checkLock(), w.checkClones(v)); err != nil {
		return err
	}
	for _, volid := range v.destroyedVolids() {
		if volumeOwner(volid) != v.id {
			continue
		}
		if err := w.freeVolume(volid, v.host); err != nil {
			t.warnf("Could not remove disk '%s', check manually: %v", volid, err)
		}
	}
	if r.Unreferenced {
		w.freeUnreferenced(v)
	}
	if err := w.writeConfig(v); err != nil {
		return err
	}
	if r.Purge {
		if w.ha[haSID(v.id)] != nil {
			w.removeHA(haSID(v.id))
			t.logf("NOTE: removed VM %d from HA resource configuration.", v.id)
		}
		w.purgeJobs(v.id)
	}
	delete(w.firewalls, v.id)
	w.acls = slices.DeleteFunc(w.acls, func(a ACL) bool { return a.Path == vmPath(v.id) })
	w.privilegeCache = nil
	delete(w.vms, v.id)
	return nil
}

func (w *World) checkClones(v *vm) error {
	for _, d := range drivesIn(v.config) {
		if s, vol, err := w.volume(d.volid, v.host); v.config["template"] == "1" && !d.cdrom() && err == nil && s != nil && s.cloned(v.host, vol) {
			return failf("base volume '%s' is still in use by linked cloned", d.volid)
		}
	}
	return nil
}

func (w *World) freeUnreferenced(v *vm) {
	for _, s := range w.storages {
		for name := range s.at(v.host) {
			if s.on(v.host) && volumeOwner(name) == v.id {
				_ = w.freeVolume(s.ID+":"+name, v.host) // Proxmox only warns
			}
		}
	}
}

// destroyedVolids lists the volumes to free if they are the VM's own: those in the
// configuration, pending changes included, and the memory of snapshots. Volumes that only
// a snapshot's disks name are left behind (destroy_vm in QemuServer.pm).
func (v *vm) destroyedVolids() []string {
	seen := map[string]bool{}
	add := func(config map[string]string) {
		for _, d := range drivesIn(config) {
			seen[d.volid] = true
		}
	}
	add(v.config)
	add(v.pending)
	for _, s := range v.snapshots {
		if state := s.Config["vmstate"]; state != "" {
			seen[state] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// DeleteVolume deletes a volume of a storage, in use or not, in a task.
func (w *World) DeleteVolume(user, host, volid string) (string, error) {
	defer w.mu.changing()()
	storageID, _, _ := strings.Cut(volid, ":")
	if err := w.check(user, "/storage/"+storageID, "Datastore.Allocate"); err != nil {
		return "", err
	}
	if _, err := w.storageOn(storageID, host); err != nil {
		return "", err
	}
	id := storageID // not the volume's name: API2/Storage/Content.pm
	if owner := volumeOwner(volid); owner != 0 {
		id = strconv.Itoa(owner) + "@" + storageID
	}
	return w.startTask(host, "imgdel", id, user, func(t *task) error {
		if err := t.begin(taskTime / 2); err != nil {
			return err
		}
		defer w.mu.changing()()
		if _, _, err := w.volume(volid, host); err != nil {
			t.logf("%v", err)
			return nil
		}
		if err := w.freeVolume(volid, host); err != nil {
			return err
		}
		t.logf("Removed volume '%s'", volid)
		return nil
	}), nil
}
