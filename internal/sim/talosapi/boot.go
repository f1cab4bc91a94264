package talosapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// boot is one run of a kernel, from its start to power off or the next kernel.
type boot struct {
	m     *machine
	med   medium
	id    string                                       // boot ID
	life  func() (context.Context, context.CancelFunc) // ends with this boot
	store *store
	tasks sync.WaitGroup

	started time.Time
	kernel  *kernelLog
	events  *eventLog
	told    *machineapi.MachineStatusEvent // the last one of its kind; with showing held

	fixed func() nodeFiles // what of the file system stays as it is, worked out once

	probing    sync.Mutex // one look at the disks at a time
	showing    sync.Mutex // one refresh at a time
	installing sync.Mutex // one installer at a time
	settled    sync.Once  // when the machine is running and ready

	orders  chan outcome // from the API: reboot, shut down
	configs chan []byte  // from the API in maintenance mode

	mu      sync.Mutex
	api     *api            // nil while the API is down
	cfg     config.Provider // nil in maintenance mode
	upgrade upgrade         // what to do when the order is to upgrade
	nodeID  string
	status  runtime.MachineStatusSpec // as stage set it
	etcd    *etcdService              // nil on a worker, and until it is started
	kubelet time.Time                 // when it was restarted; zero if it never was
	ending  bool                      // whether the sequence that ends the boot has begun
	actor   string                    // ID of whoever gave the order to end
	drain   bool                      // whether Talos is to empty the node before it ends
	reset   *machineapi.ResetRequest  // what to wipe when the order is to reset
	node    string                    // the name that the kubelet was announced under; empty while it is down
}

