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

	"github.com/siderolabs/crypto/x509"
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

func (t Times) withDefaults() Times {
	return Times{
		Boot: cmp.Or(t.Boot, 10*time.Second), Firmware: cmp.Or(t.Firmware, 5*time.Second),
		Pull: cmp.Or(t.Pull, 8*time.Second), Copy: cmp.Or(t.Copy, 12*time.Second),
		Services: cmp.Or(t.Services, 5*time.Second), Leave: cmp.Or(t.Leave, 5*time.Second),
	}
}

const (
	switchTime   = time.Second // each half of the switch from maintenance to configured, at speed 1
	affiliateTTL = 30 * time.Minute
)

// apiPort is apid's port.
const apiPort = 50000

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

	boots    bootImages
	images   imageStore
	silences silences

	lastEvent atomic.Uint64
	life      func() (context.Context, context.CancelFunc)
}

var _ world.Firmware = (*Firmware)(nil)

// New makes firmware whose machines end with ctx at the latest.
func New(ctx context.Context, o Options) *Firmware {
	if o.Speed == 0 {
		o.Speed = 1
	}
	o.Times = o.Times.withDefaults()
	o.NetworkBits = cmp.Or(o.NetworkBits, 24)
	return &Firmware{
		o: o, hub: newHub(),
		life:   func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		boots:  bootImages{held: map[string]*world.Media{}},
		images: imageStore{volumes: map[string]map[imageName]cachedImage{}},
	}
}

// PowerOn implements world.Firmware.
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

// scaled returns the real duration of d in this lab.
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

// console prints a line on a machine's screen.
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
	m.fw.hub.mu.Lock()
	defer m.fw.hub.mu.Unlock()
	return m.fw.hub.defects[ref]
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

// build identifies one schematic's image of one version.
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

// trouble returns the machine's faults, and a channel closed when the faults may have changed.
func (m *machine) trouble() (Trouble, <-chan struct{}) {
	m.fw.hub.mu.Lock()
	defer m.fw.hub.mu.Unlock()
	return m.fw.hub.troubles[m.hw.VMID], m.fw.hub.troubled
}

// has returns the machine's present faults.
func (m *machine) has() Trouble {
	t, _ := m.trouble()
	return t
}

// shown returns a drive as the machine sees it.
func (t Trouble) shown(d world.Drive) world.Drive {
	if t.Nameless {
		d.Serial, d.WWN = "", ""
	}
	return d
}

// errFull is containerd's error without free space.
var errFull = errors.New("failed to extract layer: write /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs: no space left on device")

// certificateValidity is the lifetime of Talos' own certificates.
const certificateValidity = x509.DefaultCertificateValidityDuration

// awaitTime delays etcd and the kubelet until the clock is right, as their conditions do (services/etcd.go, kubelet.go
// in machined). Certificates are then renewed (controllers/secrets/api.go).
func (b *boot) awaitTime(ctx context.Context) (outcome, error) {
	for off := false; ; off = true {
		t, changed := b.m.trouble()
		switch {
		case t.Clock == 0 && off:
			b.stopAPI()
			b.secureAPI(ctx)
			return carryOn, nil
		case t.Clock == 0:
			return carryOn, nil
		}
		if err := b.stage(ctx, runtime.MachineStageBooting, false, "time: time is not synced", "services: kubelet not running"); err != nil {
			return carryOn, err
		}
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

// halt stops a machine whose boot medium finds Talos on a disk (haltIfInstalled in v1alpha1_sequencer_tasks.go): the
// machine only prints a message.
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

// silences are the requests that machines do not answer.
type silences struct {
	mu     sync.Mutex
	silent func(Request) bool // nil: everything is answered
}

// Silence makes machines accept each request that silent selects and never answer it, like
// a hanging machined, or a hanging kernel behind an open port. silent sees every request
// that this Firmware's machines get and allow; nil ends the silence for later requests.
func (fw *Firmware) Silence(silent func(Request) bool) {
	holding(&fw.silences.mu, func() { fw.silences.silent = silent })
}

func (m *machine) silent(method, resource string) bool {
	if m.astray.Load() {
		return true
	}
	m.fw.silences.mu.Lock()
	defer m.fw.silences.mu.Unlock()
	return m.fw.silences.silent != nil && m.fw.silences.silent(Request{m.hw.VMID, method, resource})
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

// Accept implements net.Listener.
func (l *muteListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || !l.m.silent("", "") {
			return conn, err
		}
		holding(&l.mu, func() { l.kept = append(l.kept, conn) })
	}
}

// Close implements net.Listener.
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
