// Package control acts on a lab's Kubernetes objects: a [Manager] runs the machines' kubelets and the cluster's
// controllers.
package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
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

func (m *Manager) setStatus(ctx context.Context, r schema.GroupVersionResource, u *unstructured.Unstructured, value any, field string) error {
	fresh := u.DeepCopy()
	if err := unstructured.SetNestedField(fresh.Object, value, "status", field); err != nil {
		return err
	}
	_, err := m.store.Update(ctx, r, fresh, store.Status)
	return err
}

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

// NodeInfo is a machine as its kubelet reports it.
type NodeInfo struct {
	Name           string
	UUID           string // SMBIOS, lower-case
	MachineID      string // "": the UUID
	BootID         string // new at every boot
	KubeletVersion string // "v1.35.4"
	OSImage        string // "Talos (v1.13.9)"
	KernelVersion  string
	Addresses      []string // IPs

	// Labels and Annotations are the machine's own, beside those that every kubelet sets.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
}

type kubelet struct {
	NodeInfo
	deaf       bool // it watches from a revision that etcd will only have again: it sees no change (etcd-io/etcd#16028)
	registered bool // a Node deleted later is not recreated before the next start
	reported   bool // the status at start was sent
	leased     bool // its Lease was renewed in this heartbeat

	static []StaticPod
	told   bool // it has reported its static pods; guarded, like pods, by Manager.mu
}

// NodeUp starts the kubelet of a machine that has booted. The kubelet registers the Node, or takes over an existing
// Node, which becomes Ready later.
func (m *Manager) NodeUp(info NodeInfo) {
	m.mu.Lock()
	m.kubelets = append(m.without(info.UUID), &kubelet{NodeInfo: info})
	m.mu.Unlock()
	m.wake()
}

// Restored says that etcd was replaced by an etcd of an earlier revision: running kubelets see no change of the new
// etcd until they are started again.
func (m *Manager) Restored() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.kubelets {
		k.deaf = k.reported // a kubelet that the API has never answered has no revision
	}
}

// NodeDown ends the kubelet of the machine with that UUID. Nobody tells the API, which must notice.
func (m *Manager) NodeDown(uuid string) {
	m.mu.Lock()
	m.kubelets = m.without(uuid)
	m.mu.Unlock()
	m.wake()
}

// without returns the kubelets of all other machines. The caller must hold m.mu.
func (m *Manager) without(uuid string) []*kubelet {
	return slices.DeleteFunc(slices.Clone(m.kubelets), func(k *kubelet) bool { return k.UUID == uuid })
}

// running returns the kubelets by node name. If several machines have the same name, the machine that was started
// last wins: it overwrites what the others write.
func (m *Manager) running() map[string]*kubelet {
	m.mu.Lock()
	defer m.mu.Unlock()
	byName := map[string]*kubelet{}
	for _, k := range m.kubelets {
		byName[k.Name] = k
	}
	return byName
}

func (m *Manager) syncNodes(ctx context.Context) error {
	kubelets := m.running()
	err := each(ctx, m.store, store.Nodes(), func(n *corev1.Node) error {
		defer delete(kubelets, n.Name)
		return m.syncNode(ctx, n, kubelets[n.Name])
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(kubelets)) {
		if k := kubelets[name]; !k.registered {
			if err := m.register(ctx, k); err != nil {
				return fmt.Errorf("register node %s: %w", name, err)
			}
		}
	}
	return nil
}

func (m *Manager) register(ctx context.Context, k *kubelet) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.Name}}
	k.mark(n)
	n.Spec.Taints = slices.Clone(k.Taints)
	if m.alone() { // else the API server's admission plugin TaintNodesByCondition does it
		n.Spec.Taints = append(n.Spec.Taints, taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule))
	}
	k.report(n)
	if _, err := m.store.Create(ctx, store.Nodes(), n); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	k.registered, k.reported = true, true
	m.wake()
	return nil
}

