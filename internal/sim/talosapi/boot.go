package talosapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/internal/sim/world"
)

// boot is one run of a kernel, until power off or the next kernel.
type boot struct {
	m     *machine
	med   medium
	id    string                                       // boot ID
	life  func() (context.Context, context.CancelFunc) // ends with this boot
	store *store
	tasks sync.WaitGroup

	started time.Time
	events  journal[event]
	kubelet *kubelet
	shown   map[string]service             // as last reported; guarded by showing
	told    *machineapi.MachineStatusEvent // latest event; guarded by showing

	seq    *sequence // nil between sequences
	ending bool      // the sequence that ends the boot has begun

	tried bool // the configuration is not stored anywhere; set before any task of the boot runs

	fixed    func() nodeFiles // the constant part of the file system, computed once
	extended func() []string  // IDs of the services of the image's extensions, computed once

	probing    sync.Mutex  // one probe of the disks at a time
	probed     *diskInputs // inputs of the published disk resources; nil: none yet
	showing    sync.Mutex  // one refresh at a time
	installing sync.Mutex  // one installer at a time
	settled    sync.Once   // when the machine is running and ready
	dying      atomic.Bool // machined is down, apid still answers

	orders  chan outcome     // from the API: reboot, shutdown
	configs chan firstConfig // from the API in maintenance mode

	mu      sync.Mutex
	api     *api              // nil while the API is down
	cfg     config.Provider   // nil in maintenance mode
	stored  config.Provider   // configuration for the next boot; nil until a configuration is applied: this boot's, which no resource shows (acquire.go)
	trial   *time.Timer       // when it fires, the previous configuration becomes active again; nil: no trial
	upgrade upgrade           // parameters of an upgrade
	failed  map[string]string // why volumes could not be opened, by ID
	nodeID  string
	status  runtime.MachineStatusSpec // as set by stage
	etcd    *etcdService              // nil on a worker, and before its start
	planes  bool                      // Talos renders the control plane's static pods
	actor   string                    // ID of the request that ends the boot
	drain   bool                      // Talos is to drain the node first
	reset   *machineapi.ResetRequest  // what to wipe in a reset
	node    string                    // name of the announced kubelet; empty while it is down
}

// boot runs one kernel to its end.
func (m *machine) boot(ctx context.Context, med medium) outcome {
	if !m.spend(ctx, "boot", m.fw.o.Times.Boot) {
		return killed
	}
	if _, installed := systemDisk(m.devices()); installed && med.halts() {
		return m.halt(ctx)
	}
	m.unplugged = m.has().Unplugged
	ctx, cancel := context.WithCancel(ctx)
	b := &boot{
		m: m, med: med, id: uuid.NewString(),
		life:   func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		orders: make(chan outcome, 1), configs: make(chan firstConfig, 1),
		started: time.Now(),
	}
	b.kubelet = newKubelet(b)
	m.kernel.restart("6.18.0-talos", med.image.Cmdline)
	m.log.clear()
	m.etcd.clear()
	b.fixed = sync.OnceValue(b.fixedFiles)
	b.extended = sync.OnceValue(func() []string { return extensionServices(med.image) })
	m.fw.hub.change(func() { m.fw.hub.up[m.hw.VMID] = b })
	end, err := b.run(ctx)
	m.fw.hub.change(func() {
		if m.fw.hub.up[m.hw.VMID] == b {
			delete(m.fw.hub.up, m.hw.VMID)
		}
	})
	cancel()
	b.tasks.Wait() // a task may still start the API
	b.stopAPI()
	b.gone()
	if err != nil && end != killed {
		m.console("machine stopped: %v", err)
	}
	return end
}

