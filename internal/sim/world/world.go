// Package world is the lab's datacentre as one consistent model: Proxmox hosts,
// storages with volumes that hold bytes, VMs that boot them, tasks, access
// rights, and the switches with which a test breaks things. It follows what
// Proxmox VE 9.2 does, windows and pitfalls included; package pveapi puts
// Proxmox's HTTPS API in front of it.
package world

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
)

// ErrClosed ends what was still going on when the world was closed.
var ErrClosed = errors.New("the simulated world is closed")

// Options shape a new world.
type Options struct {
	Cluster string  // name of the Proxmox cluster; "": a host of its own, in no cluster
	Speed   float64 // how many simulated seconds pass in one; 0 means 1
	// Agent answers for the QEMU guest agent of a running VM; nil, or false, where none runs in the guest.
	Agent func(vmid int) ([]Interface, bool)
	// Timeline gets how long tasks take; may be nil.
	Timeline *record.Timeline
}

// Interface is a network interface as a guest agent reports it.
type Interface struct {
	Name, MAC string
	Addresses []string // IP addresses with prefix length: "10.0.0.5/24"
}

// World is the datacentre. All its methods may be called from any goroutine.
type World struct {
	cluster  string
	speed    float64
	agent    func(vmid int) ([]Interface, bool)
	timeline *record.Timeline
	done     chan struct{}
	work     sync.WaitGroup // tasks and guests being switched off

	// mu guards all below. It is never held while sleeping, while waiting for a
	// channel, or while a guest or the firmware is called.
	mu          lock
	closed      bool
	firmware    Firmware
	dial        DialFunc // nil: hosts have no way out
	quorate     bool     // as far as a test wants it; see hasQuorum
	hosts       []string
	storages    map[string]*storage
	devices     map[string]map[string]*volume // block devices of the hosts: host -> path -> device
	vms         map[int]*vm
	containers  []Container
	configLocks map[int]chan struct{}
	tasks       []*task
	lastPID     int
	roles       map[string][]string
	tokens      map[string]Token
	passwords   map[string]string // of users
	ticketKey   []byte            // signs tickets
	acls        []ACL
	held        map[holder]map[string]bool // what was worked out of all that; nil: nothing yet
	registered  map[string]bool            // tags that only those with Sys.Modify on / may set
	pools       map[string]bool
	down        map[string]bool // hosts without power
	crashes     map[string]int  // how often each host's power was cut
	roots       map[string]*rootDisk
	clocks      map[string]time.Duration // how wrong each host's clock is
	booted      map[string]time.Time     // since when hosts are up
	walled      map[string]bool          // hosts without a way out
	proxies     map[string]ProxyFailure  // hosts that others' APIs don't reach
	noDaemon    map[string]bool          // hosts without pvedaemon
	ha          map[string]*haService
	haLeaving   map[string]*haService // removed since the manager's last round
	haGroups    map[string]bool
	haRules     []HARule
	replication []ReplicationJob
	backups     []BackupJob
	firewalls   map[int]Firewall
	vnets       []VNet
	mappings    map[string]map[string]bool // devices of hosts by a name: "pci gpu" -> hosts
	failures    []failure
	moveStops   []moveStop
	protected   []*guarded
	violations  []string

	seen     []VM // by VMs, when changes was seenAt
	seenAt   uint64
	broken   []string // found by Violations, when changes was brokenAt
	brokenAt uint64
}

// lock is a mutex that counts how often somebody may have changed what it guards.
type lock struct {
	sync.Mutex
	changes uint64
}

// Lock is for who changes something, or may.
func (l *lock) Lock() {
	l.Mutex.Lock()
	l.changes++
}

// Look is Lock for who changes nothing.
func (l *lock) Look() { l.Mutex.Lock() }

// Changes grows whenever something in the datacentre may have changed, by whose hand
// ever: as long as it does not nothing has.
func (w *World) Changes() uint64 {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.mu.changes
}