func (k *kubelet) mark(n *corev1.Node) {
	n.Labels = labels.Merge(labels.Merge(n.Labels, labels.Set{
		"beta.kubernetes.io/arch": "amd64", corev1.LabelArchStable: "amd64",
		"beta.kubernetes.io/os": "linux", corev1.LabelOSStable: "linux", corev1.LabelHostname: k.Name,
	}), k.Labels)
	n.Annotations = labels.Merge(labels.Merge(n.Annotations, labels.Set{
		"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}), k.Annotations)
}

// report sets the status that a kubelet sends at start.
func (k *kubelet) report(n *corev1.Node) {
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: cmp.Or(k.MachineID, k.UUID), SystemUUID: k.UUID, BootID: k.BootID,
		KernelVersion: k.KernelVersion, OSImage: k.OSImage, KubeletVersion: k.KubeletVersion,
		ContainerRuntimeVersion: "containerd://2.1.4", OperatingSystem: "linux", Architecture: "amd64",
	}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	n.Status.Addresses = nil
	for _, a := range k.Addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.Name})
	setCondition(n, corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "container runtime network not ready")
	setCondition(n, corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	setCondition(n, corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	setCondition(n, corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available")
}

func (m *Manager) syncNode(ctx context.Context, n *corev1.Node, k *kubelet) error {
	ready := readiness(n)
	current := k != nil && k.reported && n.Status.NodeInfo.BootID == k.BootID && n.Status.NodeInfo.SystemUUID == k.UUID
	if current && ready == corev1.ConditionTrue && (!m.alone() || equality.Semantic.DeepEqual(n.Spec.Taints, conditionTaints(n))) {
		return nil // the usual case
	}
	fresh := n.DeepCopy()
	switch {
	case k == nil && !m.alone():
		return nil // the node-lifecycle controller notices
	case k == nil && ready != corev1.ConditionUnknown:
		if m.timers.due("lost/"+string(n.UID), lostAfter) {
			setCondition(fresh, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
		}
	case k == nil:
	case n.Status.NodeInfo.BootID != k.BootID || n.Status.NodeInfo.SystemUUID != k.UUID:
		k.registered, k.reported = true, true
		k.mark(fresh)
		fresh.Spec.Taints = join(fresh.Spec.Taints, k.Taints)
		k.report(fresh)
	case !k.reported: // the kubelet was only restarted
		k.registered, k.reported = true, true
		k.mark(fresh)
		k.report(fresh)
	case ready != corev1.ConditionTrue && m.timers.due("ready/"+string(n.UID)+k.BootID+k.KubeletVersion, readyAfter):
		m.took(n.Name, "ready", readyAfter)
		setCondition(fresh, corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	}
	if m.alone() {
		fresh.Spec.Taints = conditionTaints(fresh)
	}
	return m.writeNode(ctx, n, fresh)
}

func (m *Manager) writeNode(ctx context.Context, old, fresh *corev1.Node) error {
	stored := store.Object(old)
	if !equality.Semantic.DeepEqual(old.Spec, fresh.Spec) || !equality.Semantic.DeepEqual(old.ObjectMeta, fresh.ObjectMeta) {
		var err error
		if stored, err = m.store.Update(ctx, store.Nodes(), fresh, store.Main); err != nil {
			return err
		}
	}
	if equality.Semantic.DeepEqual(old.Status, fresh.Status) {
		return nil
	}
	fresh.ResourceVersion = stored.GetResourceVersion()
	_, err := m.store.Update(ctx, store.Nodes(), fresh, store.Status)
	return err
}

// readiness returns the node's Ready condition, False if the node has no such condition yet.
func readiness(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionFalse
}

func setCondition(n *corev1.Node, t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) {
	now := metav1.Now().Rfc3339Copy()
	c := corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == t })
	n.Status.Conditions = append(n.Status.Conditions, c)
}

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

// conditionTaints returns the node's taints, with those for its state updated: cordoned, not ready, unreachable.
func conditionTaints(n *corev1.Node) []corev1.Taint {
	var due []corev1.Taint
	switch readiness(n) {
	case corev1.ConditionTrue:
	case corev1.ConditionUnknown:
		due = append(due,
			taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule),
			taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute))
	default:
		due = append(due, taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule))
	}
	if n.Spec.Unschedulable {
		due = append(due, taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule))
	}
	var taints []corev1.Taint
	for _, t := range n.Spec.Taints {
		switch t.Key {
		case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable:
		default:
			taints = append(taints, t)
		}
	}
	return append(taints, due...)
}

func join(have, more []corev1.Taint) []corev1.Taint {
	for _, t := range more {
		if !slices.ContainsFunc(have, func(h corev1.Taint) bool { return h.MatchTaint(&t) }) {
			have = append(have, t)
		}
	}
	return have
}

func tolerated(pod *corev1.Pod, taints []corev1.Taint) bool {
	for _, t := range taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(tol corev1.Toleration) bool { return tolerates(tol, t) }) {
			return false
		}
	}
	return true
}

