package fleet

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/wave"
)

// reasonMemberFailed is the reason of the Event of a failed cluster.
const reasonMemberFailed = "MemberFailed"

// verdict is what the conditions Ready, Progressing and Stalled say together.
type verdict struct {
	ready, progressing, stalled bool
	reason, message             string
}

func stalled(reason, format string, args ...any) verdict {
	return verdict{stalled: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

// note is an Event.
type note struct {
	warning      bool
	reason, text string
}

// tally counts members.
type tally struct{ total, waiting, running, done, failed int32 }

func count(members []v1alpha1.Member, of func(v1alpha1.Member) bool) tally {
	var t tally
	for _, m := range members {
		if !of(m) {
			continue
		}
		t.total++
		switch m.Phase {
		case v1alpha1.MemberRunning:
			t.running++
		case v1alpha1.MemberDone:
			t.done++
		case v1alpha1.MemberFailed:
			t.failed++
		default:
			t.waiting++
		}
	}
	return t
}

func (t tally) String() string {
	text := fmt.Sprintf("%d of %d clusters done", t.done, t.total)
	if t.failed > 0 {
		text += fmt.Sprintf(", %d failed", t.failed)
	}
	if t.running > 0 {
		text += fmt.Sprintf(", %d run", t.running)
	}
	return text
}

func all(v1alpha1.Member) bool { return true }

// verdict says what a decision means.
func (p *pass) verdict(d wave.Decision) verdict {
	fleet := count(p.fleet.Status.Members, all)
	stage := count(p.fleet.Status.Members, func(m v1alpha1.Member) bool { return m.Stage == d.Stage })
	waits := func(reason, format string, args ...any) verdict {
		return verdict{progressing: true, reason: reason, message: fmt.Sprintf("stage %s: ", d.Stage) + fmt.Sprintf(format, args...)}
	}
	switch d.Reason {
	case wave.Soaking:
		return waits(v1alpha1.ReasonSoaking, "%s; watched until %s", stage, d.Again.UTC().Format(time.RFC3339))
	case wave.Gated:
		return waits(v1alpha1.ReasonGateClosed, "the next stage waits: %s", lines(d.Closed))
	case wave.Unapproved:
		return waits(v1alpha1.ReasonAwaitingApproval, "add it to spec.approvedStages, and it begins")
	case wave.Paused:
		return verdict{progressing: fleet.running > 0, reason: v1alpha1.ReasonPaused, message: fmt.Sprintf("spec.state: Paused: nothing begins; %s", fleet)}
	case wave.Aborted:
		return stalled(v1alpha1.ReasonAborted, "spec.state: Aborted: nothing begins any more; %s", fleet)
	case wave.Threshold:
		return stalled(v1alpha1.ReasonStageFailed, "%s, and spec.abortThreshold is %d: nothing begins; find out why %s failed, then raise spec.abortThreshold or make another FleetRoll", fleet, threshold(p.fleet.Spec), some(failed(p.fleet.Status.Members)))
	case wave.Succeeded:
		return verdict{ready: true, reason: v1alpha1.ReasonSucceeded, message: fleet.String()}
	}
	if len(p.blocked) > 0 {
		return waits(v1alpha1.ReasonRetrying, "%s; %s", stage, lines(p.blocked))
	}
	return waits(v1alpha1.ReasonRolling, "%s", stage)
}

func failed(members []v1alpha1.Member) []string {
	var names []string
	for _, m := range members {
		if m.Phase == v1alpha1.MemberFailed {
			names = append(names, m.Cluster)
		}
	}
	return names
}

// lines joins the first few of them.
func lines(texts []string) string {
	const most = 5
	if more := len(texts) - most; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(texts[:most], "; "), more)
	}
	return strings.Join(texts, "; ")
}

// tell sets the conditions and counts, saves them, and makes an Event of a transition.
func (p *pass) tell(ctx context.Context, v verdict) error {
	s, t := &p.fleet.Status, count(p.fleet.Status.Members, all)
	if v.stalled && t.running > 0 {
		v.progressing = true
	}
	s.ObservedGeneration = p.fleet.Generation
	s.Done, s.Failed, s.Running, s.Summary = t.done, t.failed, t.running, ""
	if t.total > 0 {
		s.Summary = fmt.Sprintf("%d/%d", t.done, t.total)
	}
	p.condition(v1alpha1.ConditionReady, v.ready, v)
	p.condition(v1alpha1.ConditionProgressing, v.progressing, v)
	p.condition(v1alpha1.ConditionStalled, v.stalled, v)
	before := p.saved.Status
	if reason(before) != v.reason || before.Stage != s.Stage {
		p.events = append(p.events, note{warning: v.stalled, reason: v.reason, text: v.message})
	}
	return p.save(ctx)
}

func (p *pass) condition(kind string, is bool, v verdict) {
	const most = 32768 // bytes, by the API
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&p.fleet.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: v.reason, Message: cut(v.message, most),
		ObservedGeneration: p.fleet.Generation, LastTransitionTime: *p.stamp(),
	})
}

// save writes the status, if it has changed, and then sends the Events. It fails with a conflict
// if the FleetRoll was changed since it was read.
func (p *pass) save(ctx context.Context) error {
	if !equality.Semantic.DeepEqual(p.fleet.Status, p.saved.Status) {
		if err := p.Client.Status().Patch(ctx, p.fleet, client.MergeFromWithOptions(p.saved, client.MergeFromWithOptimisticLock{})); err != nil {
			return err
		}
		p.saved = p.fleet.DeepCopy()
	}
	const most = 1000 // bytes: Events have a limit
	for _, n := range p.events {
		kind := corev1.EventTypeNormal
		if n.warning {
			kind = corev1.EventTypeWarning
		}
		p.Recorder.Eventf(p.fleet, nil, kind, n.reason, "Roll", "%s", cut(n.text, most))
	}
	p.events = nil
	return nil
}

// over says whether a fleet has ended for good. One that was stopped by its threshold has not:
// it goes on when the threshold is raised.
func over(s v1alpha1.FleetRollStatus) bool {
	return s.Ended != nil && (reason(s) == v1alpha1.ReasonSucceeded || reason(s) == v1alpha1.ReasonAborted)
}

// confirm acknowledges a newer spec of a fleet that is over.
func (p *pass) confirm(ctx context.Context) error {
	s := &p.fleet.Status
	s.ObservedGeneration = p.fleet.Generation
	for i := range s.Conditions {
		s.Conditions[i].ObservedGeneration = p.fleet.Generation
	}
	return p.save(ctx)
}

// reason is that of the condition Ready.
func reason(s v1alpha1.FleetRollStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}
