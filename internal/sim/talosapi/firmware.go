// Package talosapi runs simulated Talos machines: a [Firmware] boots the content of a
// VM's media, and the machine serves the Talos API in maintenance mode or on a configured
// node, installs, reboots and shuts down like the real system.
package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Times are durations at speed 1; 0 means the default.
type Times struct {
	Boot     time.Duration // kernel and early userland, after firmware or kexec; 10 s
	Firmware time.Duration // power on to kernel; 5 s
	Pull     time.Duration // of the installer; 8 s
	Copy     time.Duration // of the boot image; 12 s
	Services time.Duration // from the API's start until all services run; 5 s
	Leave    time.Duration // orderly shutdown of services; 5 s
}

const (
	apiPort      = 50000       // apid's
	switchTime   = time.Second // each half of the switch from maintenance to configured, at speed 1
	affiliateTTL = 30 * time.Minute
)

// Kubelet gets the starts and ends of nodes' kubelets. Its methods must not block.
type Kubelet interface {
	NodeUp(NodeInfo)
	NodeDown(name, uuid string)
	// StaticPods gets the state of the static pods of the kubelet of the machine with that UUID.
	StaticPods(uuid string, pods []StaticPod)
}

// Data is the content of etcd for the control planes' API servers.
type Data interface {
	// Revision counts the writes so far.
	Revision() uint64
	Dump(ctx context.Context) ([]etcd.KeyValue, error)
	// Load replaces the whole content.
	Load(ctx context.Context, data []etcd.KeyValue) error
	// Renew replaces the content by that of a new cluster, to which Talos has applied these objects.
	Renew(ctx context.Context, objects []map[string]any) error
}

// NodeInfo is a node as its kubelet registers it.
type NodeInfo struct {
	Name           string
	UUID           string // SMBIOS, lower-case
	MachineID      string // of /etc/machine-id: from the identity in STATE
	BootID         string
	Address        netip.Addr
	ControlPlane   bool
	TalosVersion   string
	KubeletVersion string // "v1.35.4"
	Labels         map[string]string
}

// Options connect the machines to their environment.
type Options struct {
	Network  *network.Network
	Recorder *record.Recorder
	// Lease is the DHCP address of a MAC (upper-case).
	Lease func(mac string) (netip.Addr, bool)
	// NetworkBits is the prefix length of the leases' network; 0 means 24.
	NetworkBits int
	// Speed divides every simulated duration; 0 means 1.
	Speed float64
	Times Times
	// PullInstaller fetches the boot image of an installer image for that architecture. If the
	// registry lacks the image, the error is ErrNoImage.
	PullInstaller func(ctx context.Context, ref, arch string) (uki []byte, err error)
	// PublicImage is the digest of an image in a public registry that the lab does not serve:
	// Kubernetes' own. For a missing image the error is ErrNoImage, for a registry of the lab
	// errors.ErrUnsupported. nil: containers run without pulling images.
	PublicImage func(ref string) (digest string, err error)
	// ResolveImage is the digest that a tag currently points to; may be nil.
	ResolveImage func(ctx context.Context, ref string) (digest string, err error)
	// Drain cordons a node in Talos' name and drains it; Uncordon removes that cordon. They may block; nil does nothing.
	Drain, Uncordon func(ctx context.Context, node string) error
	// Kubelet may be nil.
	Kubelet Kubelet
	// Data is the API servers' content of etcd; nil: none.
	Data Data
	// Formatted is called when a machine has made a user volume on a disk; may be nil.
	Formatted func(vm, volume string, disk *world.Media)
	// Console gets the lines that a machine prints on its screen; may be nil.
	Console func(vmid int, line string)
}

// Firmware boots Talos machines.
type Firmware struct {
	o   Options
	hub *hub

	boots   bootImages
	images  imageStore
	silence sync.Mutex         // guards silent, and is held while it decides
	silent  func(Request) bool // selects the requests that machines do not answer; nil: none

	lastEvent atomic.Uint64
	life      func() (context.Context, context.CancelFunc)
}

var _ world.Firmware = (*Firmware)(nil)

