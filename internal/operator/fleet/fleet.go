// Package fleet rolls many TalosClusters: the reconciler of FleetRolls. It makes an ImageRoll
// of each cluster when its turn comes, as package wave decides. Its state is in the status of
// the FleetRoll, so the operator may be killed at any point.
package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/wave"
)

const (
	// lookAgain is when a closed gate or missing clusters are looked at again, if no event says so.
	lookAgain = time.Minute
	// startAgain is when a cluster is tried again whose ImageRoll can't be made yet.
	startAgain = 10 * time.Second
	// cacheAgain is how long the cache may take to have what was just written.
	cacheAgain = time.Second
)

// Reconciler reconciles FleetRolls.
type Reconciler struct {
	Client   client.Client
	Live     client.Reader // reads from the API server, not from the cache
	Recorder events.EventRecorder
	Clock    func() time.Time

	gates programs
}

// pass is one look at a FleetRoll.
type pass struct {
	*Reconciler
	fleet    *v1alpha1.FleetRoll
	saved    *v1alpha1.FleetRoll // as the API server has it
	now      time.Time
	again    time.Time // zero: when something changes
	clusters map[string]*v1alpha1.TalosCluster
	rolls    map[string]*v1alpha1.ImageRoll // of this FleetRoll
	blocked  []string                       // why members that should run have no ImageRoll yet
	events   []note                         // sent when the status is saved
}

// Reconcile looks at a FleetRoll, begins what may begin, and says so in its status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var f v1alpha1.FleetRoll
	if err := r.Client.Get(ctx, req.NamespacedName, &f); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !f.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // its ImageRolls are deleted with it, when their Jobs have ended
	}
	p := &pass{Reconciler: r, fleet: &f, saved: f.DeepCopy(), now: r.Clock()}
	if over(f.Status) {
		return ctrl.Result{}, p.confirm(ctx)
	}
	if err := p.read(ctx); err != nil {
		return ctrl.Result{}, err
	}
	err := p.step(ctx)
	if err != nil || p.again.IsZero() {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: max(100*time.Millisecond, p.again.Sub(p.now))}, nil
}

// read lists the clusters and the ImageRolls of the fleet. The objects belong to the cache.
func (p *pass) read(ctx context.Context) error {
	var clusters v1alpha1.TalosClusterList
	if err := p.Client.List(ctx, &clusters, client.InNamespace(p.fleet.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	var rolls v1alpha1.ImageRollList
	if err := p.Client.List(ctx, &rolls, client.InNamespace(p.fleet.Namespace), client.MatchingLabels{v1alpha1.LabelFleet: p.fleet.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	p.clusters, p.rolls = map[string]*v1alpha1.TalosCluster{}, map[string]*v1alpha1.ImageRoll{}
	for i := range clusters.Items {
		p.clusters[clusters.Items[i].Name] = &clusters.Items[i]
	}
	for i := range rolls.Items {
		if owns(p.fleet, &rolls.Items[i]) {
			p.rolls[rolls.Items[i].Name] = &rolls.Items[i]
		}
	}
	return nil
}

// step does what is next, and saves the status.
func (p *pass) step(ctx context.Context) error {
	plan, invalid := p.gates.plan(p.fleet.Spec)
	if p.fleet.Status.Started == nil {
		if v, begins := p.freeze(plan, invalid); !begins {
			return p.tell(ctx, v)
		}
	}
	if err := p.observe(ctx); err != nil {
		return err
	}
	if invalid = errors.Join(invalid, lostStages(p.fleet)); invalid != nil {
		return p.tell(ctx, stalled(v1alpha1.ReasonInvalidSpec, "%s", invalid))
	}
	d, err := p.decide(ctx, plan)
	if err != nil {
		return err
	}
	// Which members run is saved before their ImageRolls are made. After a kill the next operator
	// makes those that are missing. A decision from an outdated cache fails here, with a conflict.
	if len(d.Begin) > 0 {
		if err := p.tell(ctx, p.verdict(d)); err != nil {
			return err
		}
	}
	unstarted := p.start(ctx)
	return errors.Join(unstarted, p.tell(ctx, p.verdict(d)))
}

// decide asks package wave, and lets the members begin that may. One whose TalosCluster is
// gone fails.
func (p *pass) decide(ctx context.Context, plan plan) (wave.Decision, error) {
	for {
		d := wave.Decide(p.wave(ctx, plan), p.now)
		gone := false
		for _, name := range d.Begin {
			missing, err := p.missing(ctx, name)
			if err != nil {
				return d, err
			}
			if missing {
				p.fail(member(p.fleet.Status.Members, name), "TalosCluster "+name+" was deleted")
				gone = true
			}
		}
		if gone {
			continue
		}
		for _, name := range d.Begin {
			member(p.fleet.Status.Members, name).Phase = v1alpha1.MemberRunning
		}
		p.lookAgain(d.Again)
		if d.Reason == wave.Gated {
			p.lookAgain(p.now.Add(lookAgain))
		}
		p.fleet.Status.Stage = d.Stage
		p.fleet.Status.Ended = nil
		if d.Over {
			p.fleet.Status.Ended = p.lastEnd()
		}
		return d, nil
	}
}

// wave is the fleet as package wave knows it.
func (p *pass) wave(ctx context.Context, plan plan) wave.Fleet {
	spec := p.fleet.Spec
	f := wave.Fleet{
		MaxConcurrent: int(spec.MaxConcurrent), MaxConcurrentPerSite: int(spec.MaxConcurrentPerSite),
		AbortThreshold: int(spec.AbortThreshold), State: states[spec.State],
	}
	for i, s := range spec.Stages {
		f.Stages = append(f.Stages, wave.Stage{
			Name: s.Name, MaxConcurrent: int(s.MaxConcurrent), Soak: s.Soak.Duration,
			Manual: s.Approval == v1alpha1.ApprovalManual, Approved: slices.Contains(spec.ApprovedStages, s.Name),
			Gate: func() []string { return p.gate(ctx, s.Name, plan.stages[i].gates) },
		})
	}
	for _, m := range p.fleet.Status.Members {
		w := wave.Member{Name: m.Cluster, Stage: m.Stage, Site: m.Site, Phase: phases[m.Phase]}
		if m.Ended != nil {
			w.Ended = m.Ended.Time
		}
		f.Members = append(f.Members, w)
	}
	return f
}

var states = map[v1alpha1.FleetState]wave.State{v1alpha1.FleetPaused: wave.Pause, v1alpha1.FleetAborted: wave.Abort}

var phases = map[v1alpha1.MemberPhase]wave.Phase{
	v1alpha1.MemberRunning: wave.Running, v1alpha1.MemberDone: wave.Done, v1alpha1.MemberFailed: wave.Failed,
}

// lookAgain makes sure that the next look is no later than t. A zero t changes nothing.
func (p *pass) lookAgain(t time.Time) {
	if !t.IsZero() && (p.again.IsZero() || t.Before(p.again)) {
		p.again = t
	}
}

// stamp is the time as an object keeps it.
func (p *pass) stamp() *metav1.Time { return new(metav1.NewTime(p.now.Truncate(time.Second))) }

// lastEnd is when the last member ended; now if none did.
func (p *pass) lastEnd() *metav1.Time {
	var last *metav1.Time
	for _, m := range p.fleet.Status.Members {
		if m.Ended != nil && (last == nil || last.Before(m.Ended)) {
			last = m.Ended
		}
	}
	if last == nil {
		return p.stamp()
	}
	return last.DeepCopy()
}
