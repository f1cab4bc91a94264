// Package world is the lab's datacentre as one consistent model: a [World] has Proxmox hosts, storages with volumes
// that hold bytes, VMs that boot them, tasks, permissions, and switches to inject faults. It behaves like Proxmox VE
// 9.2, race windows and pitfalls included; package pveapi adds Proxmox's HTTPS API.
package world

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
)

// ErrClosed is the error of operations that were interrupted by Close.
var ErrClosed = errors.New("the simulated world is closed")

// Options are the options of New.
type Options struct {
	Cluster string  // name of the Proxmox cluster; "": a standalone host
	Speed   float64 // simulated seconds per real second; 0 means 1
	// Agent answers for the QEMU guest agent of a running VM; nil, or false, if none runs in the guest.
	Agent func(vmid int) ([]Interface, bool)
	// Timeline records how long tasks take; may be nil.
	Timeline *record.Timeline
}

// Interface is a network interface as a guest agent reports it.
type Interface struct {
	Name, MAC string
	Addresses []string // IP addresses with prefix length: "10.0.0.5/24"
}

// World is the datacentre. Its methods may be called concurrently.
type World struct {
	cluster  string
	speed    float64
	agent    func(vmid int) ([]Interface, bool)
	timeline *record.Timeline
	done     chan struct{}
	work     sync.WaitGroup // tasks, and guests being powered off

	// mu guards all below. It is never held during a sleep, a channel receive, or a call of a guest or the firmware.
	mu             lock
	closed         bool
	firmware       Firmware
	dial           DialFunc // nil: hosts can't connect outside
	quorate        bool     // as set by tests; see hasQuorum
	hosts          []string
	storages       map[string]*storage
	ceph           *Ceph                         // nil: not installed
	devices        map[string]map[string]*volume // block devices of the hosts: host -> path -> device
	vms            map[int]*vm
	containers     []Container
	configLocks    map[int]chan struct{}
	tasks          []*task
	lastPID        int
	roles          map[string][]string
	tokens         map[string]Token
	passwords      map[string]string // of users
	ticketKey      []byte            // signs tickets
	acls           []ACL
	privilegeCache map[holder]map[string]bool // cache of privileges; nil: empty
	registered     map[string]bool            // tags that need Sys.Modify on / to set
	tagAccess      TagAccess                  // which other tags need Sys.Modify on /
	crs            CRS
	pools          map[string]bool
	down           map[string]bool // hosts without power
	crashes        map[string]int  // number of power cuts by host
	roots          map[string]*rootDisk
	clocks         map[string]time.Duration // offset of each host's clock
	booted         map[string]time.Time     // boot time by host
	isolated       map[string]bool          // hosts that can't connect outside
	proxies        map[string]ProxyFailure  // hosts that other hosts' APIs can't reach
	noDaemon       map[string]bool          // hosts without pvedaemon
	ha             map[string]*haService
	haLeaving      map[string]*haService // removed since the manager's last round
	haGroups       map[string]bool
	haDisarmed     string // the resource mode while Proxmox HA is disarmed: "freeze" or "ignore"
	haRules        []HARule
	replication    []ReplicationJob
	backups        []BackupJob
	firewalls      map[int]Firewall
	vnets          []VNet
	mappings       map[string]map[string]bool // mapped devices: "pci gpu" -> hosts
	failures       []failure
	moveStops      []moveStop
	protected      []*guarded
	violations     []string

	seen     []VM // result of VMs when changes was seenAt
	seenAt   uint64
	broken   []string // result of Violations when changes was brokenAt
	brokenAt uint64
}

// lock is a mutex that counts the calls of Lock.
type lock struct {
	sync.Mutex
	changes uint64
}

// Lock locks for a possible change.
func (l *lock) Lock() {
	l.Mutex.Lock()
	l.changes++
}

// changing locks for a possible change until its result is called: defer w.mu.changing()().
func (l *lock) changing() (done func()) {
	l.Lock()
	return l.Unlock
}

// Look locks without a change.
func (l *lock) Look() { l.Mutex.Lock() }

// looking is changing without a change.
func (l *lock) looking() (done func()) {
	l.Look()
	return l.Unlock
}

// set makes a change with mu held.
func (w *World) set(change func()) {
	defer w.mu.changing()()
	change()
}