// boot runs one kernel to its end.
func (m *machine) boot(ctx context.Context, med medium) outcome {
	if !m.fw.sleep(ctx, bootTime) {
		return killed
	}
	if _, installed := systemDisk(m.devices()); installed && med.halts() {
		m.console("Talos is already installed to disk but booted from another media and talos.halt_if_installed kernel parameter is set. Please reboot from the disk.")
		return m.dark(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	b := &boot{
		m: m, med: med, id: uuid.NewString(),
		life:   func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		orders: make(chan outcome, 1), configs: make(chan []byte, 1),
		started: time.Now(), kernel: &m.kernel, events: newEventLog(),
	}
	m.kernel.restart("6.18.0-talos", med.image.Cmdline)
	b.fixed = sync.OnceValue(b.fixedFiles)
	end, err := b.run(ctx)
	cancel()
	b.tasks.Wait() // one of them may start the API
	b.stopAPI()
	b.gone()
	if err != nil && end != killed {
		m.console("machine stopped: %v", err)
	}
	return end
}

// run is maintenance mode, if the machine has no configuration, then the configured system.
func (b *boot) run(ctx context.Context) (outcome, error) {
	kinds, err := definitions()
	if err != nil {
		return b.crash(ctx, err)
	}
	if b.store, err = newStore(ctx, kinds); err != nil {
		return b.crash(ctx, err)
	}
	if err := b.publishFacts(ctx); err != nil {
		return b.crash(ctx, err)
	}
	st, configured := readState(b.m.devices())
	if !configured {
		raw, end, err := b.maintenance(ctx)
		if err != nil {
			return b.crash(ctx, err)
		}
		if end != carryOn {
			return b.leave(ctx, end), nil
		}
		st = stateData{Config: raw, NodeID: newNodeID()}
		if _, installed := systemDisk(b.m.devices()); installed {
			if err := b.keep(st); err != nil {
				return b.crash(ctx, err)
			}
		}
	}
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

// crash leaves the machine as it is, dead, until somebody pulls the plug.
func (b *boot) crash(ctx context.Context, err error) (outcome, error) {
	if ctx.Err() != nil {
		return killed, nil
	}
	b.m.console("kernel panic: %v", err)
	b.stopAPI()
	b.etcdService().stop(nil)
	return b.m.dark(ctx), err
}

// maintenance serves the API of a machine without configuration until it gets one.
func (b *boot) maintenance(ctx context.Context) ([]byte, outcome, error) {
	if err := b.stage(ctx, runtime.MachineStageMaintenance, true); err != nil {
		return nil, carryOn, err
	}
	if b.m.addr.IsValid() {
		tls, err := maintenanceTLS(b.m.addr)
		if err != nil {
			return nil, carryOn, err
		}
		if err := b.startAPI(tls, nil, true); err != nil {
			return nil, carryOn, err
		}
	}
	select {
	case <-ctx.Done():
		return nil, killed, nil
	case <-b.m.power:
		return nil, powerOff, nil
	case raw := <-b.configs:
		// the answer to the request still leaves through the old API
		if end := b.wait(ctx, switchTime); end != carryOn {
			return nil, end, nil
		}
		b.stopAPI()
		return raw, b.wait(ctx, switchTime), nil
	}
}

// configured runs a machine that has a configuration: it installs the system if need be, else it is a node.
func (b *boot) configured(ctx context.Context, st stateData) (outcome, error) {
	if err := b.adopt(ctx, st); err != nil {
		return carryOn, err
	}
	if err := b.stage(ctx, runtime.MachineStageBooting, false, "services"); err != nil {
		return carryOn, err
	}
	if b.m.addr.IsValid() {
		b.tasks.Go(func() { b.secureAPI(ctx) })
	}
	if _, installed := systemDisk(b.m.devices()); !installed {
		if b.m.etcdData() != nil {
			b.startEtcd(ctx) // its volume is there, so it does not wait for the install
		}
		return b.install(ctx)
	}
	if end := b.runStaged(ctx); end != carryOn {
		return end, nil
	}
	if err := b.provision(ctx); err != nil {
		return carryOn, err
	}
	b.startEtcd(ctx)
	if end := b.wait(ctx, serviceTime); end != carryOn {
		return end, nil
	}
	b.tasks.Go(func() { b.discover(ctx) })
	b.announce()
	if err := b.stage(ctx, runtime.MachineStageBooting, true); err != nil {
		return carryOn, err
	}
	if end := b.awaitEtcd(ctx); end != carryOn {
		return end, nil
	}
	if err := b.stage(ctx, runtime.MachineStageRunning, true); err != nil {
		return carryOn, err
	}
	if cfg := b.config(); cfg.Machine().Type().IsControlPlane() {
		if err := b.publishStaticPods(ctx); err != nil {
			return carryOn, err
		}
	}
	b.startKubernetes()
	b.tasks.Go(func() { b.uncordon(ctx) })
	return b.wait(ctx, 0), nil
}

// leave brings services down in order before a reboot or power off.
func (b *boot) leave(ctx context.Context, end outcome) outcome {
	stage := runtime.MachineStageRebooting
	switch end {
	case kexec, powerCycle:
	case powerOff:
		stage = runtime.MachineStageShuttingDown
	default:
		return end
	}
	actor := b.begin(map[bool]string{true: "shutdown", false: "reboot"}[end == powerOff])
	b.mu.Lock()
	drain := b.drain
	b.mu.Unlock()
	if drain {
		b.empty(ctx)
	}
	b.gone()
	b.tell(actor, &machineapi.TaskEvent{Task: "stopAllServices", Action: machineapi.TaskEvent_START})
	b.etcdService().stop(errOrderly)
	if err := b.stage(ctx, stage, false); err != nil || !b.m.fw.sleep(ctx, leaveTime) {
		return killed
	}
	b.tell(actor, &machineapi.TaskEvent{Task: "stopAllServices", Action: machineapi.TaskEvent_STOP})
	return end
}

// begin tells that the sequence which ends this boot has begun, if none has, and who wanted it.
func (b *boot) begin(sequence string) (actor string) {
	b.mu.Lock()
	begun, actor := b.ending, b.actor
	b.ending = true
	b.mu.Unlock()
	if !begun {
		b.tell(actor, &machineapi.SequenceEvent{Sequence: sequence, Action: machineapi.SequenceEvent_START})
	}
	return actor
}

// wait lets d pass (0: for ever) unless the machine is told to end before.
func (b *boot) wait(ctx context.Context, d time.Duration) outcome {
	var elapsed <-chan time.Time
	if d > 0 {
		t := time.NewTimer(b.m.fw.scaled(d))
		defer t.Stop()
		elapsed = t.C
	}
	select {
	case <-ctx.Done():
		return killed
	case <-elapsed:
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

// order asks the boot to end, and names whoever does; a second order while one is pending changes nothing.
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
	b.mu.Lock()
	b.cfg, b.nodeID = cfg, st.NodeID
	b.mu.Unlock()
	return b.publishConfig(ctx, cfg, cfg)
}

// config is the active configuration, nil in maintenance mode.
func (b *boot) config() config.Provider {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cfg
}

func newNodeID() string { return uuid.NewString() + uuid.NewString()[:8] }
