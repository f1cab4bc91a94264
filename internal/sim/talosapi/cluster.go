package talosapi

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	documents "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	netconf "github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Cluster is the secrets and common settings of one Talos cluster, as talosctl gen makes
// them.
type Cluster struct {
	Name              string
	Endpoint          string // of Kubernetes: "https://127.42.7.10:6443"
	TalosVersion      string // "v1.13.9"
	KubernetesVersion string // "v1.35.4"
	Secrets           *secrets.Bundle

	contract *config.VersionContract
}

// NewCluster makes the secrets of a new cluster, valid from now on.
func NewCluster(name, endpoint, talosVersion, kubernetesVersion string) (*Cluster, error) {
	contract, err := config.ParseContractFromVersion(talosVersion)
	if err != nil {
		return nil, fmt.Errorf("read Talos version: %w", err)
	}
	bundle, err := secrets.NewBundle(secrets.NewClock(), contract, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		return nil, fmt.Errorf("make cluster secrets: %w", err)
	}
	return &Cluster{
		Name: name, Endpoint: endpoint, TalosVersion: talosVersion, KubernetesVersion: kubernetesVersion,
		Secrets: bundle, contract: contract,
	}, nil
}

// Talosconfig makes a client configuration with a new certificate of that role.
func (c *Cluster) Talosconfig(r role.Role, endpoints ...string) ([]byte, error) {
	in, err := c.input(generate.WithRoles(role.MakeSet(r)), generate.WithEndpointList(endpoints))
	if err != nil {
		return nil, err
	}
	conf, err := in.Talosconfig()
	if err != nil {
		return nil, fmt.Errorf("make talosconfig: %w", err)
	}
	b, err := conf.Bytes()
	if err != nil {
		return nil, fmt.Errorf("write talosconfig: %w", err)
	}
	return b, nil
}

// Machine is the individual part of one machine's configuration.
type Machine struct {
	Hostname      string
	ControlPlane  bool
	Installer     string   // image reference
	InstallDisk   string   // empty: /dev/sda
	InstallSerial string   // serial of the install disk, preferred to InstallDisk unless the installation is unattended
	Documents     []string // additional configuration documents, as YAML: volumes and the like
}

// MachineConfig makes the machine's configuration.
func (c *Cluster) MachineConfig(m Machine) ([]byte, error) {
	in, err := c.input(generate.WithInstallDisk(cmp.Or(m.InstallDisk, "/dev/sda")), generate.WithInstallImage(m.Installer))
	if err != nil {
		return nil, err
	}
	kind := machineconf.TypeWorker
	if m.ControlPlane {
		kind = machineconf.TypeControlPlane
	}
	cfg, err := in.Config(kind)
	if err != nil {
		return nil, fmt.Errorf("make configuration of %s: %w", m.Hostname, err)
	}
	own, err := container.New(personal(cfg.Documents(), m)...)
	if err != nil {
		return nil, fmt.Errorf("make configuration of %s: %w", m.Hostname, err)
	}
	b, err := own.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fmt.Errorf("write configuration of %s: %w", m.Hostname, err)
	}
	for _, d := range m.Documents {
		b = append(append(b, "---\n"...), d...)
	}
	if _, err := parseConfig(b); err != nil {
		return nil, fmt.Errorf("read configuration of %s: %w", m.Hostname, err)
	}
	return b, nil
}

// personal sets the machine's own name and install disk in generated documents.
func personal(docs []documents.Document, m Machine) []documents.Document {
	var out []documents.Document
	for _, doc := range docs {
		switch d := doc.(type) {
		case *netconf.HostnameConfigV1Alpha1:
			d.ConfigAuto, d.ConfigHostname = new(nethelpers.AutoHostnameKindOff), m.Hostname
		case *v1alpha1.Config:
			//lint:ignore SA1019 Talos 1.13 reads it
			in := d.MachineConfig.MachineInstall
			if m.InstallSerial != "" && in != nil {
				in.InstallDisk, in.InstallDiskSelector = "", &v1alpha1.InstallDiskSelector{Serial: m.InstallSerial}
			}
		}
		out = append(out, doc)
	}
	return out
}

func (c *Cluster) input(more ...generate.Option) (*generate.Input, error) {
	in, err := generate.NewInput(c.Name, c.Endpoint, strings.TrimPrefix(c.KubernetesVersion, "v"), append([]generate.Option{
		generate.WithVersionContract(c.contract), generate.WithSecretsBundle(c.Secrets), generate.WithClusterDiscovery(true),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("prepare configuration: %w", err)
	}
	return in, nil
}

// Preinstalled is the content of a system disk on which an installer with that boot image has
// installed Talos with that machine configuration. It includes EPHEMERAL unless elsewhere says
// that another disk has it, or will.
func (fw *Firmware) Preinstalled(machineConfig, uki []byte, elsewhere bool) ([]byte, error) {
	if _, err := parseConfig(machineConfig); err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return nil, err
	}
	sum, err := fw.boots.keep(uki)
	if err != nil {
		return nil, err
	}
	disk, err := systemPartitions(img.TalosVersion, sum, "", stateData{Config: machineConfig, NodeID: newNodeID()})
	if err != nil {
		return nil, err
	}
	if !elsewhere {
		disk.Partitions = append(disk.Partitions, newPartition(labelEphemeral, "xfs", nil))
	}
	return artefact.WriteDisk(disk), nil
}

// DataDisk is the content of a disk with one xfs volume of that partition label
// ("EPHEMERAL", or "u-" and the name of a user volume) and that data.
func DataDisk(label string, data []byte) []byte { return DataDiskOf(label, "xfs", data) }

// DataDiskOf is DataDisk with another filesystem, as blkid calls it: "btrfs",
// "linux_raid_member".
func DataDiskOf(label, filesystem string, data []byte) []byte {
	return artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{newPartition(label, filesystem, data)}})
}