// look reads something with mu held, without a change.
func look[T any](w *World, read func() T) T {
	defer w.mu.looking()()
	return read()
}

// cloned returns a copy of a list that mu guards.
func cloned[T any](w *World, list *[]T) []T {
	return look(w, func() []T { return slices.Clone(*list) })
}

// Changes returns a number that grows whenever something in the datacentre may have changed. If the number is
// unchanged, nothing has changed.
func (w *World) Changes() uint64 { return look(w, func() uint64 { return w.mu.changes }) }

// New makes an empty datacentre. The caller closes it.
func New(o Options) *World {
	if o.Speed == 0 {
		o.Speed = 1
	}
	return &World{
		cluster: o.Cluster, speed: o.Speed, agent: o.Agent, timeline: o.Timeline, done: make(chan struct{}), quorate: true,
		storages: map[string]*storage{}, devices: map[string]map[string]*volume{}, vms: map[int]*vm{}, configLocks: map[int]chan struct{}{},
		roles: map[string][]string{}, tokens: map[string]Token{}, passwords: map[string]string{}, pools: map[string]bool{},
		roots: map[string]*rootDisk{}, clocks: map[string]time.Duration{}, booted: map[string]time.Time{}, isolated: map[string]bool{}, proxies: map[string]ProxyFailure{}, noDaemon: map[string]bool{},
		down: map[string]bool{}, crashes: map[string]int{}, ha: map[string]*haService{}, haLeaving: map[string]*haService{}, haGroups: map[string]bool{}, firewalls: map[int]Firewall{},
		mappings: map[string]map[string]bool{},
	}
}

// SetFirmware sets the firmware of VMs that are powered on from now on. Without firmware, a running VM does nothing
// and ignores its power button.
func (w *World) SetFirmware(f Firmware) { w.set(func() { w.firmware = f }) }

// AddHost adds a Proxmox node.
func (w *World) AddHost(name string) {
	defer w.mu.changing()()
	w.hosts = append(w.hosts, name)
	w.booted[name] = time.Now().Add(-upBefore)
}

// Hosts lists the Proxmox nodes in the order they were added.
func (w *World) Hosts() []string { return cloned(w, &w.hosts) }

// Cluster returns the name of the Proxmox cluster; "" for a standalone host.
func (w *World) Cluster() string { return w.cluster }

// SetQuorum sets whether the Proxmox cluster has quorum.
func (w *World) SetQuorum(ok bool) {
	defer w.mu.changing()()
	if w.quorate = ok; ok {
		w.resumeHA()
	}
}

// Quorate reports whether the Proxmox cluster has quorum.
func (w *World) Quorate() bool { return look(w, w.hasQuorum) }

// hasQuorum reports whether more than half of the hosts are up, each with one vote.
func (w *World) hasQuorum() bool {
	up := 0
	for _, host := range w.hosts {
		if !w.down[host] {
			up++
		}
	}
	return w.quorate && (w.cluster == "" || len(w.hosts) == 0 || 2*up > len(w.hosts))
}

// Delay waits for d of simulated time. It returns false if the world was closed meanwhile.
func (w *World) Delay(d time.Duration) bool { return w.delay(d, nil) == nil }

// DelayUnless does the work of Delay, but also ends, with false, when stop is closed.
func (w *World) DelayUnless(d time.Duration, stop <-chan struct{}) bool {
	return w.delay(d, stop) == nil
}

// delay waits for d of simulated time. It ends early when the world or stop is closed.
func (w *World) delay(d time.Duration, stop <-chan struct{}) error {
	timer := time.NewTimer(w.scaled(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.done:
		return ErrClosed
	case <-stop:
		return errInterrupted
	}
}

func (w *World) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / w.speed) }

// Close powers off every VM, ends every task and waits for all of them.
func (w *World) Close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		w.work.Wait()
		return
	}
	w.closed = true
	close(w.done)
	var ended []*process
	for _, id := range w.vmids() {
		if p := w.vms[id].proc; p != nil {
			w.vms[id].proc = nil // waiters see done instead
			ended = append(ended, p)
		}
	}
	w.mu.Unlock()
	var kills sync.WaitGroup
	for _, p := range ended {
		kills.Go(p.kill)
	}
	kills.Wait()
	w.work.Wait()
}

