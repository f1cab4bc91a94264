// Package talosapi runs simulated Talos machines: it boots the bytes on a VM's
// media, serves the Talos API of maintenance mode or of a configured node, and
// installs, reboots and shuts down as the real system does.
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

// Times are how long things take at speed 1; 0 means as long as by default.
type Times struct {
	Boot     time.Duration // kernel and early userland, after firmware or kexec; 10 s
	Firmware time.Duration // power on to kernel; 5 s
	Pull     time.Duration // fetching the installer; 8 s
	Copy     time.Duration // writing the boot image; 12 s
	Services time.Duration // API up until all services run; 5 s
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
	switchTime   = time.Second // each half of the change from maintenance to configured, at speed 1
	affiliateTTL = 30 * time.Minute
)

// apiPort is apid's.
const apiPort = 50000

// Kubelet is told when a node's kubelet starts and when it is gone. Its methods must not block.
type Kubelet interface {
	NodeUp(NodeInfo)
	NodeDown(name, uuid string)
	// StaticPods says how those are that the kubelet of the machine with that UUID runs.
	StaticPods(uuid string, pods []StaticPod)
}

// Data is what the API servers of the control planes keep in etcd.
type Data interface {
	Dump(ctx context.Context) ([]etcd.KeyValue, error)
	// Load replaces all of it; nil is what the API servers of a new cluster begin with.
	Load(ctx context.Context, data []etcd.KeyValue) error
}

// NodeInfo is a node as its kubelet registers it.
type NodeInfo struct {
	Name           string
	UUID           string // SMBIOS, lower-case
	BootID         string
	Address        netip.Addr
	ControlPlane   bool
	TalosVersion   string
	KubeletVersion string // "v1.35.4"
	Labels         map[string]string
}

// Options connect the machines to their world.
type Options struct {
	Network  *network.Network
	Recorder *record.Recorder
	// Lease is the address that DHCP gives to a MAC (upper-case).
	Lease func(mac string) (netip.Addr, bool)
	// NetworkBits are those of the network that the leases are in; 0 means 24.
	NetworkBits int
	// Speed divides every simulated duration; 0 means 1.
	Speed float64
	Times Times
	// PullInstaller fetches the boot image that an installer image has for that
	// architecture. One that the registry does not have is ErrNoImage.
	PullInstaller func(ctx context.Context, ref, arch string) (uki []byte, err error)
	// PublicImage is the digest of an image in a registry that the world has and the
	// lab does not serve: Kubernetes' own. One that is not there is ErrNoImage; a
	// registry of the lab's is errors.ErrUnsupported. nil: containers run images
	// that nobody pulls.
	PublicImage func(ref string) (digest string, err error)
	// ResolveImage is the digest that a tag means now; nil if nobody needs it.
	ResolveImage func(ctx context.Context, ref string) (digest string, err error)
	// Drain makes a node unschedulable in Talos' name and empties it, and Uncordon
	// undoes the former where Talos did it. They may block; nil does nothing.
	Drain, Uncordon func(ctx context.Context, node string) error
	// Kubelet may be nil.
	Kubelet Kubelet
	// Data is what API servers keep in etcd; nil: nothing.
	Data Data
	// Console gets what a machine prints on its screen; may be nil.
	Console func(vmid int, line string)
	// BootLog lets a booted node append a line to the data of its EPHEMERAL partition.
	BootLog bool
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

// New makes firmware whose machines all end with ctx at the latest.
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
			hw.PowerOff() // the world answers with Kill, which has nothing left to wait for
		}
	}()
	return m
}

// scaled is how long d lasts for this lab.
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

// spend is sleep for what the machine itself is at, of which the world keeps account.
func (m *machine) spend(ctx context.Context, what string, d time.Duration) bool {
	defer m.account(what)()
	return m.fw.sleep(ctx, d)
}

// account begins a delay and returns what ends it.
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
