package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// PublishSources are the clients for Publish: to find the hosts that need an ISO, and to store it.
type PublishSources struct {
	Proxmox interface {
		cluster.Access
		cluster.Inventory
		images.Store
	}
	// Nodes lists the Node objects. It is called only if a node has no VMID.
	Nodes func(ctx context.Context) ([]cluster.KubeNode, error)
}

// Publish mirrors the installers, if a mirror is configured, and copies the boot ISOs to
// every storage that the nodes' hosts need. It first builds what is not built yet.
func Publish(ctx context.Context, p Project, c Images, src PublishSources, run *step.Runner) (schematics.Lock, error) {
	lock, err := p.Lock()
	if err != nil {
		return schematics.Lock{}, err
	}
	// Proxmox receives a whole upload before it reports that it is not allowed.
	if err := survey.NeedsToPublish(p.Config.Images.ISO.Storage, p.Config.Images.Disk.Storage).Check(ctx, src.Proxmox); err != nil {
		return schematics.Lock{}, err
	}
	hosts, err := isoHosts(ctx, p, src)
	if err != nil {
		return schematics.Lock{}, err
	}
	return newWorkshop(p, lock, c, run).publish(ctx, src.Proxmox, hosts)
}

// isoHosts returns for each schematic the Proxmox nodes that have VMs with it. A VM that
// can't be read because its host is down gets no ISO.
func isoHosts(ctx context.Context, p Project, src PublishSources) (map[string][]string, error) {
	uuids, err := nodeUUIDs(ctx, p, src)
	if err != nil {
		return nil, err
	}
	vms, err := src.Proxmox.VMs(ctx)
	_, away := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !away {
		return nil, fmt.Errorf("read Proxmox: %w", err)
	}
	parked, err := parking.Parkings(vms, p.Config.Cluster)
	if err != nil {
		return nil, err
	}
	hosts := map[string][]string{}
	var problems []error
	for _, n := range p.Config.Nodes {
		vm := slices.IndexFunc(vms, func(vm cluster.VM) bool {
			return n.VMID != 0 && vm.ID == cluster.VMID(n.VMID) || n.VMID == 0 && uuids[n.Name] != "" && vm.UUID() == uuids[n.Name]
		})
		// An unfinished replacement may have deleted the VM. It will be created on the same host again.
		open := slices.IndexFunc(parked, func(k parking.Parking) bool { return k.Record.Open && k.Record.Node == n.Name })
		switch {
		case open >= 0:
			hosts[n.Schematic] = append(hosts[n.Schematic], parked[open].VM.Host)
		case vm >= 0:
			hosts[n.Schematic] = append(hosts[n.Schematic], vms[vm].Host)
		case n.Host != "": // it is to be made there
			hosts[n.Schematic] = append(hosts[n.Schematic], n.Host)
		case !away:
			problems = append(problems, noVM(n, uuids[n.Name]))
		}
	}
	return hosts, errors.Join(problems...)
}

// nodeUUIDs returns the UUIDs of the nodes' VMs from Kubernetes; none if every node has a VMID or a host.
func nodeUUIDs(ctx context.Context, p Project, src PublishSources) (map[string]string, error) {
	if !slices.ContainsFunc(p.Config.Nodes, func(n config.Node) bool { return n.VMID == 0 && n.Host == "" }) {
		return nil, nil
	}
	nodes, err := src.Nodes(ctx)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("find the VMs of nodes without a VMID: %w", err), "or set the vmid of every node in recast.yaml: then Kubernetes is not needed")
	}
	uuids := map[string]string{}
	for _, n := range nodes {
		uuids[n.Name] = n.UUID
	}
	return uuids, nil
}

func noVM(n config.Node, uuid string) error {
	what := fmt.Sprintf("Proxmox shows no VM %d", n.VMID)
	switch {
	case n.VMID == 0 && uuid == "":
		what = "Kubernetes has no node of that name"
	case n.VMID == 0:
		what = "Proxmox shows no VM with its SMBIOS UUID " + uuid
	}
	return fault.WithHint(fault.Configf("node %s: %s", n.Name, what),
		"nodes[].name is the Kubernetes node name, nodes[].vmid the number of its VM; the token needs VM.Audit to see VMs")
}
