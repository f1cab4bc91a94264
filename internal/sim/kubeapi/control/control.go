// Package control acts on a lab's Kubernetes objects: a [Manager] runs the machines' kubelets and the cluster's
// controllers.
package control

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/internal/sim/kubeapi/linstor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/mayastor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
)

// Durations before the lab's speed is applied.
const (
	readyAfter    = 5 * time.Second   // from a kubelet's registration until its node is Ready
	lostAfter     = 40 * time.Second  // from a kubelet's silence until its node is Unknown
	evictAfter    = 300 * time.Second // from an unreachable node until its pods are deleted
	startAfter    = time.Second       // from a pod's scheduling until it runs and is ready
	endAfter      = time.Second       // from a pod's deletion until it is gone
	detachAfter   = 2 * time.Second   // from a volume's last pod until it is detached
	unmountsAfter = 6 * time.Minute   // the same while the kubelet is silent
)

// settle is the pause between a change and the next pass, so that a pass sees simultaneous changes together, in any
// order.
const settle = time.Millisecond

// Manager runs every kubelet and controller of one cluster in one goroutine: after each change it checks all objects
// and does what is due. Only the goroutine writes, so events are easy to follow.
type Manager struct {
	LINSTOR  *linstor.Controller
	Mayastor *mayastor.ControlPlane

	store    store.Store
	timers   *timers
	timeline *record.Timeline
	stages   []func(context.Context) error // of a pass
	settle   time.Duration                 // from a change to the pass
	kick     chan struct{}
	cancel   context.CancelFunc
	done     sync.WaitGroup

	reflected map[types.UID]reflection // of mirror pods
	degraded  map[string]bool          // OSDs whose data lacks something

	// refused gets the API's errors for kubelets that share the API with real controllers; nil: the lab is alone, and
	// an error is the lab's own fault.
	refused func(error)

	mu       sync.Mutex
	known    []string   // names that servers of iSCSI and NVMe-oF let in; nil: all
	kubelets []*kubelet // running kubelets, by start
	err      error      // what stopped the manager
}

// New starts the controllers. A second of the controllers takes 1/speed seconds. The controllers end with ctx or Close.
func New(ctx context.Context, s store.Store, speed float64, timeline *record.Timeline) (*Manager, error) {
	m := &Manager{store: s, timers: newTimers(speed), timeline: timeline, kick: make(chan struct{}, 1), settle: settle, reflected: map[types.UID]reflection{}, degraded: map[string]bool{}}
	m.LINSTOR, m.Mayastor = linstor.New(m.wake), mayastor.New(m.wake)
	m.stages = []func(context.Context) error{
		m.syncNodes, m.renewLeases, m.terminateNamespaces, m.collect, m.syncMirrorPods, m.syncDaemonSets, m.syncDeployments, m.syncReplicaSets,
		m.syncStatefulSets, m.schedule, m.runPods, m.evictFromLost, m.syncVolumes, m.syncBudgets, m.moveReplicas, m.healVolumes, m.checkCeph, m.stepStorage,
	}
	if err := m.start(ctx, append(watched(), longhorn.WithResource("nodes"), longhorn.WithResource("volumes"), longhorn.WithResource("replicas"), cephClusters)); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Manager) start(ctx context.Context, resources []schema.GroupVersionResource) error {
	ctx, m.cancel = context.WithCancel(ctx)
	var watches []store.Watch
	for _, r := range resources {
		w, err := m.store.Watch(ctx, r, "")
		if err != nil {
			m.cancel()
			return fmt.Errorf("watch %s: %w", r.Resource, err)
		}
		watches = append(watches, w)
	}
	for _, w := range watches {
		m.done.Go(func() { m.follow(ctx, w) })
	}
	m.done.Go(func() { m.run(ctx) })
	m.wake()
	return nil
}

func watched() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		store.Namespaces(), store.Nodes(), store.Pods(), store.Volumes(), store.Claims(), store.DaemonSets(), store.Deployments(),
		store.ReplicaSets(), store.StatefulSets(), store.Budgets(), store.Attachments(),
	}
}

// Close ends every controller and waits for its end. It returns the error that stopped the manager earlier, if any.
func (m *Manager) Close() error {
	m.cancel()
	m.done.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// follow turns changes of one resource into wake-ups.
func (m *Manager) follow(ctx context.Context, w store.Watch) {
	defer w.Stop()
	for {
		if _, err := w.Next(ctx); err != nil && !apierrors.IsResourceExpired(err) {
			return
		}
		m.wake()
	}
}

func (m *Manager) wake() {
	select {
	case m.kick <- struct{}{}:
	default: // awake already
	}
}

func (m *Manager) run(ctx context.Context) {
	alarm := time.NewTimer(m.settle)
	defer alarm.Stop()
	settling := true // the timer is about to fire; more changes don't delay it
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.kick:
			if !settling {
				alarm.Reset(m.settle)
				settling = true
			}
			continue
		case <-alarm.C:
			settling = false
		}
		next, ok, err := m.pass(ctx)
		if err != nil && ctx.Err() == nil {
			m.mu.Lock()
			m.err = err
			m.mu.Unlock()
			return
		}
		if ok {
			alarm.Reset(max(m.settle, time.Until(next)))
		}
	}
}