// spawn runs f in a goroutine that Close waits for; mu must be held. It returns false after Close.
func (w *World) spawn(f func()) bool {
	if w.closed {
		return false
	}
	w.work.Go(f)
	return true
}

// lockConfig takes the lock file of a VM's configuration as Proxmox does, with a timeout
// of ten seconds. The caller calls unlock.
func (w *World) lockConfig(id int) (unlock func(), err error) {
	w.mu.Lock()
	lock, ok := w.configLocks[id]
	if !ok {
		lock = make(chan struct{}, 1)
		w.configLocks[id] = lock
	}
	w.mu.Unlock()
	timer := time.NewTimer(w.scaled(10 * time.Second))
	defer timer.Stop()
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-w.done:
		return nil, ErrClosed
	case <-timer.C:
		return nil, failf("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
	}
}

// HoldLock takes the lock file of a VM's configuration, as another process on the VM's host would, until release is
// called. The VM need not exist.
func (w *World) HoldLock(id int) (release func(), err error) { return w.lockConfig(id) }

// checkQuorum makes the check that Proxmox makes before some operations.
func (w *World) checkQuorum() error {
	if !w.hasQuorum() {
		return failf("cluster not ready - no quorum?")
	}
	return nil
}

// writeConfig stands for the write of a VM's configuration file: without quorum the write fails, after earlier
// effects have happened.
func (w *World) writeConfig(v *vm) error {
	if !w.hasQuorum() {
		w.lastPID++
		return failf("unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.%d' - Permission denied", v.host, v.id, w.lastPID)
	}
	return nil
}

// Error is an error answer of the Proxmox API: status, message and per-parameter errors.
type Error struct {
	Status  int
	Message string
	Params  map[string]string // errors of single parameters, for status 400
}

func (e *Error) Error() string { return e.Message }

// failf returns an error with the status that Proxmox uses for everything except bad parameters and missing
// privileges, "not found" included.
func failf(format string, args ...any) error {
	return &Error{Status: 500, Message: fmt.Sprintf(format, args...)}
}

// BadParam returns Proxmox's answer to one invalid parameter.
func BadParam(name, format string, args ...any) error {
	return BadParams(map[string]string{name: fmt.Sprintf(format, args...)})
}

// BadParams returns the answer to invalid parameters; nil if there are none.
func BadParams(params map[string]string) error {
	if len(params) == 0 {
		return nil
	}
	return &Error{Status: 400, Message: "Parameter verification failed.", Params: params}
}

func denied(path, privilege string) error {
	return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (%s, %s)", path, privilege)}
}

func noConfigFile(host string, id int) error {
	return failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, id)
}

