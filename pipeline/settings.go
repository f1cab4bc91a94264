package pipeline

import (
	"net/netip"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/config"
)

// Policy merges the command-line options with the configuration.
func (p Project) Policy(asked planning.Policy) planning.Policy {
	r := p.Config.Roll
	asked.WorkersFirst, asked.Canary, asked.CanaryNode = r.Order == "workers-first", r.Canary.On, r.Canary.Node
	asked.MaxUnavailable, asked.PerHost = r.MaxUnavailable.Workers.Of, r.MaxUnavailable.PerHost
	asked.Surge = r.Surge.Of
	asked.WorkersBeside, asked.KeepDisks = r.WorkersBeside, r.KeepDisks
	asked.IgnoreNodes = r.IgnoreNodes
	asked.BootFailure = cluster.BootFailure(r.BootFailure)
	asked.Reboot = cluster.Reboot(r.Reboot)
	asked.DrainDeletes = r.Drain.OnTimeout == "delete"
	return asked
}

// Gates returns the user's gates in the order of the configuration.
func (p Project) Gates() []cluster.UserGate {
	var out []cluster.UserGate
	for _, g := range p.Config.Roll.Gates {
		out = append(out, gate(p.Config, g))
	}
	return out
}

func gate(c *config.Config, g config.Gate) cluster.UserGate {
	out := cluster.UserGate{
		Description: g.Description, BeforeOnly: g.When == "before",
		TimeoutSeconds: max(1, int(time.Duration(g.Timeout).Seconds())),
	}
	if len(g.Command) > 0 {
		out.Command = &cluster.CommandGate{Args: g.Command, Dir: c.Dir, Env: g.Env}
		return out
	}
	out.Objects = &cluster.ObjectGate{
		APIVersion: g.APIVersion, Kind: g.Kind, Namespace: g.Namespace, Name: g.Name,
		Labels: g.LabelSelector.String(), Expr: g.Expr, Optional: g.Optional,
	}
	return out
}

// Hooks returns the user's hooks in the order of the configuration.
func (p Project) Hooks() cluster.Hooks {
	list := func(in []config.Hook) []cluster.Hook {
		var out []cluster.Hook
		for _, h := range in {
			out = append(out, cluster.Hook{
				Description: h.Description, TimeoutSeconds: max(1, int(time.Duration(h.Timeout).Seconds())),
				Command: cluster.CommandGate{Args: h.Command, Dir: p.Config.Dir, Env: h.Env},
			})
		}
		return out
	}
	h := p.Config.Roll.Hooks
	return cluster.Hooks{
		BeforeRun: list(h.BeforeRun), AfterRun: list(h.AfterRun), BeforeBatch: list(h.BeforeBatch), AfterBatch: list(h.AfterBatch),
		BeforeNode: list(h.BeforeNode), AfterNode: list(h.AfterNode),
	}
}

func timing(c *config.Config) cluster.Timing {
	r := c.Roll
	return cluster.Timing{
		Poll: time.Duration(r.Poll), Settle: time.Duration(r.Settle), Stop: time.Duration(r.Timeouts.Stop),
		Boot: time.Duration(r.Timeouts.Boot), Join: time.Duration(r.Timeouts.Join), Try: time.Duration(r.Timeouts.Try), Drain: time.Duration(r.Drain.Timeout), Heal: time.Duration(r.Timeouts.Storage),
	}
}

// ByImager says whether the imager, not a factory, builds a schematic.
func (p Project) ByImager(schematic string) bool {
	return p.Config.Images.BuilderOf(p.Config.Schematics[schematic]) == config.BuilderImager
}

// RehearsalOn returns how scratch VMs are reached.
func (p Project) RehearsalOn() planning.Rehearsal {
	var r planning.Rehearsal
	for _, a := range p.Config.Roll.Rehearse.Addresses {
		if prefix, err := netip.ParsePrefix(a); err == nil { // the configuration was checked
			r.Addresses = append(r.Addresses, prefix)
		}
	}
	r.Gateway, _ = netip.ParseAddr(p.Config.Roll.Rehearse.Gateway) // the same
	return r
}

func nodeNames(c *config.Config) []string {
	var names []string
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// VMIDs is the range for recast's own VMs.
func (p Project) VMIDs() cluster.VMIDRange {
	r := p.Config.Proxmox.VMIDs
	return cluster.VMIDRange{First: cluster.VMID(r.First), Last: cluster.VMID(r.Last)}
}

// NodeVMs are the known VMIDs of the nodes, sorted: those in the configuration and those
// of a plan.
func (p Project) NodeVMs(plan planning.Plan) []cluster.VMID {
	var ids []cluster.VMID
	for _, n := range p.Config.Nodes {
		ids = append(ids, cluster.VMID(n.VMID))
	}
	for _, n := range plan.Nodes {
		ids = append(ids, n.VMID)
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id cluster.VMID) bool { return id == 0 })
}

// ClaimID is the VMID of the claim: the first of the range.
func (p Project) ClaimID() cluster.VMID {
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		return cluster.VMID(vmid)
	}
	return 0 // an empty range is refused when the configuration is read
}

// parkingIDs returns the VMIDs for parking VMs, lowest first: the range without the
// claim's and without those that others are known to use.
func parkingIDs(p Project) []cluster.VMID {
	var ids []cluster.VMID
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		id := cluster.VMID(vmid)
		known := slices.ContainsFunc(p.Config.Nodes, func(n config.Node) bool { return n.VMID == vmid || n.Holder == vmid })
		if !known && id != p.ClaimID() {
			ids = append(ids, id)
		}
	}
	return ids
}