// took records a timer that has just ended.
func (m *Manager) took(node, what string, d time.Duration) {
	now := time.Now()
	m.timeline.Add(record.Delay{Node: node, What: what, From: now.Add(-time.Duration(float64(d) / m.timers.speed)), To: now})
}

// pass does the next step of everything and returns when a timer ends next. A write that conflicts with another
// client's write is left to the pass that the other write causes.
func (m *Manager) pass(ctx context.Context) (next time.Time, ok bool, err error) {
	m.timers.begin()
	for _, stage := range m.stages {
		err := stage(ctx)
		switch {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		case m.refused == nil:
			return time.Time{}, false, err
		case ctx.Err() == nil:
			m.refused(err)
		}
	}
	next, ok = m.timers.end()
	return next, ok, nil
}

// stepStorage lets storage systems that have objects of their own see which nodes run.
func (m *Manager) stepStorage(context.Context) error {
	up := m.running()
	runs := func(node string) bool { return up[node] != nil }
	m.LINSTOR.Step(runs, m.timers.due)
	m.Mayastor.Step(runs, m.timers.due)
	return nil
}

// alone reports whether no real controller acts on the objects.
func (m *Manager) alone() bool { return m.refused == nil }

// all lists a resource as its own type.
func all[T store.Object](ctx context.Context, s store.Store, r schema.GroupVersionResource) ([]T, error) {
	objects, _, err := s.List(ctx, r, "")
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.Resource, err)
	}
	list := make([]T, 0, len(objects))
	for _, o := range objects {
		list = append(list, o.(T))
	}
	return list, nil
}

// each acts on all objects of a resource, until an error.
func each[T store.Object](ctx context.Context, s store.Store, r schema.GroupVersionResource, act func(T) error) error {
	list, err := all[T](ctx, s, r)
	if err != nil {
		return err
	}
	for _, o := range list {
		if err := act(o); err != nil {
			return fmt.Errorf("%s %s/%s: %w", r.Resource, o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil
}

// setStatus writes one value into the status of a custom object.
func (m *Manager) setStatus(ctx context.Context, r schema.GroupVersionResource, u *unstructured.Unstructured, value any, field string) error {
	fresh := u.DeepCopy()
	if err := unstructured.SetNestedField(fresh.Object, value, "status", field); err != nil {
		return err
	}
	_, err := m.store.Update(ctx, r, fresh, store.Status)
	return err
}

// owned returns the objects that belong to the controller owner.
func owned[T store.Object](list []T, owner store.Object) []T {
	return slices.DeleteFunc(slices.Clone(list), func(o T) bool { return !metav1.IsControlledBy(o, owner) })
}

// timers are the running simulated durations. A timer that a pass does not ask for is dropped, because its reason is
// gone. Timers that end at the same moment end in the same pass.
type timers struct {
	speed   float64
	running map[string]*timer
	now     time.Time // of this pass
}

type timer struct {
	began time.Time
	end   time.Time
	asked bool // in this pass
}

func newTimers(speed float64) *timers { return &timers{speed: speed, running: map[string]*timer{}} }

func (t *timers) begin() {
	t.now = time.Now()
	for _, r := range t.running {
		r.asked = false
	}
}

// due reports whether d has passed since key was first asked for; d may differ from call to call.
func (t *timers) due(key string, d time.Duration) bool {
	r, ok := t.running[key]
	if !ok {
		r = &timer{began: t.now}
		t.running[key] = r
	}
	r.end, r.asked = r.began.Add(time.Duration(float64(d)/t.speed)), true
	return !t.now.Before(r.end)
}

// part returns how much of d has passed since key was first asked for, from 0 to 1.
func (t *timers) part(key string, d time.Duration) float64 {
	r, ok := t.running[key]
	if !ok {
		return 0
	}
	return min(1, float64(t.now.Sub(r.began))*t.speed/float64(d))
}

// again returns true the first time and then every d.
func (t *timers) again(key string, d time.Duration) bool {
	r, ok := t.running[key]
	if ok && t.now.Before(r.end) {
		r.asked = true
		return false
	}
	t.running[key] = &timer{end: t.now.Add(time.Duration(float64(d) / t.speed)), asked: true}
	return true
}

// end drops timers that the pass did not ask for and returns when the next timer ends; ok is false if no timer is left.
func (t *timers) end() (next time.Time, ok bool) {
	for key, r := range t.running {
		if !r.asked {
			delete(t.running, key)
			continue
		}
		if r.end.After(t.now) && (!ok || r.end.Before(next)) {
			next, ok = r.end, true
		}
	}
	return next, ok
}
