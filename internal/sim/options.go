// Package sim is the lab: one simulated datacentre with a Talos cluster in it,
// behind the real wire protocols of Proxmox VE, Talos, Kubernetes, the Image
// Factory and OCI registries, so that real clients work with it unmodified.
package sim

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// Options shape a lab.
type Options struct {
	Network       *network.Network
	Prefix        string  // first three bytes of every address: "127.42.7"
	Registry      string  // where the OCI registry listens: "127.0.0.1:5000"
	Factory       string  // where the Image Factory listens: "127.0.0.1:8080"
	ControlPlanes int     // 0 means 1
	Workers       int     // 0 means 2
	Hosts         int     // Proxmox nodes; 0 means 1
	Speed         float64 // how many simulated seconds pass in one; 0 means 1
	EtcdOnData    bool    // control planes have EPHEMERAL, and etcd's data with it, on a persistent disk
	Holder        bool    // persistent disks belong to data VMs, one per host
	SharedDisks   bool    // DiskStorage is shared by all hosts
	DiskBus       string  // what the nodes' disks are on: "scsi", "virtio", "sata" or "ide"; "" means "scsi"
	TalosVersion  string  // what the machines run at first; "" means TalosVersion
	NextTalos     string  // another version that there are images of; "": none
	// KubernetesVersion is what the configuration of the machines names at first; "" means KubernetesVersion.
	KubernetesVersion string
	// Talos is the cluster whose secrets the machines have, from another lab with
	// the same prefix; nil makes new ones.
	Talos *talosapi.Cluster
	// Kubernetes is the kubeconfig of a real control plane that has the cluster's
	// objects instead of the lab; nil: none.
	Kubernetes []byte
	// Console gets what machines print on their screens; nil drops it.
	Console io.Writer
}

const (
	// TalosVersion and KubernetesVersion are what a new lab runs.
	TalosVersion      = "v1.13.9"
	KubernetesVersion = "v1.35.4"

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
	o.Workers = cmp.Or(o.Workers, 2)
	o.Hosts = cmp.Or(o.Hosts, 1)
	o.Speed = cmp.Or(o.Speed, 1)
	o.DiskBus = cmp.Or(o.DiskBus, "scsi")
	o.TalosVersion = cmp.Or(o.TalosVersion, TalosVersion)
	o.KubernetesVersion = cmp.Or(o.KubernetesVersion, KubernetesVersion)
	return o
}

// The last bytes of addresses, by what is behind them.
const (
	firstHost         = 1
	kubernetesByte    = 10
	firstControlPlane = 11
	firstWorker       = 31
	maxHosts          = 9
	maxControlPlanes  = 19
	maxWorkers        = 200
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
	if _, err := netip.ParseAddr(o.addr(firstHost)); err != nil {
		return fmt.Errorf("prefix %q: %w", o.Prefix, err)
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

func (o Options) addr(last int) string { return fmt.Sprintf("%s.%d", o.Prefix, last) }
