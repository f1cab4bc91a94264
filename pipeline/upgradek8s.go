package pipeline

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// UpgradeKubernetesOptions are the options of UpgradeKubernetes.
type UpgradeKubernetesOptions struct {
	To      string // "": kubernetes.version of the configuration
	DryRun  bool   // only make the plan; change nothing, and do not take the claim
	Confirm func(kubeupgrade.Plan) (bool, error)
	Claim   RollOptions // as for a roll: RunID, JournalSync, Holder, Dead
}

// UpgradeKubernetesReport is what an upgrade of Kubernetes did.
type UpgradeKubernetesReport struct {
	Run     string           `json:"run,omitempty"` // "" if nothing was started
	Started time.Time        `json:"started"`
	Ended   time.Time        `json:"ended"`
	Plan    kubeupgrade.Plan `json:"plan"`
	DryRun  bool             `json:"dryRun,omitempty"`
	Outcome string           `json:"outcome"` // as in a roll
	Unsent  []string         `json:"unsent,omitempty"`
}

// UpgradeKubernetes upgrades Kubernetes on every node that Kubernetes knows:
// observe → plan → claim → confirm → plan again → check → pull → component by component.
// If it is interrupted, nodes have two versions; run again, it continues.
func UpgradeKubernetes(ctx context.Context, p Project, m Machines, run *step.Runner, o UpgradeKubernetesOptions) (rep UpgradeKubernetesReport, err error) {
	rep = UpgradeKubernetesReport{Started: time.Now(), DryRun: o.DryRun, Outcome: "nothing to do"}
	if o.To == "" {
		o.To = p.Config.Kubernetes.Version
	}
	if o.To == "" {
		return rep, fault.WithHint(fault.Configf("no Kubernetes version is given"), "recast upgrade-k8s --to v1.35.4, or kubernetes.version in recast.yaml")
	}
	if err := cluster.CheckKubernetesVersion(o.To); err != nil {
		return rep, err
	}
	w := newWork(p, m, run, o.Claim, past.UpgradeKey)
	w.rep.Started = rep.Started
	if o.DryRun {
		w.command = "" // no notices are sent
	}
	done, err := w.end(ctx, func() error { return w.upgradeKubernetes(ctx, &rep, o) })
	rep.Unsent = done.Unsent
	rep.Ended = time.Now()
	if err != nil {
		rep.Outcome = outcome(err)
	}
	return rep, err
}

func (w *work) upgradeKubernetes(ctx context.Context, rep *UpgradeKubernetesReport, o UpgradeKubernetesOptions) error {
	if !o.DryRun {
		if err := w.settle(ctx); err != nil {
			return err
		}
	}
	if w.claim.held != nil { // of a killed run, which may have left the only API server restarting
		if err := kubeupgrade.Await(ctx, w.machines.Kube, timing(w.Config), func(text string) { w.run.Note(past.UpgradeKey, text) }); err != nil {
			return err
		}
	}
	plan, host, err := w.planUpgrade(ctx, o.To)
	if err != nil {
		return err
	}
	rep.Plan = plan
	if o.DryRun || !rep.Plan.Work() && len(rep.Plan.Refused) == 0 {
		return refusedPlan(rep.Plan)
	}
	if err := errors.Join(refusedPlan(rep.Plan), survey.NeedsToUpgradeKubernetes(host).Check(ctx, w.machines.Proxmox)); err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, w.machines.Proxmox); err != nil {
		return err
	}
	if err := w.claim.take(ctx, host, w.rep.Plan); err != nil {
		return err
	}
	ok, err := o.Confirm(rep.Plan)
	if err != nil {
		return err
	}
	if !ok {
		return fault.NotConfirmed.Of(fault.As(fault.Interrupted, errors.New("not confirmed; Kubernetes was not changed")))
	}
	if plan, err = w.planUpgradeAgain(ctx, rep.Plan); err != nil {
		return err
	}
	rep.Run, w.rep.Run, w.began = w.claim.id, w.claim.id, true
	w.tellStart(ctx)
	err = w.carryUpgradeOut(ctx, plan)
	if err == nil {
		rep.Outcome = "done"
	}
	return err
}

// planUpgrade makes a plan from the current state, and returns where to create the claim.
func (w *work) planUpgrade(ctx context.Context, to string) (plan kubeupgrade.Plan, host string, err error) {
	seen, err := observation(ctx, w.Project, Sources(w.Project, w.machines), w.Wanted(schematics.Lock{}), "", "")
	if err != nil {
		return plan, "", err
	}
	kubernetes, err := kubeupgrade.Observe(ctx, w.machines.Talos, w.machines.Kube, seen, to)
	if err != nil {
		return plan, "", err
	}
	if plan, err = kubeupgrade.NewPlan(w.Config.Cluster, to, kubernetes); err != nil || len(plan.Refused) > 0 {
		return plan, hostOf(seen), err
	}
	plan.Refused, err = plan.Foresee(ctx, w.machines.Talos, w.machines.Maintenance, w.machines.Kube)
	return plan, hostOf(seen), err
}

// planUpgradeAgain makes the plan that is carried out: under the claim, and after the answer,
// which may have taken hours. It refuses a plan that differs from the one shown.
func (w *work) planUpgradeAgain(ctx context.Context, shown kubeupgrade.Plan) (kubeupgrade.Plan, error) {
	plan, _, err := w.planUpgrade(ctx, shown.To)
	if err != nil {
		return plan, err
	}
	return plan, plan.RequireSame(shown)
}

// refusedPlan is the error of a plan that can't be carried out; nil if it can.
func refusedPlan(p kubeupgrade.Plan) error {
	if len(p.Refused) == 0 {
		return nil
	}
	return fault.KubernetesUpgrade.Refusedf("Kubernetes can't be brought to %s:\n  %s", p.To, strings.Join(p.Refused, "\n  "))
}

// hostOf is the host for the claim's VM: that of one of the nodes.
func hostOf(o observe.Observation) string {
	for _, f := range o.Found {
		if host := f.Host(); host != "" {
			return host
		}
	}
	return ""
}

func (w *work) carryUpgradeOut(ctx context.Context, plan kubeupgrade.Plan) error {
	if err := w.finishUpgrades(); err != nil {
		return err
	}
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: w.claim.id, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	w.o.began(j)
	if err := j.Put(past.UpgradeKey, plan); err != nil {
		return err
	}
	u := &kubeupgrade.Upgrade{
		Talos: w.claim.held.GuardTalos(w.machines.Talos), Maintenance: w.claim.held.GuardMaintenance(w.machines.Maintenance), Kube: w.claim.held.GuardKube(w.machines.Kube),
		Plan: plan, Timing: timing(w.Config), Say: w.run.Note,
	}
	within, done := w.claim.whileHeld(ctx)
	defer done()
	err = w.claim.judged(w.run.Run(within, u.Steps()))
	return errors.Join(err, j.Finish(outcome(err)))
}

// finishUpgrades finishes the journals of killed upgrades, which this one continues.
func (w *work) finishUpgrades() error {
	runs, err := journal.Unfinished(w.Runs().Dir)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if err := w.finishUpgrade(r.ID); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) finishUpgrade(run string) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: run, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	var plan kubeupgrade.Plan
	found, err := j.Get(past.UpgradeKey, &plan)
	if err != nil || !found {
		return err
	}
	return j.Finish("interrupted: run " + w.claim.id + " continued it")
}
