package operator

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/job"
)

// judge says what is known of a cluster.
func (l *look) judge(wanted string) verdict {
	s := l.cluster.Status
	roll := l.rolls.active()
	switch {
	case roll != nil:
		return waiting(v1alpha1.ReasonRolling, "ImageRoll %s: %s", roll.Name, rollMessage(roll))
	case l.cluster.Spec.Suspend:
		return verdict{ready: l.inSync(wanted), reason: v1alpha1.ReasonSuspended, message: "spec.suspend: nothing is started"}
	case l.failed:
		return stalled(v1alpha1.ReasonCheckFailed, "%s", l.trouble)
	case s.Check == nil:
		return waiting(v1alpha1.ReasonChecking, "the first check runs: %s", cmp.Or(l.trouble, "Job "+l.checkJob()))
	case l.running && s.Check.For != wanted:
		return waiting(v1alpha1.ReasonChecking, "something has changed: %s", cmp.Or(l.trouble, "Job "+l.checkJob()))
	case l.inSync(wanted):
		return verdict{ready: true, progressing: l.running, reason: v1alpha1.ReasonInSync, message: fmt.Sprintf("%d nodes run what the files say", s.Nodes.Total)}
	case s.Check.ExitCode == job.ExitConfig:
		return stalled(v1alpha1.ReasonConfiguration, "%s", problems(s.Check))
	case s.Check.ExitCode == job.ExitRefused:
		return stalled(v1alpha1.ReasonRefused, "%s", problems(s.Check))
	case s.Check.ExitCode != exitDrift:
		return stalled(v1alpha1.ReasonCheckFailed, "%s", problems(s.Check))
	}
	if failed := l.blocking(); failed != nil {
		return stalled(v1alpha1.ReasonRollFailed, "ImageRoll %s: %s; correct that, then change the files, or delete the ImageRoll to try the same again", failed.Name, rollMessage(failed))
	}
	v := verdict{reason: v1alpha1.ReasonDrifted, message: strings.Join(s.Check.Reasons, "; ")}
	if l.cluster.Spec.Rolls.Create == v1alpha1.CreateNever {
		v.message += "; spec.rolls.create: Never, so make an ImageRoll or a FleetRoll"
	}
	return v
}

// problems are those of a check that has failed.
func problems(c *v1alpha1.Check) string {
	if len(c.Problems) == 0 {
		return fmt.Sprintf("recast ended with exit code %d: kubectl logs job/%s", c.ExitCode, c.Job)
	}
	return strings.Join(c.Problems, "\n")
}

// inSync says whether every node ran what the files say at the newest check, which is of them.
func (l *look) inSync(wanted string) bool {
	c := l.cluster.Status.Check
	return c != nil && c.For == wanted && c.ExitCode == job.ExitDone && l.cluster.Status.Nodes != nil
}

// drifted is the condition Drifted.
func (l *look) drifted(c conditions) {
	s := l.cluster.Status
	switch {
	case s.Check == nil || s.Nodes == nil:
		c.setStatus(v1alpha1.ConditionDrifted, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "no check has ended yet")
	case s.Nodes.Stale > 0:
		c.set(v1alpha1.ConditionDrifted, true, v1alpha1.ReasonDrifted, strings.Join(s.Check.Reasons, "; "))
	case s.Check.ExitCode != job.ExitDone:
		c.setStatus(v1alpha1.ConditionDrifted, metav1.ConditionUnknown, v1alpha1.ReasonUnread, problems(s.Check))
	default:
		c.set(v1alpha1.ConditionDrifted, false, v1alpha1.ReasonInSync, "")
	}
}

// tell writes the status and the annotations, and an Event where the reason has changed.
func (l *look) tell(ctx context.Context, v verdict) error {
	s := &l.cluster.Status
	before := reasonOf(l.saved.Status.Conditions)
	s.ObservedGeneration = l.cluster.Generation
	c := conditions{&s.Conditions, l.cluster.Generation}
	c.tell(v)
	l.drifted(c)
	if s.Check != nil && s.Check.ExitCode == job.ExitDone {
		s.LastInSync = s.Check.Ended
	}
	s.Roll = nil
	if made := l.rolls.named(fmt.Sprintf("%s-%d", l.cluster.Name, s.Rolls)); made != nil {
		s.MadeRoll = made.Name
	}
	if newest := l.rolls.Newest(); newest != nil {
		s.Roll = &v1alpha1.RollSummary{Name: newest.Name, Phase: newest.Status.Phase}
	}
	if err := l.save(ctx); err != nil {
		return err
	}
	if v.reason != before {
		l.event(l.cluster, v, "Check")
	}
	return l.annotate(ctx, v)
}

// event tells a person who looks at an object what has changed.
func (s *Shared) event(o client.Object, v verdict, action string) {
	kind := corev1.EventTypeNormal
	if v.stalled {
		kind = corev1.EventTypeWarning
	}
	const most = 1000 // characters: Events have a limit
	s.Events.Eventf(o, nil, kind, v.reason, action, "%s", v.message[:min(len(v.message), most)])
}

// reasonOf is the reason of the condition Ready.
func reasonOf(list []metav1.Condition) string {
	for _, c := range list {
		if c.Type == v1alpha1.ConditionReady {
			return c.Reason
		}
	}
	return ""
}
