package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/sim/must"
)

// stage is a Kubernetes API in memory, on which the test plays the Jobs.
type stage struct {
	t      *testing.T
	shared *Shared
	now    time.Time
	calls  int   // of the operator that change something
	deny   error // what the API server says to a Job
	killAt int   // the call in which the operator is killed; 0: none
	// play says how a Job ends, and what its pod has written before.
	play func(attempt.Task) ending
	ran  []string // kinds of Jobs that were begun, with the name of the Job
}

// ending is how a Job ends.
type ending struct {
	code    int32
	check   *v1alpha1.Check
	nodes   *v1alpha1.Nodes
	plan    *v1alpha1.Plan
	message string
	done    []string
	runs    bool // not yet
}

var errKilled = errors.New("the operator is killed")

const namespace = "clusters"

func newStage(t *testing.T, play func(attempt.Task) ending) *stage {
	t.Helper()
	s := &stage{t: t, now: time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC), play: play}
	sch := runtime.NewScheme()
	must.Do(t, errors.Join(scheme.AddToScheme(sch), v1alpha1.AddToScheme(sch)))
	api := fake.NewClientBuilder().WithScheme(sch).
		WithStatusSubresource(&v1alpha1.TalosCluster{}, &v1alpha1.ImageRoll{}, &batchv1.Job{}).
		WithIndex(&v1alpha1.ImageRoll{}, indexCluster, func(o client.Object) []string { return []string{o.(*v1alpha1.ImageRoll).Spec.ClusterName} }).
		Build()
	s.shared = &Shared{
		Client: interceptor.NewClient(api, s.killing()), Live: api, Scheme: sch,
		Events: events.NewFakeRecorder(1000), Now: func() time.Time { return s.now }, Pace: DefaultPace, Image: "recast:test",
	}
	return s
}

// killing counts the operator's writes, and ends it within one: before or after the API server has
// carried it out, by turns.
func (s *stage) killing() interceptor.Funcs {
	count := func(write func() error) error {
		s.calls++
		if s.killAt == 0 || s.calls < s.killAt {
			return write()
		}
		if s.calls == s.killAt && s.killAt%2 == 0 {
			return errors.Join(write(), errKilled)
		}
		return errKilled
	}
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, ok := o.(*batchv1.Job); ok && s.deny != nil {
				return s.deny
			}
			return count(func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return count(func() error { return c.Delete(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return count(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return count(func() error { return c.Apply(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return count(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	}
}

// api is the API server without the operator's accidents.
func (s *stage) api() client.WithWatch { return s.shared.Live.(client.WithWatch) }

func (s *stage) create(o client.Object) {
	s.t.Helper()
	must.Do(s.t, s.api().Create(s.t.Context(), o))
}

// cluster creates a TalosCluster with the defaults that the API server sets.
func (s *stage) cluster(change func(*v1alpha1.TalosCluster)) {
	s.t.Helper()
	c := &v1alpha1.TalosCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lab", Generation: 1},
		Spec: v1alpha1.TalosClusterSpec{
			Source: v1alpha1.Source{ConfigMap: &v1alpha1.ConfigMapSource{Name: "files"}},
			Secrets: v1alpha1.Secrets{
				ProxmoxToken: v1alpha1.SecretKey{Name: "lab"}, Talosconfig: v1alpha1.SecretKey{Name: "lab"}, Kubeconfig: v1alpha1.SecretKey{Name: "lab"},
			},
			Lock:  v1alpha1.LockFromSource,
			Drift: v1alpha1.DriftSchedule{Schedule: "17 * * * *"},
			Rolls: v1alpha1.RollPolicy{Create: v1alpha1.CreateAutomatic, Approval: v1alpha1.ApprovalManual, Retries: 6, Keep: 10},
			Job:   v1alpha1.JobSettings{TerminationGracePeriodSeconds: 3600},
		},
	}
	if change != nil {
		change(c)
	}
	s.create(c)
	s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "files"}, Data: map[string]string{"recast.yaml": "version: 1"}})
}

func (s *stage) theCluster() *v1alpha1.TalosCluster {
	s.t.Helper()
	var c v1alpha1.TalosCluster
	must.Do(s.t, s.api().Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: "lab"}, &c))
	return &c
}

func (s *stage) roll(name string) *v1alpha1.ImageRoll {
	s.t.Helper()
	var r v1alpha1.ImageRoll
	must.Do(s.t, s.api().Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &r))
	return &r
}

// jobs are the names of those that exist.
func (s *stage) jobs() (names []string) {
	s.t.Helper()
	var list batchv1.JobList
	must.Do(s.t, s.api().List(s.t.Context(), &list))
	for _, j := range list.Items {
		names = append(names, j.Name)
	}
	return names
}

// change changes an object as a person does.
func change[T client.Object](s *stage, o T, edit func(T)) {
	s.t.Helper()
	edit(o)
	must.Do(s.t, s.api().Update(s.t.Context(), o))
}

// settle reconciles everything and plays Jobs until nothing happens before that much time is over.
func (s *stage) settle(within time.Duration) {
	s.t.Helper()
	until := s.now.Add(within)
	for range 2000 {
		next, changed := s.round()
		if changed {
			continue
		}
		if next.IsZero() || next.After(until) {
			s.now = until
			return
		}
		s.now = next
	}
	s.t.Fatal("it does not settle")
}

// round is one reconcile of every object. It says when one of them wants to be looked at again.
func (s *stage) round() (next time.Time, changed bool) {
	s.t.Helper()
	before := s.version()
	var clusters v1alpha1.TalosClusterList
	var rolls v1alpha1.ImageRollList
	must.Do(s.t, errors.Join(s.api().List(s.t.Context(), &clusters), s.api().List(s.t.Context(), &rolls)))
	look := func(r ctrl.Result, err error) {
		if errors.Is(err, errKilled) {
			s.killAt, changed = 0, true // another one takes over
			return
		}
		must.Do(s.t, err)
		if at := s.now.Add(r.RequeueAfter); r.RequeueAfter > 0 && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, c := range clusters.Items {
		look((&Clusters{s.shared}).Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&c)}))
	}
	for _, r := range rolls.Items {
		look((&Rolls{s.shared}).Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&r)}))
	}
	s.playJobs()
	return next, changed || s.version() != before
}

