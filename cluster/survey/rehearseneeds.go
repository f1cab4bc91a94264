package survey

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
)

// NeedsToRehearse is what the trials of a plan need for their scratch VMs. A roll by recreate
// also needs most of it.
func NeedsToRehearse(p planning.Plan) Needs {
	var needs Needs
	for _, t := range p.Trials {
		needs.add("/", "see the memory of the hosts", []spot{{path: "/nodes/" + t.Host}}, "Sys.Audit")
		needs.scratch(t)
	}
	return needs
}

// scratchPrivileges are those for creating a scratch VM with its settings, and for using and
// deleting it.
var scratchPrivileges = []string{
	"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

func (n *Needs) scratch(t planning.Trial) {
	const why = "try out on scratch VMs what nodes will boot"
	at := spot{path: "/vms", below: true}
	if pool := t.Model.Found.VM.Pool; pool != "" {
		at.or = "/pool/" + pool
	}
	n.add("/vms", why, []spot{at}, scratchPrivileges...)
	storages, config, err := roll.ScratchTakes(t)
	for _, storage := range storages {
		n.add("/storage/"+storage, "make the drives of scratch VMs", nil, "Datastore.AllocateSpace")
		n.add("/storage/"+storage, "see the room for them", nil, "Datastore.Audit")
	}
	images := t.Model.Wanted.ISOStorages
	if t.Disk != "" {
		images = t.Model.Wanted.DiskStorages
	}
	for _, storage := range images {
		n.add("/storage/"+storage, "give scratch VMs the image that they boot", nil, "Datastore.Audit")
	}
	if err != nil {
		return // such a node is refused
	}
	for _, key := range []string{"net0", "cpu"} {
		if v := config[key]; v != "" {
			n.config(map[string]string{key: v})
		}
	}
}

// agentPrivileges let a token query guest agents: the last one before Proxmox VE 9, which has
// none of the others.
var agentPrivileges = []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted", "VM.Monitor"}

// MayAskAgents says whether the token may query the guest agents of VMs that do not exist yet;
// missing is what it lacks, in words.
func MayAskAgents(ctx context.Context, access cluster.Access) (missing string, err error) {
	has, err := access.Permissions(ctx, "/vms")
	if err != nil {
		return "", err
	}
	for _, p := range agentPrivileges {
		if propagates := has[p]; propagates {
			return "", nil
		}
	}
	return fmt.Sprintf("%s on /vms (before Proxmox VE 9: %s)", agentPrivileges[0], agentPrivileges[len(agentPrivileges)-1]), nil
}
