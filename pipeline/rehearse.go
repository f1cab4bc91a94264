package pipeline

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
)

// rehearsal says how boot ISOs are tried out before the first node goes; nil: they
// are not. asked is the command line's, nil: the configuration's.
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

// rehearsal is that of this run: a saved plan has shown what is tried out.
func (w *work) rehearsal() *cluster.Rehearsal {
	asked := w.o.Rehearse
	if asked == nil && w.o.Saved != nil {
		asked = new(len(w.o.Saved.Trials) > 0)
	}
	return w.Project.rehearsal(asked)
}

// rehearsalOn is how scratch VMs are reached.
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

// needs is what the plan's work takes of the token.
func (w *work) needs(inLease bool) cluster.Needs {
	return cluster.NeedsOf(w.rep.Plan, inLease).With(cluster.NeedsToRehearse(w.rep.Plan))
}

func (d *checkup) needsToRehearse() cluster.Needs {
	return d.survey.NeedsToRehearse(d.wanted, d.res.Nodes, d.rehearsalOn())
}

// rehearsing is the option of roll --rehearse, where it takes more than a roll.
func (d *checkup) rehearsing(ctx context.Context, needs cluster.Needs) []cluster.Option {
	more := d.needsToRehearse()
	missing, err := needs.With(more).Missing(ctx, d.src.Proxmox)
	if err != nil || len(missing.Of(more).Lacks) == len(missing.Of(needs).Of(more).Lacks) {
		return nil // what could not be read is told already
	}
	return []cluster.Option{{Name: "rehearse", Without: "recast roll --rehearse is refused", Needs: more}}
}

// agents warns where scratch VMs could be found by their guest agent alone, and it
// may not be asked.
func (d *checkup) agents(ctx context.Context) {
	if len(d.Config.Roll.Rehearse.Addresses) > 0 {
		return
	}
	missing, err := cluster.MayAskAgents(ctx, d.src.Proxmox)
	if err != nil || missing == "" {
		return // what can't be read here can't be read below either
	}
	d.warn(GroupPrivileges, "guest agents", "grant "+missing+", or set roll.rehearse.addresses",
		"the token may not ask them: what scratch VMs boot would not be seen")
}

// scratch names scratch VMs: those of a killed run may run for ever.
func (d *checkup) scratch() {
	for _, s := range cluster.ScratchVMs(d.survey.VMs, d.Config.Cluster) {
		d.warn(GroupProxmox, fmt.Sprintf("VM %d", s.VM.ID), "recast prune deletes it, once that run has ended",
			"%q on %s: run %s tries, or tried, a boot ISO out on it", s.VM.Name, s.VM.Host, s.Run)
	}
}

// Left is a scratch VM, of no worth once its run has ended.
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
			Next: []Advice{{"recast prune", "deletes it, once that run has ended"}, {"recast roll", "does so before anything else, where it has anything to do"}},
		})
	}
	return out
}