// run runs maintenance mode if the machine has no configuration, then the configured system.
func (b *boot) run(ctx context.Context) (outcome, error) {
	kinds, err := definitions()
	if err != nil {
		return b.crash(ctx, err)
	}
	if b.store, err = newStore(ctx, b.release().kinds(kinds)); err != nil {
		return b.crash(ctx, err)
	}
	st, configured := readState(b.m.devices())
	cfg, _ := parseConfig(st.Config) // adopt reports its errors
	if !configured {
		cfg = nil
	}
	b.m.net.Store(new(b.m.attach(b.med.image, cfg)))
	if err := b.publishFacts(ctx); err != nil {
		return b.crash(ctx, err)
	}
	b.sequence("", "initialize", b.release().phases(initializePhases))
	b.seq.to("config")
	if !configured {
		first, given := b.m.userData(b.med.image)
		if !given {
			var end outcome
			if first, end, err = b.maintenance(ctx); err != nil {
				return b.crash(ctx, err)
			}
			if end != carryOn {
				return b.leave(ctx, end), nil
			}
		}
		st, b.tried = stateData{Config: first.raw, NodeID: b.m.fw.nextNodeID()}, first.tried
		if _, installed := systemDisk(b.m.devices()); installed && !b.tried {
			if err := b.keep(st); err != nil {
				return b.crash(ctx, err)
			}
		}
	}
	b.seq.end()
	if end := b.stumble(ctx); end != carryOn {
		return end, nil
	}
	end, err := b.configured(ctx, st)
	if err != nil {
		return b.crash(ctx, err)
	}
	switch end {
	case upgrading:
		end = b.runUpgrade(ctx)
	case resetting:
		end = b.runReset(ctx)
	}
	return b.leave(ctx, end), nil
}

// crash leaves the machine stuck until its power is cut.
func (b *boot) crash(ctx context.Context, err error) (outcome, error) {
	if ctx.Err() != nil {
		return killed, nil
	}
	b.m.console("kernel panic: %v", err)
	b.stopAPI()
	b.etcdService().stop(nil)
	return b.m.dark(ctx), err
}

// maintenance serves the API of a machine without configuration until the machine gets a configuration.
func (b *boot) maintenance(ctx context.Context) (firstConfig, outcome, error) {
	b.tell("", &machineapi.TaskEvent{Task: "runningMaintenance", Action: machineapi.TaskEvent_START})
	if err := b.stage(ctx, runtime.MachineStageMaintenance, true); err != nil {
		return firstConfig{}, carryOn, err
	}
	if b.m.addr().IsValid() {
		tls, err := maintenanceTLS(b.m.addr())
		if err != nil {
			return firstConfig{}, carryOn, err
		}
		if err := b.startAPI(ctx, tls, nil, true); err != nil {
			return firstConfig{}, carryOn, err
		}
	}
	select {
	case <-ctx.Done():
		return firstConfig{}, killed, nil
	case <-b.m.power:
		return firstConfig{}, powerOff, nil
	case first := <-b.configs:
		// the answer to the request still goes out through the old API
		if end := b.wait(ctx, "switch", switchTime); end != carryOn {
			return firstConfig{}, end, nil
		}
		b.stopAPI()
		b.tell("", &machineapi.TaskEvent{Task: "runningMaintenance", Action: machineapi.TaskEvent_STOP})
		return first, b.wait(ctx, "switch", switchTime), nil
	}
}

// configured runs a machine with a configuration: it installs the system if needed; otherwise the machine is a node.
func (b *boot) configured(ctx context.Context, st stateData) (outcome, error) {
	if err := b.adopt(ctx, st); err != nil {
		return carryOn, err
	}
	if err := b.stage(ctx, runtime.MachineStageBooting, false, "services"); err != nil {
		return carryOn, err
	}
	if b.m.addr().IsValid() {
		b.tasks.Go(func() { b.secureAPI(ctx) })
	}
	b.m.etcdApart.Store(new(promoted(b.config(), labelEtcd)))
	if _, installed := systemDisk(b.m.devices()); !installed {
		if b.m.etcdData() != nil {
			b.startEtcd(ctx) // etcd's volume exists, so etcd does not wait for the installation
		}
		if end, err := b.install(ctx); err != nil || end != carryOn {
			return end, err
		}
	} else if end := b.runStaged(ctx); end != carryOn {
		return end, nil
	}
	if b.seq == nil {
		b.bootSequence()
		if err := b.unattended(ctx, runtime.UnattendedInstallPhaseInstalled, nil); err != nil {
			return carryOn, err
		}
	}
	if err := b.provision(ctx); err != nil {
		return carryOn, err
	}
	b.seq.to("startEverything")
	if end, err := b.awaitTime(ctx); err != nil || end != carryOn {
		return end, err
	}
	if b.med.entry != "" && b.m.fw.hub.defectOf(b.med.image) == Unready {
		if err := b.stage(ctx, runtime.MachineStageBooting, false, "services: kubelet not running"); err != nil {
			return carryOn, err
		}
		return b.wait(ctx, "", 0), nil
	}
	if b.etcdService() == nil {
		b.startEtcd(ctx)
	}
	if end := b.wait(ctx, "services", b.m.fw.o.Times.Services); end != carryOn {
		return end, nil
	}
	b.tasks.Go(func() { b.discover(ctx) })
	if end := b.startKubelet(ctx); end != carryOn {
		return end, nil
	}
	if err := b.stage(ctx, runtime.MachineStageBooting, true); err != nil {
		return carryOn, err
	}
	if e := b.etcdService(); e != nil {
		if end := until(ctx, b, e.up); end != carryOn {
			return end, nil
		}
	}
	b.seq.end()
	if err := b.stage(ctx, runtime.MachineStageRunning, true); err != nil {
		return carryOn, err
	}
	if cfg := b.config(); cfg.Machine().Type().IsControlPlane() {
		if err := b.controls(ctx); err != nil {
			return carryOn, err
		}
	}
	b.tasks.Go(func() { b.uncordon(ctx) })
	return b.wait(ctx, "", 0), nil
}