// NumberOr parses a number; what is no number counts as otherwise.
func NumberOr(s string, otherwise int) int {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return otherwise
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

type optionKind int

const (
	unknownOption optionKind = iota
	textOption
	boolOption
	intOption
	numberOption
	nameOption
	driveOption
)

// lastIndex is the highest index of each numbered option (qemu-server: $MAX_NETS and the
// like in QemuServer.pm, Drive.pm, PCI.pm, USB.pm).
var lastIndex = map[string]int{
	"audio": 0, "hostpci": 15, "ide": 3, "ipconfig": 31, "net": 31, "numa": 7, "parallel": 2, "rng": 0, "sata": 5,
	"scsi": 30, "serial": 3, "unused": 255, "usb": 13, "virtio": 15, "virtiofs": 9,
}

func inRange(key string) bool {
	name := strings.TrimRight(key, "0123456789")
	last, numbered := lastIndex[name]
	if !numbered || key == "numa" {
		return true
	}
	n, err := strconv.Atoi(key[len(name):])
	return err == nil && n <= last && name+strconv.Itoa(n) == key
}

func kindOf(key string) optionKind {
	if !inRange(key) {
		return unknownOption
	}
	if isDriveKey(key) {
		return driveOption
	}
	switch optionName(key) {
	case "acpi", "allow-ksm", "autostart", "ciupgrade", "freeze", "keephugepages", "kvm", "localtime",
		"numa", "onboot", "protection", "reboot", "tablet", "tdf", "template":
		return boolOption
	case "balloon", "cores", "cpuunits", "migrate_speed", "shares", "smp", "sockets", "vcpus":
		return intOption
	case "cpulimit", "migrate_downtime":
		return numberOption
	case "name":
		return nameOption
	case "affinity", "agent", "amd-sev", "arch", "args", "audio", "bios", "boot", "bootdisk", "cdrom", "cicustom",
		"cipassword", "citype", "ciuser", "cpu", "description", "hookscript", "hostpci", "hotplug", "hugepages",
		"intel-tdx", "ipconfig", "ivshmem", "keyboard", "lock", "machine", "memory", "nameserver", "net", "numa#",
		"ostype", "parallel", "rng", "scsihw", "searchdomain", "serial", "smbios1", "spice_enhancements", "sshkeys",
		"startdate", "startup", "tags", "usb", "vga", "virtiofs", "vmgenid", "vmstatestorage", "watchdog":
		return textOption
	}
	return unknownOption
}

// optionName returns a key without its index: "net" for "net0", "numa#" for "numa0", "smbios1" unchanged.
func optionName(key string) string {
	name := strings.TrimRight(key, "0123456789")
	if name == key || key == "smbios1" {
		return key
	}
	if name == "numa" {
		return "numa#"
	}
	if _, indexed := lastIndex[name]; indexed {
		return name
	}
	return key
}

// IsOption reports whether VM configurations can have that key.
func IsOption(key string) bool { return kindOf(key) != unknownOption }

// IsNumeric reports whether the API shows the option as a number, not as a string.
func IsNumeric(key string) bool {
	k := kindOf(key)
	return k == boolOption || k == intOption || k == numberOption
}

// unknownProperty is the message of Proxmox's schema about an unknown parameter.
const unknownProperty = "property is not defined in schema and the schema does not allow additional properties"

// checkOptions validates options and normalizes them as Proxmox does, in place.
func checkOptions(config map[string]string) error {
	wrong := map[string]string{}
	for key, value := range config {
		stored, problem := checkOption(key, value)
		if problem != "" {
			wrong[key] = problem
			continue
		}
		config[key] = stored
	}
	return BadParams(wrong)
}

func checkOption(key, value string) (stored, problem string) {
	switch kindOf(key) {
	case unknownOption:
		return "", unknownProperty
	case boolOption:
		if value != "0" && value != "1" { // on and yes are only for property strings
			return "", "type check ('boolean') failed - got '" + value + "'"
		}
	case intOption:
		if _, err := strconv.Atoi(value); err != nil {
			return "", "type check ('integer') failed - got '" + value + "'"
		}
	case numberOption:
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			return "", "type check ('number') failed - got '" + value + "'"
		}
	case nameOption:
		if !regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`).MatchString(value) {
			return "", "invalid format - value does not look like a valid DNS name\n"
		}
	case driveOption:
		if _, err := parseDrive(key, value); err != nil {
			return "", err.(*Error).Params[key]
		}
	case textOption:
		return checkText(key, value)
	}
	return value, ""
}

func checkText(key, value string) (stored, problem string) {
	switch key {
	case "bios":
		if value != "seabios" && value != "ovmf" {
			return "", "value '" + value + "' does not have a value in the enumeration 'seabios, ovmf'"
		}
	case "description":
		if len(value) > 8192 {
			return "", "value may only be 8192 characters long"
		}
		return strings.TrimRight(value, " \t\r\n\f\v"), "" // as read back from the file (parse_vm_config in QemuServer.pm)
	case "tags":
		tags := strings.FieldsFunc(value, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
		slices.Sort(tags)
		return strings.Join(slices.Compact(tags), ";"), ""
	}
	return value, ""
}

// ParseBool parses a boolean of Proxmox's parameters.
func ParseBool(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "1", "on", "yes", "true":
		return true, true
	case "0", "off", "no", "false", "":
		return false, true
	}
	return false, false
}

// resolveCDROM replaces cdrom, which is an alias of ide2 ($resolve_cdrom_alias in Qemu.pm).
func resolveCDROM(config map[string]string) {
	value, set := config["cdrom"]
	if !set {
		return
	}
	if !strings.Contains(value, "media=") {
		value += ",media=cdrom"
	}
	config["ide2"] = value
	delete(config, "cdrom")
}

// checkBalloon checks memory options against each other (update_vm_api in Qemu.pm).
func (v *vm) checkBalloon(set map[string]string) error {
	value := func(key, otherwise string) int {
		for _, config := range []map[string]string{set, v.pending, v.config} {
			if text := strings.TrimPrefix(config[key], "current="); text != "" {
				otherwise = text
				break
			}
		}
		return NumberOr(otherwise, 0)
	}
	_, memory := set["memory"]
	_, balloon := set["balloon"]
	if (memory || balloon) && value("balloon", "0") > value("memory", "512") {
		return failf("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}

type drive struct {
	volid   string // "fast:9011/vm-9011-disk-0.raw", "fast:10" (to be allocated), "none", "cdrom"
	options map[string]string
}

func isDriveKey(key string) bool {
	name := strings.TrimRight(key, "0123456789")
	if key == "efidisk0" || key == "tpmstate0" {
		return true
	}
	return slices.Contains([]string{"ide", "sata", "scsi", "virtio", "unused"}, name) && inRange(key)
}

// String writes the drive as Proxmox prints it: the volume, then the options by name.
func (d drive) String() string {
	var b strings.Builder
	b.WriteString(d.volid)
	for _, name := range slices.Sorted(maps.Keys(d.options)) {
		b.WriteString("," + name + "=" + d.options[name])
	}
	return b.String()
}

func (d drive) cdrom() bool { return d.options["media"] == "cdrom" || d.volid == "cdrom" }

func (d drive) empty() bool { return d.volid == "none" || d.volid == "cdrom" }

var requestPattern = regexp.MustCompile(`^([^:/\s]+):(\d+(?:\.\d+)?)$`)

// request parses "fast:10", a request for a volume of 10 GiB, or "fast:cloudinit".
func (d drive) request() (storage string, bytes int64, ok bool) {
	if name, ok := strings.CutSuffix(d.volid, ":cloudinit"); ok {
		return name, 0, true
	}
	m := requestPattern.FindStringSubmatch(d.volid)
	if m == nil {
		return "", 0, false
	}
	size, err := strconv.ParseFloat(m[2], 64)
	if err != nil {
		return "", 0, false
	}
	return m[1], int64(math.Ceil(size*(1<<20))) << 10, true // whole kilobytes (convert_size of pve-common)
}

// fixedSize returns the size of EFI and TPM disks, for which Proxmox ignores the requested size.
func fixedSize(key string, asked int64) int64 {
	switch key {
	case "tpmstate0":
		return 4 << 20
	case "efidisk0":
		return 528 << 10
	}
	return asked
}

// driveKeys lists the drives of a configuration in bus order.
func driveKeys(config map[string]string) []string {
	var keys []string
	for key := range config {
		if isDriveKey(key) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// drivesIn returns the drives of a configuration that have a volume, unused ones included, by key, in bus order.
func drivesIn(config map[string]string) iter.Seq2[string, drive] {
	return func(yield func(string, drive) bool) {
		for _, key := range driveKeys(config) {
			if d, err := parseDrive(key, config[key]); err == nil && !d.empty() && !yield(key, d) {
				return
			}
		}
	}
}

// compareKeys orders "scsi2" before "scsi10".
func compareKeys(a, b string) int {
	an, bn := withoutNumber(a), withoutNumber(b)
	if an != bn {
		return strings.Compare(an, bn)
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func withoutNumber(key string) string {
	n := len(key)
	for n > 0 && '0' <= key[n-1] && key[n-1] <= '9' {
		n--
	}
	return key[:n]
}

// bootOrder reads the drive and network keys of "boot: order=…".
func bootOrder(boot string) []string {
	for part := range strings.SplitSeq(boot, ",") {
		if list, ok := strings.CutPrefix(part, "order="); ok && list != "" {
			return strings.Split(list, ";")
		}
	}
	return nil
}

// withoutBoot removes a key from a boot order; see printBoot.
func withoutBoot(boot, key string) string {
	order := bootOrder(boot)
	if !slices.Contains(order, key) {
		return boot
	}
	return printBoot(slices.DeleteFunc(order, func(k string) bool { return k == key }))
}

// printBoot writes a boot order; an empty order is a blank, as in Proxmox.
func printBoot(order []string) string {
	if len(order) == 0 {
		return " "
	}
	return "order=" + strings.Join(order, ";")
}

// defaultBoot returns the boot order of a VM that was created without a boot order: first disk, first CD-ROM drive,
// first network card, bus by bus (resolve_first_disk in Drive.pm).
func defaultBoot(config map[string]string) string {
	var order []string
	for _, cdrom := range []bool{false, true} {
		if key := firstDrive(config, cdrom); key != "" {
			order = append(order, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(config), compareKeys) {
		if optionName(key) == "net" {
			order = append(order, key)
			break
		}
	}
	return printBoot(order)
}

func firstDrive(config map[string]string, cdrom bool) string {
	keys := driveKeys(config)
	for _, bus := range []string{"ide", "scsi", "virtio", "sata"} {
		for _, key := range keys {
			if optionName(key) == bus && isCDROM(key, config[key]) == cdrom {
				return key
			}
		}
	}
	return ""
}

// driveOptions lists the options of a drive (QemuServer/Drive.pm).
func driveOptions(key string) []string {
	bus := strings.TrimRight(key, "0123456789")
	if options, known := optionsOfBus[bus]; known {
		return options
	}
	return commonDriveOptions
}

var optionsOfBus = map[string][]string{
	"efidisk":  {"efitype", "format", "import-from", "ms-cert", "pre-enrolled-keys", "size"},
	"tpmstate": {"format", "import-from", "size", "version"},
	"unused":   nil,
	"ide":      slices.Concat(commonDriveOptions, []string{"model", "ssd", "wwn"}),
	"sata":     slices.Concat(commonDriveOptions, []string{"ssd", "wwn"}),
	"scsi":     slices.Concat(commonDriveOptions, []string{"iothread", "product", "queues", "ro", "scsiblock", "ssd", "vendor", "wwn"}),
	"virtio":   slices.Concat(commonDriveOptions, []string{"iothread", "ro"}),
}

var commonDriveOptions = []string{
	"aio", "backup", "cache", "detect_zeroes", "discard", "format", "import-from", "media", "replicate", "rerror", "serial", "shared",
	"size", "snapshot", "werror", "bps_max_length", "iops_max_length", "iops_max", "mbps_max",
	"bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr", "mbps", "mbps_rd", "mbps_wr",
	"bps_rd_max_length", "iops_rd_max_length", "iops_rd_max", "mbps_rd_max",
	"bps_wr_max_length", "iops_wr_max_length", "iops_wr_max", "mbps_wr_max",
}

var driveAliases = map[string]string{
	"volume": "file", "bps_rd_length": "bps_rd_max_length", "bps_wr_length": "bps_wr_max_length",
	"iops_rd_length": "iops_rd_max_length", "iops_wr_length": "iops_wr_max_length",
}

// switches are the boolean drive options; they are stored as 1 or 0.
var switches = []string{
	"backup", "detect_zeroes", "iothread", "pre-enrolled-keys", "replicate", "ro", "scsiblock", "shared", "snapshot", "ssd",
}

// parseDrive parses "fast:10,serial=s": a value without a key is the volume, at any
// position (parse_property_string in JSONSchema.pm).
func parseDrive(key, value string) (drive, error) {
	d := drive{options: map[string]string{}}
	known := driveOptions(key)
	for part := range strings.SplitSeq(value, ",") {
		name, v, hasKey := strings.Cut(part, "=")
		if !hasKey {
			name, v = "file", part
		}
		if alias, is := driveAliases[name]; is {
			name = alias
		}
		switch {
		case strings.TrimSpace(part) == "":
			continue
		case name == "" || v == "":
			return d, badDrive(key, "missing key in comma-separated list property")
		case d.has(name):
			return d, badDrive(key, "duplicate key in comma-separated list property: "+name)
		case name == "file":
			d.volid = v
			continue
		case !slices.Contains(known, name):
			return d, badDrive(key, "invalid key in comma-separated list property: "+name)
		}
		if slices.Contains(switches, name) {
			on, ok := ParseBool(v)
			if !ok {
				return d, badDrive(key, fmt.Sprintf("format error\n%s.%s: type check ('boolean') failed - got '%s'", key, name, v))
			}
			v = map[bool]string{true: "1", false: "0"}[on]
		}
		d.options[name] = v
	}
	if d.volid == "" {
		return d, badDrive(key, fmt.Sprintf("format error\n%s.file: property is missing and it is not optional", key))
	}
	return d, nil
}

func badDrive(key, problem string) error { return BadParam(key, "invalid format - %s\n", problem) }

func (d drive) has(option string) bool {
	_, set := d.options[option]
	return set || option == "file" && d.volid != ""
}
