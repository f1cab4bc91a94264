package pipeline

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/access"
)

func (d *checkup) needsToRehearse() access.Needs {
	return d.survey.NeedsToRehearse(d.wanted, d.res.Nodes, d.RehearsalOn())
}

// rehearsing is the option roll --rehearse, if it needs more privileges than a roll.
func (d *checkup) rehearsing(ctx context.Context, needs access.Needs) []access.Option {
	more := d.needsToRehearse()
	missing, err := needs.With(more).Missing(ctx, d.src.Proxmox)
	if err != nil || len(missing.Of(more).Lacks) == len(missing.Of(needs).Of(more).Lacks) {
		return nil // reported already
	}
	return []access.Option{{Name: "rehearse", Without: "recast roll --rehearse is refused", Needs: more}}
}

// agents warns if scratch VMs could be found only by their guest agent, and the token may
// not use it.
func (d *checkup) agents(ctx context.Context) {
	if len(d.Config.Roll.Rehearse.Addresses) > 0 {
		return
	}
	missing, err := access.MayAskAgents(ctx, d.src.Proxmox)
	if err != nil || missing == "" {
		return // what can't be read here can't be read below either
	}
	d.warn(GroupPrivileges, "guest agents", "grant "+missing+", or set roll.rehearse.addresses",
		"the token may not use them: what scratch VMs boot could not be checked")
}

// scratch warns about scratch VMs: those of a killed run may run for ever.
func (d *checkup) scratch() {
	for _, s := range cluster.ScratchVMs(d.survey.VMs, d.Config.Cluster) {
		d.warn(GroupProxmox, fmt.Sprintf("VM %d", s.VM.ID), "recast prune deletes it, once that run has ended",
			"%q on %s: run %s tests, or tested, a boot ISO on it", s.VM.Name, s.VM.Host, s.Run)
	}
}