// New makes firmware whose machines end with ctx at the latest.
func New(ctx context.Context, o Options) *Firmware {
	o.Speed, o.NetworkBits = cmp.Or(o.Speed, 1), cmp.Or(o.NetworkBits, 24)
	o.Times = Times{
		Boot: cmp.Or(o.Times.Boot, 10*time.Second), Firmware: cmp.Or(o.Times.Firmware, 5*time.Second),
		Pull: cmp.Or(o.Times.Pull, 8*time.Second), Copy: cmp.Or(o.Times.Copy, 12*time.Second),
		Services: cmp.Or(o.Times.Services, 5*time.Second), Leave: cmp.Or(o.Times.Leave, 5*time.Second),
	}
	return &Firmware{
		o: o, hub: newHub(),
		life:   func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		boots:  bootImages{held: map[string]*world.Media{}},
		images: imageStore{volumes: map[string]map[imageName]cachedImage{}},
	}
}

func (fw *Firmware) PowerOn(hw *world.Hardware) world.Guest {
	ctx, cancel := fw.life()
	m := &machine{fw: fw, hw: hw, cancel: cancel, power: make(chan struct{}), done: make(chan struct{})}
	go func() {
		off := m.run(ctx)
		close(m.done)
		if off {
			hw.PowerOff() // the world calls Kill, which then has nothing to wait for
		}
	}()
	return m
}

func (fw *Firmware) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / fw.o.Speed)
}

