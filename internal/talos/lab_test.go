package talos_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/talos"
)

const (
	workerUUID = "5ec0ffee-0000-4000-8000-00000000901f"
	cpUUID     = "5ec0ffee-0000-4000-8000-00000000900b"
	installer  = "registry.example/installer@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	version    = "v1.13.9"

	nextInstaller = "registry.example/installer@sha256:0000000000000000000000000000000000000000000000000000000000000002"
)

var (
	cpAddr     = netip.MustParseAddr("127.42.7.11")
	workerAddr = netip.MustParseAddr("127.42.7.31")
)

// lab is a running control plane, and what is needed to power machines on.
type lab struct {
	t       *testing.T
	net     *network.Network
	rec     *record.Recorder
	fw      *talosapi.Firmware
	cluster *talosapi.Cluster
	boots   artefact.Image // what is on the ISO of a machine that is switched on
}

func newLab(t *testing.T) *lab {
	t.Helper()
	c, err := talosapi.NewCluster("lab", "https://127.42.7.10:6443", version, "v1.35.4")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, net: network.Memory(), rec: record.New(), cluster: c, boots: image()}
	l.fw = talosapi.New(t.Context(), talosapi.Options{
		Network: l.net, Recorder: l.rec,
		Lease: func(mac string) (netip.Addr, bool) {
			addr, ok := map[string]netip.Addr{"0B": cpAddr, "1F": workerAddr}[mac]
			return addr, ok
		},
		PullInstaller: func(_ context.Context, ref, _ string) ([]byte, error) {
			img := image()
			switch ref {
			case installer:
			case nextInstaller:
				img.SchematicID = "beef"
			default:
				return nil, talosapi.ErrNoImage
			}
			return artefact.UKI(img)
		},
	})
	conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: installer, InstallSerial: "sys-cp1"})
	l.power("0B", cpUUID, drive("virtio0", "sys-cp1", 10, l.installed(conf)))
	return l
}

func image() artefact.Image {
	return artefact.Image{
		TalosVersion: version, Arch: "amd64", Platform: "nocloud", Cmdline: "talos.platform=nocloud",
		SchematicID: "cafe", SchematicYAML: "customization:\n    extraKernelArgs:\n        - recast.lock=sha256-1\n", SchematicAuthor: "Image Factory (http://127.0.0.1:8080)",
		Extensions: []artefact.Extension{
			{Name: "qemu-guest-agent", Version: "10.0.2"}, {Name: "modules.dep", Version: "6.18.0-talos"}, {Name: "iscsi-tools", Version: "v0.2.0"},
		},
	}
}

func drive(key, serial string, gib int64, content []byte) world.Drive {
	return world.Drive{Key: key, Serial: serial, SizeBytes: gib << 30, Media: world.NewMedia(content)}
}

// power switches a machine on until the test ends; off switches it off earlier.
func (l *lab) power(mac, uuid string, drives ...world.Drive) (off func()) {
	l.t.Helper()
	iso, err := artefact.ISO(l.boots)
	if err != nil {
		l.t.Fatal(err)
	}
	drives = append(drives, world.Drive{Key: "ide2", CDROM: true, SizeBytes: int64(len(iso)), Media: world.NewMedia(iso)})
	guest := l.fw.PowerOn(&world.Hardware{
		VMID: 9000, Name: mac, Host: "pve1", UUID: uuid, MACs: []string{mac}, Arch: "amd64", Memory: 4096, BootOrder: []string{"virtio0", "ide2"}, NVRAM: world.NewMedia(talosapi.NVRAM(image())),
		Drives: func() []world.Drive { return slices.Clone(drives) }, PowerOff: func() {},
	})
	off = sync.OnceFunc(guest.Kill)
	l.t.Cleanup(off)
	return off
}

func (l *lab) config(m talosapi.Machine) []byte {
	l.t.Helper()
	m.InstallDisk = "/dev/vda"
	b, err := l.cluster.MachineConfig(m)
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

// installed is the system disk of cp1, the only member of etcd.
func (l *lab) installed(config []byte) []byte {
	l.t.Helper()
	uki, err := artefact.UKI(image())
	if err != nil {
		l.t.Fatal(err)
	}
	b, err := l.fw.Preinstalled(config, uki, false)
	if err != nil {
		l.t.Fatal(err)
	}
	member := l.fw.FormEtcd(l.cluster, talosapi.EtcdPeer{Name: "cp1", Addr: cpAddr})[0]
	b, err = talosapi.WithEtcd(b, member)
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

// client has a certificate of that role.
func (l *lab) client(r role.Role) *talos.Client {
	l.t.Helper()
	raw, err := l.cluster.Talosconfig(r, cpAddr.String())
	if err != nil {
		l.t.Fatal(err)
	}
	return l.clientWith(talos.Options{Talosconfig: raw})
}

func (l *lab) clientWith(o talos.Options) *talos.Client {
	l.t.Helper()
	if o.Dial == nil {
		o.Dial = l.net.Dialer().DialContext
	}
	c, err := talos.New(o)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// await asks every second for at most five minutes.
func await[T any](t *testing.T, ask func() (T, error), good func(T) bool) T {
	t.Helper()
	var last string
	for range 300 {
		v, err := ask()
		if err == nil && good(v) {
			return v
		}
		last = fmt.Sprintf("%v, %v", v, err)
		time.Sleep(time.Second)
	}
	t.Fatal("gave up; last seen: " + last)
	panic("unreachable")
}

func (l *lab) running(c *talos.Client, addr netip.Addr) cluster.Machine {
	l.t.Helper()
	return await(l.t, func() (cluster.Machine, error) { return cluster.ReadMachine(l.t.Context(), c, addr) },
		func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready })
}

func (l *lab) maintenance(c *talos.Client, addr netip.Addr) cluster.BlankMachine {
	l.t.Helper()
	return await(l.t, func() (cluster.BlankMachine, error) { return c.MaintenanceMachine(l.t.Context(), addr) },
		func(m cluster.BlankMachine) bool { return m.Stage == "maintenance" && m.Ready })
}
