package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// explainTimeout limits the check of what a failed roll has left: a user who pressed
// Ctrl-C twice is waiting.
const explainTimeout = 10 * time.Second

// explain adds to the error of a roll which of its nodes are still down, what finishes
// them, and where their disks are.
func (w *work) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if fault.KindOf(err) == fault.Claimed {
		return fault.WithSafe(err, "this run changes nothing any more; the other run finishes what is unfinished, and every disk stays where it is until then")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	l := w.leftBehind(ctx)
	err = fault.WithSafe(err, w.safe(ctx, l)...)
	if len(l.out) == 0 {
		return err
	}
	return fault.WithNext(err, "still unfinished, cordoned or down: %s. recast roll continues, recast status explains it", strings.Join(l.out, ", "))
}

// left is what a failed roll has left, as far as it can be read.
type left struct {
	vms    []cluster.VM
	away   *cluster.HostsAway
	unread error // why Proxmox could not be read
	open   []parking.Parking
	out    []string // the plan's nodes with an open record or our mark
}

func (w *work) leftBehind(ctx context.Context) left {
	var l left
	l.vms, l.away, l.unread = readable(ctx, w.Project, w.machines.Proxmox) // the error to explain may be that Proxmox does not answer
	parkings, err := parking.Parkings(l.vms, w.Config.Cluster)             // those that can be read
	l.unread = errors.Join(l.unread, err)
	nodes, _ := w.machines.Kube.Nodes(ctx) // with a single control plane the API may be down
	for _, n := range w.rep.Plan.Work() {
		i := slices.IndexFunc(parkings, func(p parking.Parking) bool { return p.Record.Node == n.Node && p.Record.Open })
		if i >= 0 {
			l.open = append(l.open, parkings[i])
		}
		if i >= 0 || slices.ContainsFunc(nodes, func(k cluster.KubeNode) bool { return k.Name == n.Node && k.Mark != nil }) {
			l.out = append(l.out, n.Node)
		}
	}
	return l
}

// safe says where the disks of each unfinished node are, and that the others have theirs.
func (w *work) safe(ctx context.Context, l left) []string {
	if l.unread != nil && len(l.open) == 0 {
		return []string{"no persistent disk was freed; where each one is could not be read: recast status shows it when Proxmox answers"}
	}
	var lines []string
	for _, park := range l.open {
		h, err := half(ctx, w.machines.Proxmox, park, l.vms, l.away)
		if err != nil {
			lines = append(lines, fmt.Sprintf("%s: none of its disks was freed; its record is on parking VM %d", park.Record.Node, park.VM.ID))
			continue
		}
		lines = append(lines, h.safe())
	}
	fates := w.tally.fates(w.planned())
	for _, group := range []struct {
		nodes []string
		say   string
	}{{fates.Done, "finished, with all their disks"}, {slices.Concat(fates.Failed, fates.Left), "every disk is in its place"}} {
		names := slices.DeleteFunc(slices.Clone(group.nodes), func(node string) bool {
			return slices.ContainsFunc(l.open, func(p parking.Parking) bool { return p.Record.Node == node })
		})
		if sure := l.unread == nil && l.away == nil; len(names) > 0 && sure {
			lines = append(lines, strings.TrimSpace(named("", names))+": "+group.say)
		}
	}
	if l.away != nil {
		lines = append(lines, "no persistent disk was freed; Proxmox hosts that do not answer could not be read")
	}
	return lines
}

// safe says where the disks of an unfinished replacement are, in one sentence.
func (h Half) safe() string {
	places := map[DiskPlace][]string{}
	for _, d := range h.Disks {
		what := d.Disk
		switch {
		case d.Kept:
			what += " (the kept system disk)"
		case d.System:
			what += " (the old system disk)"
		}
		places[d.Place] = append(places[d.Place], what)
	}
	var parts []string
	for _, at := range []struct {
		place DiskPlace
		say   string
	}{
		{OnVM, fmt.Sprintf("on VM %d", h.VMID)},
		{OnParking, fmt.Sprintf("parked on VM %d, which nothing starts or deletes", h.Parking)},
		{Detached, "with the VM that owns it"},
		{Unnamed, "on its storage, for the moment without an owner: it is in the record, and recast roll finds it"},
		{Lost, "not where the record says: run recast status first"},
	} {
		if disks := places[at.place]; len(disks) > 0 {
			parts = append(parts, strings.Join(disks, ", ")+" "+at.say)
		}
	}
	text := fmt.Sprintf("%s: VM %d (%s); ", h.Node, h.VMID, h.VM) + strings.Join(parts, "; ")
	if len(places[Lost]) == 0 {
		text += ": nothing is lost"
	}
	return text
}

// endSurge removes the surge nodes that the plan has used, now that its last worker is back. The plan
// showed that, so nobody is asked again.
func (w *work) endSurge(ctx context.Context, c Images) error {
	done := w.rep.Plan
	if done.Surge == nil || len(done.Surge.Nodes) == 0 {
		return nil
	}
	w.o.Policy = planning.Policy{SurgeEnds: true, Only: done.Surge.Nodes, Exactly: true}
	w.refusedHint = "every worker is done; " + planning.SurgeStays(done.Surge.Nodes)
	if _, err := w.pass(ctx, c); err != nil {
		return err
	}
	w.rep.Plan = done
	return nil
}

// surgeStays says what becomes of surge nodes that are there when a roll fails.
func (w *work) surgeStays(err error) error {
	if s := w.rep.Plan.Surge; w.began && s != nil && len(s.Nodes) > 0 {
		return fault.WithHint(err, "%s", planning.SurgeStays(s.Nodes))
	}
	return err
}

// Undo cancels the unfinished replacement of a node, or boots nodes from their previous system disks.
func Undo(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
	w := newWork(p, m, run, o, string(o.Undo.Way))
	w.back = o.Policy.Only
	return w.single(ctx, func(wanted []cluster.Wanted, seen observe.Observation) (planning.Plan, error) {
		plan, way, err := planning.ForUndo(ctx, p.Config.Cluster, wanted, seen, m.Talos, m.Maintenance, o.Policy, w.undone())
		w.command = string(way)
		if way == planning.Previous {
			plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
		}
		return plan, err
	})
}

// undone is what Undo is about, with what only a running command knows.
func (w *work) undone() planning.Undone {
	u := w.o.Undo
	u.Order, u.Say = w.Runs().Order, func(text string) { w.run.Note("undo", text) }
	return u
}
