// Package sim is the lab: one simulated datacentre with a Talos cluster in it,
// behind the real wire protocols of Proxmox VE, Talos, Kubernetes, the Image
// Factory and OCI registries, so that real clients work with it unmodified.
package sim

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Options shape a lab.
type Options struct {
	Network       *network.Network
	Prefix        string         // first three bytes of the addresses: "127.42.7"; those of many workers go on in the networks after it
	Registry      string         // where the OCI registry listens: "127.0.0.1:5000"
	Factory       string         // where the Image Factory listens: "127.0.0.1:8080"
	ControlPlanes int            // 0 means 1
	Workers       int            // 0 means 2, None none
	Hosts         int            // Proxmox nodes; 0 means 1
	Speed         float64        // how many simulated seconds pass in one; 0 means 1
	Times         talosapi.Times // what the machines take for their work
	EtcdOnData    bool           // control planes have EPHEMERAL, and etcd's data with it, on a persistent disk
	Holder        bool           // persistent disks belong to data VMs, one per host
	SharedDisks   bool           // DiskStorage is shared by all hosts
	DiskBus       string         // what the nodes' disks are on: "scsi", "virtio", "sata" or "ide"; "" means "scsi"
	DiskType      string         // of DiskStorage: "dir", "lvmthin", "zfspool" …; "" means "dir"
	DiskCapacity  int64          // of DiskStorage, in bytes, of each host unless it is shared; 0 means 1 TiB
	Layouts       []Layout       // of the nodes' disks, one after the other and then again from the first; nil: all alike, by the options above
	VMs           map[string]VM  // of nodes, by name, that are not of the lab's own kind
	Platform      string         // of the images; "" means nocloud
	KernelArgs    []string       // of all schematics
	TalosVersion  string         // what the machines run at first; "" means TalosVersion
	NextTalos     string         // another version that there are images of; "": none
	// KubernetesVersion is what the configuration of the machines names at first; "" means KubernetesVersion.
	KubernetesVersion string
	// NoDHCP leaves out the DHCP server: the lab's own machines have their address in
	// their configuration, and the others see to it themselves.
	NoDHCP bool
	// Talos is the cluster whose secrets the machines have, from another lab with
	// the same prefix; nil makes new ones.
	Talos *talosapi.Cluster
	// Kubernetes is the kubeconfig of a real control plane that has the cluster's
	// objects instead of the lab; nil: none.
	Kubernetes []byte
	// Before is called before the first VM is made; nil: nothing is.
	Before func(*world.World) error
	// Latency is how much later each answer of a server arrives, in real time.
	Latency time.Duration
	// Console gets what machines print on their screens; nil drops it.
	Console io.Writer
}

// Layout is what disks a node has.
type Layout struct {
	Bus  string // "" means Options.DiskBus
	Data int    // persistent disks of a worker
	// Filesystem of the first persistent disk, as blkid calls it; "" means "xfs".
	Filesystem string
	// SeaBIOS is firmware without UEFI.
	SeaBIOS bool
	// NoSerials leaves serial= out of its drives, as Proxmox' own dialogue and most Terraform modules do.
	NoSerials bool
	SCSI      string // scsihw; "" means "virtio-scsi-single"
}

const (
	// TalosVersion and KubernetesVersion are what a new lab runs.
	TalosVersion      = "v1.13.9"
	KubernetesVersion = "v1.35.4"

	// None is no workers at all.
	None = -1

	// ClusterName is the name of the lab's Talos cluster.
	ClusterName = "lab"

	// ISOStorage is shared by all hosts; DiskStorage is one per host, unless SharedDisks.
	ISOStorage  = "isos"
	DiskStorage = "fast"

	proxmoxPort    = "8006"
	kubernetesPort = "6443"
)

func (o Options) withDefaults() Options {
	o.ControlPlanes = cmp.Or(o.ControlPlanes, 1)
	o.Workers = max(cmp.Or(o.Workers, 2), 0)
	o.Hosts = cmp.Or(o.Hosts, 1)
	o.Speed = cmp.Or(o.Speed, 1)
	o.DiskBus = cmp.Or(o.DiskBus, "scsi")
	o.DiskType = cmp.Or(o.DiskType, "dir")
	o.Platform = cmp.Or(o.Platform, "nocloud")
	o.TalosVersion = cmp.Or(o.TalosVersion, TalosVersion)
	o.KubernetesVersion = cmp.Or(o.KubernetesVersion, KubernetesVersion)
	return o
}

// The numbers of addresses, by what is behind them.
const (
	firstHost         = 1
	kubernetesNumber  = 10
	firstControlPlane = 11
	controlNumber     = 30
	firstWorker       = 31
	maxHosts          = 9
	maxControlPlanes  = 19
	maxWorkers        = 1000
)

func (o Options) check() error {
	switch {
	case o.Hosts > maxHosts:
		return fmt.Errorf("a lab has at most %d Proxmox nodes", maxHosts)
	case o.ControlPlanes > maxControlPlanes:
		return fmt.Errorf("a lab has at most %d control planes", maxControlPlanes)
	case o.Workers > maxWorkers:
		return fmt.Errorf("a lab has at most %d workers", maxWorkers)
	}
	for node, v := range o.VMs {
		if err := v.check(node); err != nil {
			return err
		}
	}
	first, err := netip.ParseAddr(o.Prefix + ".0")
	if err != nil {
		return fmt.Errorf("prefix %q: %w", o.Prefix, err)
	}
	if last := o.last(); !netip.PrefixFrom(first, o.networkBits()).Masked().Contains(o.addr(last)) {
		return fmt.Errorf("prefix %q: a lab of that size needs %d networks from there on", o.Prefix, last>>8+1)
	}
	return CheckKubernetes(o.TalosVersion, o.KubernetesVersion)
}

// talosVersions are those that the lab has extensions of.
func (o Options) talosVersions() []string {
	versions := slices.Compact([]string{o.TalosVersion, TalosVersion})
	if o.NextTalos != "" {
		versions = append(versions, o.NextTalos)
	}
	return versions
}

// addr is the address with that number, counted from the prefix.
func (o Options) addr(n int) netip.Addr {
	b := netip.MustParseAddr(o.Prefix + ".0").As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// at is a port of that address.
func (o Options) at(n int, port string) string { return net.JoinHostPort(o.addr(n).String(), port) }

// last is the number of the last address.
func (o Options) last() int { return firstWorker + o.Workers - 1 }

// networkBits are those of the one network that all addresses are in.
func (o Options) networkBits() int {
	if o.last() < 255 { // which would be the broadcast address
		return 24
	}
	return 16
}