// leave stops services in order before a reboot or power off.
func (b *boot) leave(ctx context.Context, end outcome) outcome {
	stage := runtime.MachineStageRebooting
	switch end {
	case kexec, powerCycle:
	case powerOff:
		stage = runtime.MachineStageShuttingDown
	default:
		return end
	}
	drain := guarded(&b.mu, &b.drain)
	if end == powerOff {
		b.begin("shutdown", b.release().shuttingDown(drain))
	} else {
		b.begin("reboot", b.release().rebooting())
	}
	if drain {
		b.seq.to("drain")
		b.empty(ctx)
	}
	b.gone()
	b.seq.to("stopEverything")
	b.etcdService().stop(errOrderly)
	if err := b.stage(ctx, stage, true); err != nil || !b.m.spend(ctx, "leave", b.m.fw.o.Times.Leave/2) {
		return killed
	}
	b.dying.Store(true) // machined ends before apid
	if !b.m.spend(ctx, "leave", b.m.fw.o.Times.Leave/2) {
		return killed
	}
	b.seq.to("reboot")
	b.seq.to("shutdown")
	return end
}

// begin starts, for b.actor, the sequence that ends this boot, unless a sequence that ends the boot has started.
func (b *boot) begin(name string, phases []phase) {
	if b.ending {
		return
	}
	b.ending = true
	actor := guarded(&b.mu, &b.actor)
	b.sequence(actor, name, phases)
}

// bootSequence starts the parts that make an installed machine a node, except the parts that wait for volumes.
func (b *boot) bootSequence() {
	b.sequence("", "boot", b.release().phases(bootPhases))
	b.seq.to("ephemeral")
}

// wait waits for d (0: for ever) unless an order to end comes first.
func (b *boot) wait(ctx context.Context, what string, d time.Duration) outcome {
	if d == 0 {
		return until[time.Time](ctx, b, nil)
	}
	defer b.m.account(what)()
	t := time.NewTimer(b.m.fw.scaled(d))
	defer t.Stop()
	return until(ctx, b, t.C)
}

// until waits for ready unless an order to end comes first.
func until[T any](ctx context.Context, b *boot, ready <-chan T) outcome {
	select {
	case <-ctx.Done():
		return killed
	case <-ready:
		if ctx.Err() != nil {
			return killed
		}
		return carryOn
	case <-b.m.power:
		return powerOff
	case end := <-b.orders:
		return end
	}
}

// order asks the boot to end and returns the request's actor; while an order is pending, a second order changes
// nothing.
func (b *boot) order(o outcome) (actor string) {
	actor = uuid.NewString()
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.orders <- o:
		b.actor = actor
	default:
	}
	return actor
}