// version is that of all objects together.
func (s *stage) version() string {
	s.t.Helper()
	var clusters v1alpha1.TalosClusterList
	var rolls v1alpha1.ImageRollList
	var jobs batchv1.JobList
	must.Do(s.t, errors.Join(s.api().List(s.t.Context(), &clusters), s.api().List(s.t.Context(), &rolls), s.api().List(s.t.Context(), &jobs)))
	var text strings.Builder
	for _, c := range clusters.Items {
		text.WriteString(c.Name + c.ResourceVersion + " ")
	}
	for _, r := range rolls.Items {
		text.WriteString(r.Name + r.ResourceVersion + " ")
	}
	for _, j := range jobs.Items {
		text.WriteString(j.Name + j.ResourceVersion + " ")
	}
	return text.String()
}

// playJobs ends the Jobs that run.
func (s *stage) playJobs() {
	s.t.Helper()
	var jobs batchv1.JobList
	must.Do(s.t, s.api().List(s.t.Context(), &jobs))
	for _, j := range jobs.Items {
		if len(j.Status.Conditions) > 0 {
			continue
		}
		task := must.Get(attempt.ReadTask(j.Spec.Template.Spec.Containers[0].Env[0].Value))(s.t)
		known := false
		for _, name := range s.ran {
			known = known || name == string(task.Kind)+" "+j.Name
		}
		if !known {
			s.ran = append(s.ran, string(task.Kind)+" "+j.Name)
		}
		if e := s.play(task); !e.runs {
			s.end(&j, task, e)
		}
	}
}

