package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

const (
	heartbeat     = 10 * time.Second // between renewals of a node's Lease
	leaseDuration = 40               // seconds
	// crowded is settle for a real server, where every pass costs requests.
	crowded = 50 * time.Millisecond
)

// NewKubelets starts only the kubelets and the attachers of the CSI drivers: real
// controllers work on the same objects. A kubelet continues after errors of the API;
// refused gets them.
func NewKubelets(ctx context.Context, s store.Store, speed float64, refused func(error)) (*Manager, error) {
	m := &Manager{store: s, timers: newTimers(speed), kick: make(chan struct{}, 1), settle: crowded, refused: refused, reflected: map[types.UID]reflection{}}
	m.stages = []func(context.Context) error{m.syncNodes, m.renewLeases, m.syncMirrorPods, m.runPods, m.attachVolumes}
	if err := m.start(ctx, []schema.GroupVersionResource{store.Nodes(), store.Pods(), store.Attachments()}); err != nil {
		return nil, err
	}
	return m, nil
}

// renewLeases renews the Leases of running kubelets: that of a new one at once, all of them
// together every heartbeat.
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

// renewLease makes the Lease if it is missing. A kubelet without a Node makes none
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

// attachVolumes is the external-attacher of every CSI driver: it attaches what the
// attach-detach controller requests, and detaches what that has released.
func (m *Manager) attachVolumes(ctx context.Context) error {
	attachments, err := all[*storagev1.VolumeAttachment](ctx, m.store, store.Attachments())
	if err != nil {
		return err
	}
	for _, a := range attachments {
		if err := m.attachVolume(ctx, a); err != nil {
			return fmt.Errorf("attachment %s: %w", a.Name, err)
		}
	}
	return nil
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
