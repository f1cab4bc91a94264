// Package operator keeps TalosClusters at what their files say: it checks them by schedule and when
// something changes, makes ImageRolls of what has drifted, and runs those as Jobs, one attempt after the
// other. It holds no state of its own: what it knows is in the objects.
package operator

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/window"
)

// FieldOwner is the operator's name in server-side apply.
const FieldOwner = "recast-operator"

// Pace is how long the operator waits for what.
type Pace struct {
	FirstRetry time.Duration // before the second attempt; each further one waits twice as long
	MaxRetry   time.Duration
	Claim      time.Duration // before the next attempt while another run holds the claim
	Recheck    time.Duration // before a check is repeated that could not read its cluster
}

// DefaultPace is for real clusters.
var DefaultPace = Pace{FirstRetry: 10 * time.Second, MaxRetry: 5 * time.Minute, Claim: 2 * time.Minute, Recheck: 10 * time.Minute}

// Shared is what all reconcilers work with.
type Shared struct {
	Client client.Client
	// Live reads from the API server, not from the cache.
	Live   client.Reader
	Scheme *runtime.Scheme
	Events events.EventRecorder
	Now    func() time.Time
	Pace   Pace
	Image  string // of Jobs
}

// apply makes an object what it should be, by server-side apply, with owner as its owner.
func (s *Shared) apply(ctx context.Context, owner, o client.Object) error {
	if err := controllerutil.SetOwnerReference(owner, o, s.Scheme); err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	delete(fields, "status")
	if m, ok := fields["metadata"].(map[string]any); ok {
		delete(m, "creationTimestamp")
	}
	return s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: fields}), client.FieldOwner(FieldOwner), client.ForceOwnership)
}

// conditions sets conditions of an object's status; generation is that of its spec.
type conditions struct {
	list       *[]metav1.Condition
	generation int64
}

func (c conditions) set(kind string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	c.setStatus(kind, value, reason, message)
}

func (c conditions) setStatus(kind string, status metav1.ConditionStatus, reason, message string) {
	const most = 32768 // characters, by the API
	meta.SetStatusCondition(c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message[:min(len(message), most)], ObservedGeneration: c.generation,
	})
}

// verdict is what the conditions Ready, Progressing and Stalled say together.
type verdict struct {
	ready, progressing, stalled bool
	reason, message             string
}

// tell sets the three conditions.
func (c conditions) tell(v verdict) {
	c.set(v1alpha1.ConditionReady, v.ready, v.reason, v.message)
	c.set(v1alpha1.ConditionProgressing, v.progressing, v.reason, v.message)
	c.set(v1alpha1.ConditionStalled, v.stalled, v.reason, v.message)
}

func stalled(reason, format string, args ...any) verdict {
	return verdict{stalled: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

func waiting(reason, format string, args ...any) verdict {
	return verdict{progressing: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

// laterIfChanged looks again soon, instead of failing, when someone else has written meanwhile: the
// pod of a Job, a person, or the cache was behind.
func laterIfChanged(r ctrl.Result, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return r, err
}

// unusable says whether the API server refuses what a spec leads to: a Job that is invalid or that a
// quota, a policy or a webhook denies.
func unusable(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// soon is long enough for the cache to have what was written.
const soon = 100 * time.Millisecond

// agenda says when to look at an object again.
type agenda struct {
	now   time.Time
	again time.Time // zero: when something changes
}

// lookAgain makes sure that the next look is no later than t. A zero t changes nothing.
func (a *agenda) lookAgain(t time.Time) {
	if !t.IsZero() && (a.again.IsZero() || t.Before(a.again)) {
		a.again = t
	}
}

func (a *agenda) result() ctrl.Result {
	if a.again.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(soon, a.again.Sub(a.now))}
}

// schedules are those of a spec.
type schedules struct {
	drift   window.Schedule
	windows window.Set
}

// readSchedules reads them. The error names the field.
func readSchedules(spec v1alpha1.TalosClusterSpec) (schedules, error) {
	var s schedules
	var err error
	if s.drift, err = window.ParseSchedule(spec.Drift.Schedule, spec.Drift.TimeZone); err != nil {
		return s, fmt.Errorf("spec.drift.%w", err)
	}
	for i, w := range spec.Windows {
		parsed, err := window.Parse(w.Schedule, w.TimeZone, w.Duration.Duration)
		if err != nil {
			return s, fmt.Errorf("spec.windows[%d].%w", i, err)
		}
		s.windows = append(s.windows, parsed)
	}
	return s, nil
}

// Windows are the maintenance windows of a cluster.
func Windows(spec v1alpha1.TalosClusterSpec) (window.Set, error) {
	plans, err := readSchedules(spec)
	return plans.windows, err
}
