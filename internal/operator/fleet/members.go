package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

const defaultSiteLabel = "topology.kubernetes.io/region"

// freeze fixes the members. If the fleet can't begin, v says why.
func (p *pass) freeze(plan plan, invalid error) (v verdict, begins bool) {
	spec, status := p.fleet.Spec, &p.fleet.Status
	switch {
	case spec.State == v1alpha1.FleetAborted:
		status.Ended = p.stamp()
		return stalled(v1alpha1.ReasonAborted, "spec.state: Aborted before anything was begun"), false
	case invalid != nil:
		return stalled(v1alpha1.ReasonInvalidSpec, "%s", invalid), false
	case spec.State == v1alpha1.FleetPaused:
		return verdict{reason: v1alpha1.ReasonPaused, message: "spec.state: Paused: nothing was begun, and the members are not settled yet"}, false
	}
	var members []v1alpha1.Member
	var unlocked []string
	for name, c := range p.clusters {
		i := slices.IndexFunc(plan.stages, func(s stage) bool { return s.selector.Matches(labels.Set(c.Labels)) })
		if i < 0 || !c.DeletionTimestamp.IsZero() {
			continue
		}
		members = append(members, v1alpha1.Member{
			Cluster: name, Stage: spec.Stages[i].Name, Site: c.Labels[cmp.Or(spec.SiteLabel, defaultSiteLabel)], Phase: v1alpha1.MemberWaiting,
		})
		if spec.TalosVersion != "" && c.Spec.Lock != v1alpha1.LockUpdate {
			unlocked = append(unlocked, name)
		}
	}
	for i, s := range spec.Stages {
		if !slices.ContainsFunc(members, func(m v1alpha1.Member) bool { return m.Stage == s.Name }) {
			p.lookAgain(p.now.Add(lookAgain))
			return stalled(v1alpha1.ReasonNoMembers,
				"spec.stages[%d].selector: no TalosCluster in namespace %s matches that is not of an earlier stage: change the labels or the selector, or remove stage %s", i, p.fleet.Namespace, s.Name), false
		}
	}
	if len(unlocked) > 0 {
		p.lookAgain(p.now.Add(lookAgain))
		return stalled(v1alpha1.ReasonInvalidSpec, "spec.talosVersion: needs spec.lock: Update of every TalosCluster, set it for %s", some(unlocked)), false
	}
	slices.SortFunc(members, func(a, b v1alpha1.Member) int { return cmp.Compare(a.Cluster, b.Cluster) })
	status.Members, status.Started = members, p.stamp()
	return verdict{}, true
}

// lostStages is an error if members belong to a stage that is no longer there.
func lostStages(f *v1alpha1.FleetRoll) error {
	for _, m := range f.Status.Members {
		if !slices.ContainsFunc(f.Spec.Stages, func(s v1alpha1.Stage) bool { return s.Name == m.Stage }) {
			return fmt.Errorf("spec.stages: stage %s is missing, which TalosCluster %s belongs to since the FleetRoll has begun: put it back", m.Stage, m.Cluster)
		}
	}
	return nil
}

// observe finds out how far the ImageRolls of the running members are.
func (p *pass) observe(ctx context.Context) error {
	for i := range p.fleet.Status.Members {
		m := &p.fleet.Status.Members[i]
		if m.Phase != v1alpha1.MemberRunning {
			continue
		}
		if err := p.observeMember(ctx, m); err != nil {
			return err
		}
	}
	if p.fleet.Spec.State != v1alpha1.FleetPaused && p.fleet.Spec.State != v1alpha1.FleetAborted && len(failed(p.fleet.Status.Members)) < threshold(p.fleet.Spec) {
		return nil
	}
	return p.withdraw(ctx)
}

func threshold(spec v1alpha1.FleetRollSpec) int { return max(1, int(spec.AbortThreshold)) }

// withdraw makes running members without an ImageRoll wait again: nothing more may begin.
func (p *pass) withdraw(ctx context.Context) error {
	for i := range p.fleet.Status.Members {
		m := &p.fleet.Status.Members[i]
		if m.Phase != v1alpha1.MemberRunning || m.Roll != "" {
			continue
		}
		name := rollName(p.fleet.Name, m.Cluster)
		roll, err := p.roll(ctx, name)
		if err != nil {
			return err
		}
		if roll == nil {
			m.Phase = v1alpha1.MemberWaiting
			continue
		}
		m.Roll = name
		if err := p.observeMember(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) observeMember(ctx context.Context, m *v1alpha1.Member) error {
	if m.Roll != "" {
		roll, err := p.roll(ctx, m.Roll)
		switch {
		case err != nil:
			return err
		case roll == nil:
			p.fail(m, "ImageRoll "+m.Roll+" was deleted before it was done")
			return nil
		case roll.Status.Phase == v1alpha1.PhaseSucceeded:
			m.Phase, m.Ended = v1alpha1.MemberDone, p.endOf(roll)
			return nil
		case roll.Status.Phase == v1alpha1.PhaseFailed:
			p.fail(m, "ImageRoll "+m.Roll+" failed: "+message(roll))
			m.Ended = p.endOf(roll)
			return nil
		}
	}
	missing, err := p.missing(ctx, m.Cluster)
	if missing {
		p.fail(m, "TalosCluster "+m.Cluster+" was deleted")
	}
	return err
}

// roll is an ImageRoll of this FleetRoll; nil if there is none of that name. A new one may not
// be in the cache yet, so the API server has the last word.
func (p *pass) roll(ctx context.Context, name string) (*v1alpha1.ImageRoll, error) {
	if roll := p.rolls[name]; roll != nil {
		return roll, nil
	}
	var roll v1alpha1.ImageRoll
	err := p.Live.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: name}, &roll)
	if apierrors.IsNotFound(err) || err == nil && !owns(p.fleet, &roll) {
		return nil, nil
	}
	return &roll, err
}

// missing says whether the API server has no TalosCluster of that name.
func (p *pass) missing(ctx context.Context, name string) (bool, error) {
	if p.clusters[name] != nil {
		return false, nil
	}
	var c v1alpha1.TalosCluster
	err := p.Live.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: name}, &c)
	if err == nil {
		p.clusters[name] = &c
	}
	return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}

func (p *pass) fail(m *v1alpha1.Member, why string) {
	m.Phase, m.Ended = v1alpha1.MemberFailed, p.stamp()
	p.events = append(p.events, note{warning: true, reason: reasonMemberFailed, text: fmt.Sprintf("stage %s: %s", m.Stage, why)})
}

func (p *pass) endOf(roll *v1alpha1.ImageRoll) *metav1.Time {
	if roll.Status.Ended != nil {
		return roll.Status.Ended.DeepCopy()
	}
	return p.stamp()
}

func member(list []v1alpha1.Member, cluster string) *v1alpha1.Member {
	return &list[slices.IndexFunc(list, func(m v1alpha1.Member) bool { return m.Cluster == cluster })]
}

// owns says whether an ImageRoll is of this FleetRoll, not of an earlier one of the same name.
func owns(f *v1alpha1.FleetRoll, roll *v1alpha1.ImageRoll) bool {
	return slices.ContainsFunc(roll.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == f.UID })
}

// message is what an ImageRoll says of itself.
func message(roll *v1alpha1.ImageRoll) string {
	for _, c := range roll.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return c.Message
		}
	}
	return "no message"
}

// some lists a few names.
func some(names []string) string {
	const most = 5
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
