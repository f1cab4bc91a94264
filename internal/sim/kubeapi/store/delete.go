package store

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Delete removes an object, or marks it if something must happen first: a kubelet ends the
// pods of its node, finalizers must be removed, and a namespace's controller deletes its
// content.
func (m *Memory) Delete(_ context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{namespace, name}
	old, err := m.get(r, k)
	if err != nil {
		return nil, err
	}
	if err := preconditions(r, old, o.Preconditions); err != nil {
		return nil, err
	}
	fresh := duplicate(old)
	grace := gracePeriod(old, o)
	ns, _ := fresh.(*corev1.Namespace)
	if grace == 0 && len(old.GetFinalizers()) == 0 && (ns == nil || len(ns.Spec.Finalizers) == 0) {
		m.remove(r, k, fresh, old)
		return fresh, nil
	}
	deadline := metav1.Time{Time: time.Now().Add(time.Duration(grace) * time.Second).Truncate(time.Second)}
	if at := old.GetDeletionTimestamp(); at != nil && !deadline.Before(at) {
		return old, nil
	}
	fresh.SetDeletionTimestamp(&deadline)
	fresh.SetDeletionGracePeriodSeconds(&grace)
	if ns != nil {
		ns.Status.Phase = corev1.NamespaceTerminating
	}
	m.put(r, watch.Modified, fresh, old)
	return fresh, nil
}

func preconditions(r schema.GroupVersionResource, old Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != old.GetUID() {
		return apierrors.NewConflict(r.GroupResource(), old.GetName(),
			fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", *p.UID, old.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
		return apierrors.NewConflict(r.GroupResource(), old.GetName(),
			fmt.Errorf("precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s",
				*p.ResourceVersion, old.GetResourceVersion()))
	}
	return nil
}

// gracePeriod is the object's grace period in seconds.
func gracePeriod(obj Object, o metav1.DeleteOptions) int64 {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return 0
	}
	if o.GracePeriodSeconds != nil {
		return max(0, *o.GracePeriodSeconds)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return *s
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}