// sleep waits for a simulated duration and reports whether ctx is still alive.
func (fw *Firmware) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(fw.scaled(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}

// spend does the work of sleep for the machine's own work, which the world's timeline records.
func (m *machine) spend(ctx context.Context, what string, d time.Duration) bool {
	defer m.account(what)()
	return m.fw.sleep(ctx, d)
}

// account begins a delay of the timeline and returns the function that ends it.
func (m *machine) account(what string) (end func()) {
	from := time.Now()
	return func() {
		m.fw.o.Recorder.Timeline.Add(record.Delay{VMIDs: []int{m.hw.VMID}, What: what, From: from, To: time.Now()})
	}
}

func (m *machine) console(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.say("%s", text)
	if m.fw.o.Console != nil {
		m.fw.o.Console(m.hw.VMID, text)
	}
}

// Defect is a fault of an image. The image's ISO still reaches maintenance mode: a defect
// shows in the installed system.
type Defect string

// The defects.
const (
	Sound Defect = "" // none

	Unpullable     Defect = "cannot be pulled"
	Unauthorized   Defect = "needs credentials" // which the machines lack
	Endless        Defect = "never arrives"     // a pull never ends
	InstallerFails Defect = "installer fails"   // with an exit code, before it changes an installed system

	// Unready is a system whose API works but whose kubelet never starts; as the defect of a container's image, the
	// container starts and never answers.
	Unready Defect = "never ready"
	// Unserving is an API server's image that answers but is never ready to serve.
	Unserving Defect = "never serves"
	// RollsBack is a system whose machined ends with a fatal error: it restores the boot entry
	// from before the upgrade, if META names one, and reboots.
	RollsBack Defect = "rolls back"
	// Hangs is a system that starts but never reaches its API. Nothing reverts the upgrade.
	Hangs Defect = "hangs"
	// KexecOnly is a system that a running kernel can start, and the firmware can't: started by the firmware, the
	// system hangs before it reaches its API (talos#14146).
	KexecOnly Defect = "boots by kexec only"
	// Loops is a system that reboots into the same entry for ever; as the defect of an image of etcd or of a static
	// pod, the container ends as soon as it has started.
	Loops Defect = "loops"
)

// How long a defective system takes to fail, and machined's pause before the reboot after a fatal error.
const (
	failTime  = 20 * time.Second
	panicTime = 10 * time.Second
)

// BreakImage gives an image a defect: every image of a schematic by its ID, or one image by its installer reference.
// Sound repairs the image. Installed systems are affected from their next boot on.
func (fw *Firmware) BreakImage(image string, d Defect) {
	fw.hub.change(func() { fw.hub.defects[image] = d })
}

// defectOf returns the defect of an image by its reference, on this machine or everywhere.
func (m *machine) defectOf(ref string) Defect {
	if what, ok := m.has().Images[ref]; ok {
		return what
	}
	return look(&m.fw.hub.mu, func() Defect { return m.fw.hub.defects[ref] })
}

// defectOf returns the defect of an image by any of its names.
func (h *hub) defectOf(img artefact.Image, refs ...string) Defect {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range append(refs, build(img), img.SchematicID) {
		if what, ok := h.defects[name]; ok {
			return what
		}
	}
	return Sound
}

// pulled remembers the content of an image that is broken by reference, since the boot
// image does not contain the reference.
func (h *hub) pulled(ref string, img artefact.Image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if what, ok := h.defects[ref]; ok {
		h.defects[build(img)] = what
	}
}

func build(img artefact.Image) string { return img.SchematicID + " " + img.TalosVersion }

// stumble ends the boot of a defective installed system as its defect says.
func (b *boot) stumble(ctx context.Context) outcome {
	if b.med.entry == "" {
		return carryOn
	}
	switch b.m.fw.hub.defectOf(b.med.image) {
	case Hangs:
		return b.m.dark(ctx)
	case KexecOnly:
		if !b.med.kexec {
			return b.m.dark(ctx)
		}
	case Loops:
		if !b.m.fw.sleep(ctx, failTime) {
			return killed
		}
		b.m.console("rebooting: no init found")
		return powerCycle
	case RollsBack:
		if !b.m.fw.sleep(ctx, failTime) {
			return killed
		}
		return b.fatal(ctx, "fatal sequencer error in \"boot\" sequence: task 1/1: failed")
	}
	return carryOn
}

// fatal handles machined's fatal error: it reverts an upgrade on probation and reboots through the firmware (main.go,
// revert.go in Talos' machined).
func (b *boot) fatal(ctx context.Context, why string) outcome {
	b.ending = true // without a sequence
	b.m.console("%s", why)
	if err := b.m.revertUpgrade(); err != nil {
		b.m.console("failed to revert bootloader: %v", err)
	}
	if !b.m.fw.sleep(ctx, panicTime) {
		return killed
	}
	return powerCycle
}

// Trouble holds the faults of a machine, whatever it boots; the zero value is no fault.
type Trouble struct {
	Unplugged bool              // no network from its next power-on
	Nameless  bool              // its disks show neither serials nor WWNs
	Full      bool              // EPHEMERAL has no room for an image
	Refuses   string            // its answer to a configuration, which it refuses
	Images    map[string]Defect // defects of images on this machine alone, by reference
	NoOneShot bool              // its kernel can't write EFI variables: after a kexec it reports the previous boot entry
	Clock     time.Duration     // offset of its clock, without a time server to correct it
}

// Trouble sets the faults of a VM's machine; they survive power cycles.
func (fw *Firmware) Trouble(vmid int, t Trouble) {
	fw.hub.change(func() {
		fw.hub.troubles[vmid] = t
		close(fw.hub.troubled)
		fw.hub.troubled = make(chan struct{})
	})
}

func (m *machine) has() Trouble {
	return look(&m.fw.hub.mu, func() Trouble { return m.fw.hub.troubles[m.hw.VMID] })
}

// errFull is containerd's error without free space.
var errFull = errors.New("failed to extract layer: write /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs: no space left on device")

// certificateValidity is the lifetime of Talos' own certificates.
const certificateValidity = x509.DefaultCertificateValidityDuration

// awaitTime delays etcd and the kubelet until the clock is right, as their conditions do (services/etcd.go, kubelet.go
// in machined). Certificates are then renewed (controllers/secrets/api.go).
func (b *boot) awaitTime(ctx context.Context) (outcome, error) {
	for off := false; ; off = true {
		changed := guarded(&b.m.fw.hub.mu, &b.m.fw.hub.troubled)
		if b.m.has().Clock == 0 {
			if off {
				b.stopAPI()
				b.secureAPI(ctx)
			}
			return carryOn, nil
		}
		b.stage(ctx, runtime.MachineStageBooting, false, "time: time is not synced", "services: kubelet not running")
		if end := until(ctx, b, changed); end != carryOn {
			return end, nil
		}
	}
}

// errNoMachined is apid's error while machined is down.
var errNoMachined = status.Error(codes.Unavailable,
	`connection error: desc = "transport: Error while dialing: dial unix /system/run/machined/machine.sock: connect: connection refused"`)

// haltTime is how long a machine stays halted (constants.BootTimeout); then it reboots.
const haltTime = 70 * time.Minute

// halt stops a machine whose boot medium finds Talos on a disk (haltIfInstalled in v1alpha1_sequencer_tasks.go).
func (m *machine) halt(ctx context.Context) outcome {
	m.console("Talos is already installed to disk but booted from another media and talos.halt_if_installed kernel parameter is set. Please reboot from the disk.")
	if !m.fw.sleep(ctx, haltTime) {
		return killed
	}
	return powerCycle
}

// Request is the request that Firmware.Silence decides about.
type Request struct {
	VMID     int
	Method   string // full gRPC name; "": a new connection
	Resource string // type of the resource, for reads of resources
}

// Silence makes machines accept each request that silent selects and never answer it, like
// a hanging machined, or a hanging kernel behind an open port. silent sees every request
// that this Firmware's machines get and allow; nil ends the silence for later requests.
func (fw *Firmware) Silence(silent func(Request) bool) {
	holding(&fw.silence, func() { fw.silent = silent })
}

func (m *machine) silent(method, resource string) bool {
	if m.astray.Load() {
		return true
	}
	m.fw.silence.Lock()
	defer m.fw.silence.Unlock()
	return m.fw.silent != nil && m.fw.silent(Request{m.hw.VMID, method, resource})
}

// hang returns at once unless the machine is silent about the request. Otherwise it waits until the caller or the
// machine is gone.
func (m *machine) hang(ctx context.Context, method, resource string) error {
	if !m.silent(method, resource) {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// stateService is COSI's service, whose requests are also selected by resource type.
const stateService = "/cosi.resource.State/"

// muteListener accepts connections to a silent machine and never reads from them.
type muteListener struct {
	net.Listener
	m *machine

	mu   sync.Mutex
	kept []net.Conn
}

func (l *muteListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || !l.m.silent("", "") {
			return conn, err
		}
		holding(&l.mu, func() { l.kept = append(l.kept, conn) })
	}
}

func (l *muteListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.kept {
		_ = conn.Close() // it was never used
	}
	l.kept = nil
	return err
}

// guarded returns what a field holds that mu guards.
func guarded[T any](mu *sync.Mutex, field *T) T { return look(mu, func() T { return *field }) }

// look reads something with mu held.
func look[T any](mu *sync.Mutex, read func() T) T {
	mu.Lock()
	defer mu.Unlock()
	return read()
}

// holding does something with mu held.
func holding(mu *sync.Mutex, do func()) {
	mu.Lock()
	defer mu.Unlock()
	do()
}

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
	b.stage(ctx, runtime.MachineStageMaintenance, true)
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
	b.stage(ctx, runtime.MachineStageBooting, false, "services")
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
		b.stage(ctx, runtime.MachineStageBooting, false, "services: kubelet not running")
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
	b.stage(ctx, runtime.MachineStageBooting, true)
	if e := b.etcdService(); e != nil {
		if end := until(ctx, b, e.up); end != carryOn {
			return end, nil
		}
	}
	b.seq.end()
	b.stage(ctx, runtime.MachineStageRunning, true)
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
	if b.stage(ctx, stage, true); !b.m.spend(ctx, "leave", b.m.fw.o.Times.Leave/2) {
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
	b.sequence(guarded(&b.mu, &b.actor), name, phases)
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

func (m *machine) Shutdown() {
	select {
	case m.power <- struct{}{}:
	default:
	}
}

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
		switch end := m.boot(ctx, med); end {
		case kexec:
			if med, ok = m.installed(); !ok {
				med, ok = m.firmwareBoot(ctx)
			}
		case powerCycle:
			med, ok = m.firmwareBoot(ctx)
		default:
			return end == powerOff
		}
	}
	m.dark(ctx)
	return false
}

// dark makes the machine do nothing until it is powered off.
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