// adopt makes a configuration the active one.
func (b *boot) adopt(ctx context.Context, st stateData) error {
	cfg, err := parseConfig(st.Config)
	if err != nil {
		return fmt.Errorf("read machine configuration: %w", err)
	}
	holding(&b.mu, func() { b.cfg, b.nodeID = cfg, st.NodeID })
	b.m.net.Store(new(b.m.attach(b.med.image, cfg))) // before its API starts
	return b.publishConfig(ctx, cfg)
}

// config returns the active configuration, nil in maintenance mode.
func (b *boot) config() config.Provider { return guarded(&b.mu, &b.cfg) }

func newNodeID() string { return uuid.NewString() + uuid.NewString()[:8] }

// machine is a VM that is powered on.
type machine struct {
	fw     *Firmware
	hw     *world.Hardware
	cancel context.CancelFunc
	power  chan struct{} // the ACPI button; without a receiver a press has no effect
	done   chan struct{}

	kernel kernelLog // of this boot, like the two below
	log    textLog   // machined's
	etcd   textLog   // log of etcd's server

	bootLoader atomic.Value // entry that systemd-boot took at the latest firmware boot, as string

	net       atomic.Pointer[attachment] // of the present boot
	unplugged bool                       // the boot began without a network
	astray    atomic.Bool                // its configuration has given it an address where no client looks for it

	etcdApart atomic.Pointer[bool] // etcd's directory is on a partition of its own; nil before the first boot

	runs  atomic.Value // reference of the kubelet's image, as string
	disks sync.Mutex   // held for read-modify-write of a disk's content
}

var _ world.Guest = (*machine)(nil)

// Shutdown implements world.Guest.
func (m *machine) Shutdown() {
	select {
	case m.power <- struct{}{}:
	default:
	}
}

// Kill implements world.Guest.
func (m *machine) Kill() {
	m.cancel()
	<-m.done
}

// outcome is how a boot, or a part of it, ended.
type outcome int

const (
	carryOn    outcome = iota // the boot has not ended
	killed                    // power loss
	kexec                     // directly into the installed system's kernel
	powerCycle                // through the firmware
	powerOff                  // power the machine off
	upgrading                 // install a new system first, then reboot
	resetting                 // wipe first, then reboot or power off
)

// run runs the machine from power on to its end; true means that the machine wants to be powered off.
func (m *machine) run(ctx context.Context) bool {
	defer m.cancel()
	med, ok := m.firmwareBoot(ctx)
	for ok {
		switch m.boot(ctx, med) {
		case kexec:
			if med, ok = m.installed(); ok {
				continue
			}
			med, ok = m.firmwareBoot(ctx)
		case powerCycle:
			med, ok = m.firmwareBoot(ctx)
		case powerOff:
			return true
		default:
			return false
		}
	}
	m.dark(ctx)
	return false
}

// dark makes the machine do nothing until it is powered off: the machine has nothing to boot, is halted, or has
// crashed.
func (m *machine) dark(ctx context.Context) outcome {
	<-ctx.Done()
	return killed
}

// firmwareBoot boots the first bootable medium of the boot order.
func (m *machine) firmwareBoot(ctx context.Context) (medium, bool) {
	if !m.spend(ctx, "firmware", m.fw.o.Times.Firmware) {
		return medium{}, false
	}
	m.adoptImages()
	devs := m.devices()
	for _, key := range m.hw.BootOrder {
		for _, d := range devs {
			if d.Key != key {
				continue
			}
			med, ok := m.readMedium(d)
			switch {
			case !ok || med.image.Arch != m.hw.Arch: // the firmware needs a loader of its own architecture
			case m.hw.SecureBoot: // the lab's images are not signed
				m.console("BdsDxe: failed to load %s: Access Denied", key)
			default:
				m.bootLoader.Store(m.loadedEntry(med))
				return med, true
			}
		}
	}
	m.console("no bootable device")
	return medium{}, false
}

// installed returns the system disk's default entry, as kexec loads it. The system then reports the name in the
// variable, even if the disk has no entry of that name: sd-boot's own report, in lower case, is from the latest
// firmware boot (controllers/runtime/booted_entry.go).
func (m *machine) installed() (medium, bool) {
	d, ok := systemDisk(m.devices())
	if !ok {
		return medium{}, false
	}
	med, ok := m.readMedium(d)
	med.kexec = true
	if m.uefi() {
		med.reported = readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault
	}
	return med, ok
}