func tolerates(tol corev1.Toleration, t corev1.Taint) bool {
	if tol.Effect != "" && tol.Effect != t.Effect || tol.Key != "" && tol.Key != t.Key {
		return false
	}
	if tol.Operator == corev1.TolerationOpExists {
		return true
	}
	return tol.Key != "" && tol.Value == t.Value
}

const (
	heartbeat     = 10 * time.Second // between renewals of a node's Lease
	leaseDuration = 40               // seconds
	// crowded is the settle pause for a real server, where every pass costs requests.
	crowded = 50 * time.Millisecond
)

// NewKubelets starts only the kubelets and the attachers of the CSI drivers: real controllers work on the same objects.
// A kubelet continues after errors of the API; refused gets them.
func NewKubelets(ctx context.Context, s store.Store, speed float64, refused func(error)) (*Manager, error) {
	m := &Manager{store: s, timers: newTimers(speed), kick: make(chan struct{}, 1), settle: crowded, refused: refused, reflected: map[types.UID]reflection{}}
	m.stages = []func(context.Context) error{m.syncNodes, m.renewLeases, m.syncMirrorPods, m.runPods, m.attachVolumes}
	if err := m.start(ctx, []schema.GroupVersionResource{store.Nodes(), store.Pods(), store.Attachments()}); err != nil {
		return nil, err
	}
	return m, nil
}

// renewLeases renews the Leases of running kubelets: the Lease of a new kubelet at once, all Leases together every
// heartbeat.
func (m *Manager) renewLeases(ctx context.Context) error {
	kubelets := m.running()
	if len(kubelets) > 0 && m.timers.again("leases", heartbeat) {
		for _, k := range kubelets {
			k.leased = false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(kubelets)) {
		k := kubelets[name]
		if k.leased {
			continue
		}
		err := m.renewLease(ctx, name)
		if k.leased = err == nil; err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("lease of node %s: %w", name, err)
		}
	}
	return nil
}

// renewLease renews a Lease, or makes the Lease if it is missing. A kubelet without a Node makes no Lease
// (SetNodeOwnerFunc in its util/nodelease.go).
func (m *Manager) renewLease(ctx context.Context, node string) error {
	now := metav1.NowMicro()
	o, err := m.store.Get(ctx, store.Leases(), corev1.NamespaceNodeLease, node)
	if apierrors.IsNotFound(err) {
		owner, err := m.store.Get(ctx, store.Nodes(), "", node)
		if err != nil {
			return err
		}
		_, err = m.store.Create(ctx, store.Leases(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: node, Namespace: corev1.NamespaceNodeLease,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner.GetUID()}},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &node, LeaseDurationSeconds: new(int32(leaseDuration)), RenewTime: &now,
			},
		})
		return err
	}
	if err != nil {
		return err
	}
	lease := o.(*coordinationv1.Lease).DeepCopy()
	lease.Spec.RenewTime = &now
	_, err = m.store.Update(ctx, store.Leases(), lease, store.Main)
	return err
}

// attachVolumes does what the external-attacher of every CSI driver does: it attaches what the attach-detach
// controller requests, and detaches what that controller has released.
func (m *Manager) attachVolumes(ctx context.Context) error {
	return each(ctx, m.store, store.Attachments(), func(a *storagev1.VolumeAttachment) error { return m.attachVolume(ctx, a) })
}

func (m *Manager) attachVolume(ctx context.Context, a *storagev1.VolumeAttachment) error {
	finalizer := "external-attacher/" + a.Spec.Attacher
	fresh := a.DeepCopy()
	switch held := slices.Contains(a.Finalizers, finalizer); {
	case a.DeletionTimestamp != nil && held && m.timers.due("detach/"+string(a.UID), detachAfter):
		m.took(a.Spec.NodeName, "detach", detachAfter)
		fresh.Finalizers = slices.DeleteFunc(fresh.Finalizers, func(f string) bool { return f == finalizer })
		_, err := m.store.Update(ctx, store.Attachments(), fresh, store.Main)
		return err
	case a.DeletionTimestamp != nil || a.Status.Attached:
		return nil
	case !held:
		fresh.Finalizers = append(fresh.Finalizers, finalizer)
		o, err := m.store.Update(ctx, store.Attachments(), fresh, store.Main)
		if err != nil {
			return err
		}
		fresh = o.(*storagev1.VolumeAttachment).DeepCopy()
	}
	fresh.Status.Attached = true
	_, err := m.store.Update(ctx, store.Attachments(), fresh, store.Status)
	return err
}
