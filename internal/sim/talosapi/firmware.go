// Package talosapi runs simulated Talos machines: a [Firmware] boots the content of a
// VM's media, and the machine serves the Talos API in maintenance mode or on a configured
// node, installs, reboots and shuts down like the real system.
package talosapi

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

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

// apiPort is apid's.
const apiPort = 50000

// Kubelet gets the starts and ends of nodes' kubelets. Its methods must not block.
type Kubelet interface {
	NodeUp(NodeInfo)
	NodeDown(name, uuid string)
	// StaticPods gets the state of the static pods of the kubelet of the machine with that
	// UUID.
	StaticPods(uuid string, pods []StaticPod)
}

// Data is the content of etcd for the control planes' API servers.
type Data interface {
	// Revision counts the writes so far.
	Revision() uint64
	Dump(ctx context.Context) ([]etcd.KeyValue, error)
	// Load replaces all of it.
	Load(ctx context.Context, data []etcd.KeyValue) error
	// Renew makes it the content of a new cluster, to which Talos has applied these objects.
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
	// Drain cordons a node in Talos' name and drains it; Uncordon removes that cordon. They
	// may block; nil does nothing.
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
	defects  defects
	troubles troubles
	silences silences
	systems  systems

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
		life:     func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		boots:    bootImages{held: map[string]*world.Media{}},
		images:   imageStore{volumes: map[string]map[imageName]cachedImage{}},
		defects:  defects{what: map[string]Defect{}},
		systems:  systems{up: map[int]*boot{}},
		troubles: troubles{what: map[int]Trouble{}, changed: make(chan struct{})},
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

// scaled is the real duration of d in this lab.
func (fw *Firmware) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / fw.o.Speed)
}

// sleep waits for a simulated duration and says whether ctx is still alive.
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

// spend is sleep for the machine's own work, which the world's timeline records.
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
