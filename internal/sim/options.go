// Package sim is the [Lab]: one simulated datacentre with a Talos cluster in it, behind
// the real wire protocols of Proxmox VE, Talos, Kubernetes, the Image Factory and OCI
// registries, so that real clients work with it unmodified.
package sim

import (
	"cmp"
	"encoding/binary"
	"errors"
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
	Network  *network.Network
	Prefix   string // first three bytes of the addresses: "127.42.7"; many workers use the networks after it too
	Registry string // where the OCI registry listens: "127.0.0.1:5000"
	Factory  string // where the Image Factory listens: "127.0.0.1:8080"
	// Empty leaves out all machines and VMs: a cluster is to be made there. ControlPlanes and
	// Workers have no effect.
	Empty         bool
	ControlPlanes int            // 0 means 1
	Workers       int            // 0 means 2, None none
	Hosts         int            // Proxmox nodes; 0 means 1
	Speed         float64        // simulated seconds per real second; 0 means 1
	Times         talosapi.Times // how long the machines' work takes
	EtcdOnData    bool           // control planes have EPHEMERAL, and so etcd's data, on a persistent disk
	EtcdVolume    bool           // with EtcdOnData, that disk has the volume ETCD, of Talos 1.14 and later, instead of EPHEMERAL
	Holder        bool           // persistent disks belong to data VMs, one per host
	SharedDisks   bool           // DiskStorage is shared by all hosts
	DiskBus       string         // of the nodes' disks: "scsi", "virtio", "sata" or "ide"; "" means "scsi"
	DiskType      string         // of DiskStorage: "dir", "lvmthin", "zfspool" …; "" means "dir"
	DiskCapacity  int64          // of DiskStorage, in bytes, per host unless shared; 0 means 1 TiB
	Layouts       []Layout       // of the nodes' disks, assigned round-robin; nil: all alike, from the options above
	VMs           map[string]VM  // replace the lab's own VMs, by node name
	Platform      string         // of the images; "" means nocloud
	KernelArgs    []string       // of all schematics
	TalosVersion  string         // of the machines at first; "" means TalosVersion
	NextTalos     string         // a second version with images; "": none
	// SignsInstallers: the Image Factory has keys for Secure Boot, and signs ordinary installers as well.
	SignsInstallers bool
	// KubernetesVersion is what the machine configurations name at first; "" means KubernetesVersion.
	KubernetesVersion string
	// NoDHCP leaves out the DHCP server: the lab's own machines have a static address, and
	// other machines need one too.
	NoDHCP bool
	// Talos holds the machines' cluster secrets, from another lab with the same prefix; nil
	// makes new ones.
	Talos *talosapi.Cluster
	// Kubernetes is the kubeconfig of a real control plane that stores the cluster's
	// objects; nil: the lab stores them.
	Kubernetes []byte
	// Before is called before the first VM is made; may be nil.
	Before func(*world.World) error
	// Latency delays each answer of a server, in real time.
	Latency time.Duration
	// Requests is how many requests and delays the Recorder keeps at least; 0 keeps all.
	Requests int
	// Console gets what machines print on their screens; nil drops it.
	Console io.Writer
}

// Layout is a node's disk layout.
type Layout struct {
	Bus  string // "" means Options.DiskBus
	Data int    // persistent disks of a worker
	// Filesystem of the first persistent disk, as blkid calls it; "" means "xfs".
	Filesystem string
	// SeaBIOS selects firmware without UEFI.
	SeaBIOS bool
	// NoSerials leaves serial= out of its drives, as Proxmox' own dialogue and most Terraform modules do.
	NoSerials bool
	SCSI      string // scsihw; "" means "virtio-scsi-single"
}

const (
	// TalosVersion and KubernetesVersion are what a new lab runs.
	TalosVersion      = "v1.13.9"
	KubernetesVersion = "v1.35.4"

	// None means no workers at all.
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
	if o.Empty {
		o.ControlPlanes, o.Workers = 0, 0
	}
	o.Hosts = cmp.Or(o.Hosts, 1)
	o.Speed = cmp.Or(o.Speed, 1)
	o.DiskBus = cmp.Or(o.DiskBus, "scsi")
	o.DiskType = cmp.Or(o.DiskType, "dir")
	o.Platform = cmp.Or(o.Platform, "nocloud")
	o.TalosVersion = cmp.Or(o.TalosVersion, TalosVersion)
	o.KubernetesVersion = cmp.Or(o.KubernetesVersion, KubernetesVersion)
	return o
}

// Address numbers by what they are assigned to.
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
	if o.Empty && o.Kubernetes != nil {
		return errors.New("an empty lab can't have a real control plane: it is not the lab's to make anew")
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

// talosVersions are those with extensions in the lab.
func (o Options) talosVersions() []string {
	versions := slices.Compact([]string{o.TalosVersion, TalosVersion})
	if o.NextTalos != "" {
		versions = append(versions, o.NextTalos)
	}
	return versions
}

// addr is address number n, counted from the prefix.
func (o Options) addr(n int) netip.Addr {
	b := netip.MustParseAddr(o.Prefix + ".0").As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// at is a port of address n.
func (o Options) at(n int, port string) string { return net.JoinHostPort(o.addr(n).String(), port) }

// last is the number of the last address.
func (o Options) last() int { return firstWorker + o.Workers - 1 }

// networkBits is the prefix length of the one network that holds all addresses.
func (o Options) networkBits() int {
	if o.last() < 255 { // 255 would be the broadcast address
		return 24
	}
	return 16
}
