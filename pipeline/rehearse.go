package pipeline

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
)

// rehearsal says how boot ISOs are tested before the first node; nil: they are not. asked
// is the command-line option, nil: use the configuration.
func (p Project) rehearsal(asked *bool) *cluster.Rehearsal {
	on := p.Config.Roll.Rehearse.Enabled
	if asked != nil {
		on = *asked
	}
	if !on {
		return nil
	}
	return new(p.rehearsalOn())
}

// rehearsal is the rehearsal of this run: a saved plan decides unless the option is given.
func (w *work) rehearsal() *cluster.Rehearsal {
	asked := w.o.Rehearse
	if asked == nil && w.o.Saved != nil {
		asked = new(len(w.o.Saved.Trials) > 0)
	}
	return w.Project.rehearsal(asked)
}

// rehearsalOn returns how scratch VMs are reached.
func (p Project) rehearsalOn() cluster.Rehearsal {
	var r cluster.Rehearsal
	for _, a := range p.Config.Roll.Rehearse.Addresses {
		if prefix, err := netip.ParsePrefix(a); err == nil { // the configuration was checked
			r.Addresses = append(r.Addresses, prefix)
		}
	}
	r.Gateway, _ = netip.ParseAddr(p.Config.Roll.Rehearse.Gateway) // the same
	return r
}

// needs returns the privileges that the plan's work needs.
func (w *work) needs(inLease bool) cluster.Needs {
	return cluster.NeedsOf(w.rep.Plan, inLease).With(cluster.NeedsToRehearse(w.rep.Plan))
}

func (d *checkup) needsToRehearse() cluster.Needs {
	return d.survey.NeedsToRehearse(d.wanted, d.res.Nodes, d.rehearsalOn())
}

// rehearsing is the option roll --rehearse, if it needs more privileges than a roll.
func (d *checkup) rehearsing(ctx context.Context, needs cluster.Needs) []cluster.Option {
	more := d.needsToRehearse()
	missing, err := needs.With(more).Missing(ctx, d.src.Proxmox)
	if err != nil || len(missing.Of(more).Lacks) == len(missing.Of(needs).Of(more).Lacks) {
		return nil // reported already
	}
	return []cluster.Option{{Name: "rehearse", Without: "recast roll --rehearse is refused", Needs: more}}
}

// agents warns if scratch VMs could be found only by their guest agent, and the token may
// not use it.
func (d *checkup) agents(ctx context.Context) {
	if len(d.Config.Roll.Rehearse.Addresses) > 0 {
		return
	}
	missing, err := cluster.MayAskAgents(ctx, d.src.Proxmox)
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

// Left is a scratch VM, useless after its run has ended.
type Left struct {
	VMID cluster.VMID `json:"vmid"`
	Name string       `json:"name"`
	Host string       `json:"host"`
	Run  string       `json:"run"`
	Next []Advice     `json:"next"`
}

func scratchLeft(vms []cluster.VM, name string) []Left {
	var out []Left
	for _, s := range cluster.ScratchVMs(vms, name) {
		out = append(out, Left{
			VMID: s.VM.ID, Name: s.VM.Name, Host: s.VM.Host, Run: s.Run,
			Next: []Advice{{"recast prune", "deletes it, once that run has ended"}, {"recast roll", "does so first, if it has anything to do"}},
		})
	}
	return out
}