// end writes what the pod of a Job writes, and then what the Job controller does.
func (s *stage) end(j *batchv1.Job, task attempt.Task, e ending) {
	s.t.Helper()
	ctx := s.t.Context()
	now := metav1.NewTime(s.now)
	if task.Kind == attempt.Check && e.check != nil {
		c := s.theCluster()
		e.check.Job, e.check.For, e.check.Started, e.check.Ended = task.Job, task.For, &now, &now
		c.Status.Check, c.Status.Nodes = e.check, e.nodes
		c.Status.Talos = &v1alpha1.Versions{Wanted: task.TalosVersion}
		must.Do(s.t, s.api().Status().Update(ctx, c))
	}
	if task.Roll != "" {
		r := s.roll(task.Roll)
		if e.plan != nil {
			r.Status.Plan = e.plan
		}
		if e.message != "" {
			r.Status.Outcome = &v1alpha1.Outcome{Job: task.Job, ExitCode: e.code, Message: e.message}
		}
		if e.done != nil {
			r.Status.Progress = &v1alpha1.Progress{Done: int32(len(e.done)), Total: 2, Summary: fmt.Sprintf("%d/2", len(e.done)), Finished: e.done}
		}
		must.Do(s.t, s.api().Status().Update(ctx, r))
	}
	condition := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}
	if e.code != 0 {
		condition.Type = batchv1.JobFailed
		s.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: j.Name + "-x", Labels: map[string]string{batchv1.JobNameLabel: j.Name}},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: e.code}}}}},
		})
	}
	j.Status.Conditions = append(j.Status.Conditions, condition)
	must.Do(s.t, s.api().Status().Update(ctx, j))
}

// condition is "True Reason" of an object's condition.
func condition(list []metav1.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// TestCached: the cache has what the reconcilers read, and little else.
func TestCached(t *testing.T) {
	t.Parallel()
	kept := metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7", Annotations: map[string]string{"recast.dev/talos-target": "v1.13.9"}}
	full := kept.DeepCopy()
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	status := batchv1.JobStatus{Active: 1}
	options := Cached()
	byKind := func(o client.Object) cache.ByObject {
		for known, by := range options.ByObject {
			if cmp.Equal(known, o) {
				return by
			}
		}
		t.Fatalf("nothing is said of %T", o)
		return cache.ByObject{}
	}
	for name, c := range map[string]struct {
		strip      func(any) (any, error)
		full, kept client.Object
	}{
		"cluster": {options.DefaultTransform, &v1alpha1.TalosCluster{ObjectMeta: *full.DeepCopy()}, &v1alpha1.TalosCluster{ObjectMeta: kept}},
		"job": {
			byKind(&batchv1.Job{}).Transform,
			&batchv1.Job{ObjectMeta: *full.DeepCopy(), Spec: batchv1.JobSpec{Parallelism: new(int32(1))}, Status: status}, &batchv1.Job{ObjectMeta: kept, Status: status},
		},
		"ConfigMap": {
			byKind(&corev1.ConfigMap{}).Transform,
			&metav1.PartialObjectMetadata{ObjectMeta: *full.DeepCopy()},
			&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7"}},
		},
	} {
		got, err := c.strip(c.full)
		if diff := cmp.Diff(any(c.kept), got); diff != "" || err != nil {
			t.Errorf("%s (-want +got): %v\n%s", name, err, diff)
		}
	}
	made := job.New(job.Spec{Cluster: &v1alpha1.TalosCluster{ObjectMeta: kept}, Task: attempt.Task{Kind: attempt.Check}})
	if !byKind(&batchv1.Job{}).Label.Matches(labels.Set(made.Labels)) {
		t.Errorf("a Job with %v is not cached", made.Labels)
	}
}

// TestMetrics: what is scraped is what deploy's alerts and dashboard are made of.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{}).play)
	s.cluster(automatic)
	s.settle(time.Minute)
	registry := prometheus.NewPedanticRegistry()
	must.Do(t, registry.Register(Metrics{Objects: s.api(), Context: t.Context()}))
	families := must.Get(registry.Gather())(t)
	known := map[string][]string{}
	for _, m := range deploy.Metrics {
		if m.Help != "" { // others are not ours
			known[m.Name] = slices.Sorted(slices.Values(m.Labels))
		}
	}
	delete(known, "recast_fleetroll_members") // there is no fleet
	got := map[string][]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = labels
	}
	must.Equal(t, "metrics", known, got)
}
