package pipeline

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// RollOptions choose what a roll does and whom it asks.
type RollOptions struct {
	Policy cluster.Policy
	// Confirm is shown the plan before anything is taken down. Its error, or
	// false, ends the roll.
	Confirm func(cluster.Plan) (bool, error)
	// RunID makes the ID of a new run; nil: journal.NewRunID.
	RunID func() (string, error)
	// JournalSync is journal.Options.Sync; nil in production.
	JournalSync func(point string) error
	// MachineConfig returns a node's configuration from a file, where the user keeps one.
	MachineConfig func(node string) (cluster.Secret, bool, error)
}

// Report is what a roll did.
type Report struct {
	Run     string       `json:"run,omitempty"` // "" when there was nothing to do
	Started time.Time    `json:"started"`
	Ended   time.Time    `json:"ended"`
	Plan    cluster.Plan `json:"plan"`
	Outcome string       `json:"outcome"` // "done", "nothing to do", "failed: …"
}

// Roll brings every selected node to the lock:
// lock check → build → publish → plan → confirm → roll → report.
func Roll(ctx context.Context, p Project, c Images, m Machines, run *step.Runner, o RollOptions) (Report, error) {
	rep := Report{Started: time.Now()}
	lock, err := p.lock()
	if err != nil {
		return rep, err
	}
	say := func(seen string) { run.Note("roll", "waiting for tasks of an earlier recast: "+seen) }
	if err := cluster.AwaitOwnTasks(ctx, m.Proxmox, p.timing().Poll, say); err != nil {
		return rep.end("", err)
	}
	first, seen, err := p.plan(ctx, m, lock, o.Policy)
	rep.Plan = first
	if err != nil || len(first.Work()) == 0 {
		return rep.end("nothing to do", err)
	}
	if err := refuse(ctx, first, m.Proxmox); err != nil {
		return rep.end("", err)
	}
	lock, err = p.workshop(lock, c, run).publish(ctx, m.Store, hosts(p.wanted(lock), seen))
	if err != nil {
		return rep.end("", err)
	}
	// Building may have taken minutes: the plan that is shown and run is made now.
	rep.Plan, _, err = p.plan(ctx, m, lock, o.Policy)
	if err != nil {
		return rep.end("", err)
	}
	if err := refuse(ctx, rep.Plan, m.Proxmox); err != nil {
		return rep.end("", err)
	}
	if ok, err := o.Confirm(rep.Plan); err != nil || !ok {
		return rep.end("", errors.Join(err, declined(ok)))
	}
	return p.carryOut(ctx, m, run, o, lock, rep)
}

// refuse stops a roll that can't be done, while nothing was touched.
func refuse(ctx context.Context, plan cluster.Plan, px cluster.Proxmox) error {
	if reasons := plan.Refused(); len(reasons) > 0 {
		return fault.WithHint(fault.Refusedf("the plan can't be carried out:\n  %s", strings.Join(reasons, "\n  ")),
			"recast plan shows every node; --exclude leaves one out")
	}
	granted, err := px.Permissions(ctx)
	if err != nil {
		return fmt.Errorf("read the token's permissions: %w", err)
	}
	return errors.Join(cluster.NeedsOf(plan).Check(granted), cluster.RequireQuorum(ctx, px))
}

func declined(ok bool) error {
	if ok {
		return nil
	}
	return fault.As(fault.Interrupted, errors.New("not confirmed; nothing was changed on the nodes"))
}

func (p Project) carryOut(ctx context.Context, m Machines, run *step.Runner, o RollOptions, lock schematics.Lock, rep Report) (Report, error) {
	past, err := p.history(lock)
	if err != nil {
		return rep.end("", err)
	}
	id, err := o.runID(rep.Plan)
	if err != nil {
		return rep.end("", err)
	}
	j, err := journal.Open(p.runs(), journal.Options{Run: id, Sync: o.JournalSync})
	if err != nil {
		return rep.end("", err)
	}
	defer j.Close()
	rep.Run = id
	r := &cluster.Roller{
		Proxmox: m.Proxmox, Talos: m.Talos, Maintenance: m.Maintenance, Kube: m.Kube, Journal: j,
		Cluster: p.Config.Cluster, Run: id, Timing: p.timing(), DrainForce: p.Config.Roll.Drain.Force, History: past,
		MachineConfig: o.MachineConfig, Say: run.Note,
	}
	for vmid := range p.Config.Proxmox.VMIDs.All() {
		r.ParkingIDs = append(r.ParkingIDs, cluster.VMID(vmid))
	}
	err = j.Put("plan", rep.Plan)
	if err == nil {
		err = run.Run(ctx, r.Steps(rep.Plan))
	}
	rep, err = rep.end("done", err)
	return rep, errors.Join(err, j.Finish(rep.Outcome))
}

// runID continues the run that left a replacement unfinished, else begins a new one.
func (o RollOptions) runID(plan cluster.Plan) (string, error) {
	switch {
	case plan.Run != "":
		return plan.Run, nil
	case o.RunID != nil:
		return o.RunID()
	}
	return journal.NewRunID(time.Now(), rand.Reader)
}

func (r Report) end(outcome string, err error) (Report, error) {
	r.Ended, r.Outcome = time.Now(), outcome
	if err != nil {
		r.Outcome = "failed: " + err.Error()
	}
	return r, err
}