// New makes an empty datacentre. The caller closes it.
func New(o Options) *World {
	if o.Speed == 0 {
		o.Speed = 1
	}
	return &World{
		cluster: o.Cluster, speed: o.Speed, agent: o.Agent, timeline: o.Timeline, done: make(chan struct{}), quorate: true,
		storages: map[string]*storage{}, devices: map[string]map[string]*volume{}, vms: map[int]*vm{}, configLocks: map[int]chan struct{}{},
		roles: map[string][]string{}, tokens: map[string]Token{}, passwords: map[string]string{}, pools: map[string]bool{},
		roots: map[string]*rootDisk{}, clocks: map[string]time.Duration{}, booted: map[string]time.Time{}, walled: map[string]bool{}, proxies: map[string]ProxyFailure{}, noDaemon: map[string]bool{},
		down: map[string]bool{}, crashes: map[string]int{}, ha: map[string]*haService{}, haLeaving: map[string]*haService{}, haGroups: map[string]bool{}, firewalls: map[int]Firewall{},
		mappings: map[string]map[string]bool{},
	}
}

// SetFirmware sets what runs in VMs that are switched on from now on. Without
// any, a running VM does nothing and ignores its power button.
func (w *World) SetFirmware(f Firmware) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firmware = f
}

// AddHost adds a Proxmox node.
func (w *World) AddHost(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = append(w.hosts, name)
	w.booted[name] = time.Now().Add(-upBefore)
}

// Hosts lists the Proxmox nodes in the order they were added.
func (w *World) Hosts() []string {
	w.mu.Look()
	defer w.mu.Unlock()
	return slices.Clone(w.hosts)
}

// Cluster is the name of the Proxmox cluster; "" for a host in none.
func (w *World) Cluster() string { return w.cluster }

// SetQuorum says whether the Proxmox cluster has quorum.
func (w *World) SetQuorum(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quorate = ok; ok {
		w.resumeHA()
	}
}

// Quorate says whether the Proxmox cluster has quorum.
func (w *World) Quorate() bool {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.hasQuorum()
}

// hasQuorum says that more than half of the hosts are there, each with one vote.
func (w *World) hasQuorum() bool {
	up := 0
	for _, host := range w.hosts {
		if !w.down[host] {
			up++
		}
	}
	return w.quorate && (w.cluster == "" || len(w.hosts) == 0 || 2*up > len(w.hosts))
}

// Delay lets d of simulated time pass. It is false when the world was closed meanwhile.
func (w *World) Delay(d time.Duration) bool { return w.delay(d, nil) == nil }

// DelayUnless is Delay that also ends, and is false, when stop is closed.
func (w *World) DelayUnless(d time.Duration, stop <-chan struct{}) bool {
	return w.delay(d, stop) == nil
}

// delay is Delay that also ends when stop is closed.
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

// Close switches every VM off, ends every task and waits for all of them.
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
			w.vms[id].proc = nil // who waits for its end sees done instead
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

// spawn runs f in a goroutine that Close waits for; mu must be held. It is false after Close.
func (w *World) spawn(f func()) bool {
	if w.closed {
		return false
	}
	w.work.Go(f)
	return true
}

// lockConfig takes the lock file of a VM's configuration as Proxmox does,
// giving up after ten seconds. The caller calls unlock.
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

// HoldLock takes the lock file of a VM's configuration, as another process on
// its host would, until release is called. A VM need not have that number.
func (w *World) HoldLock(id int) (release func(), err error) { return w.lockConfig(id) }

// checkQuorum is the check that Proxmox makes before some operations, not all.
func (w *World) checkQuorum() error {
	if !w.hasQuorum() {
		return failf("cluster not ready - no quorum?")
	}
	return nil
}

// writeConfig stands for writing a VM's configuration file: without quorum it
// fails, after whatever came before it has happened.
func (w *World) writeConfig(v *vm) error {
	if !w.hasQuorum() {
		w.lastPID++
		return failf("unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.%d' - Permission denied", v.host, v.id, w.lastPID)
	}
	return nil
}
