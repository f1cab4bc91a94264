// Package world is the lab's datacentre as one consistent model: a [World] has Proxmox hosts, storages with volumes
// that hold bytes, VMs that boot them, tasks, permissions, and switches to inject faults. It behaves like Proxmox VE
// 9.2, race windows and pitfalls included; package pveapi adds Proxmox's HTTPS API.
package world

import (
	"errors"
	"fmt"
	"slices"
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

// Look locks without a change.
func (l *lock) Look() { l.Mutex.Lock() }

// set makes a change with mu held.
func (w *World) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// look reads something with mu held, without a change.
func look[T any](w *World, read func() T) T {
	w.mu.Look()
	defer w.mu.Unlock()
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = append(w.hosts, name)
	w.booted[name] = time.Now().Add(-upBefore)
}

// Hosts lists the Proxmox nodes in the order they were added.
func (w *World) Hosts() []string { return cloned(w, &w.hosts) }

// Cluster returns the name of the Proxmox cluster; "" for a standalone host.
func (w *World) Cluster() string { return w.cluster }

// SetQuorum sets whether the Proxmox cluster has quorum.
func (w *World) SetQuorum(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
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
	return badParams(map[string]string{name: fmt.Sprintf(format, args...)})
}

func badParams(params map[string]string) error {
	return &Error{Status: 400, Message: "Parameter verification failed.", Params: params}
}

func denied(path, privilege string) error {
	return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (%s, %s)", path, privilege)}
}

func noConfigFile(host string, id int) error {
	return failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, id)
}

// firstError returns the error of the first of several checks that failed.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
