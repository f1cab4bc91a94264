package kube_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// install serves a custom resource and returns how to add one.
func (l *lab) install(t *testing.T, group, version, resource, kind string, namespaced bool) func(namespace, name string, content map[string]any) {
	t.Helper()
	r := store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource},
		Kind:                 kind, Namespaced: namespaced, Status: true,
	}
	l.Define(r)
	return func(namespace, name string, content map[string]any) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{}}
		maps.Copy(u.Object, content)
		u.SetGroupVersionKind(r.GVK())
		u.SetNamespace(namespace)
		if u.GetName() == "" {
			u.SetName(name)
		}
		l.put(t, r.GroupVersionResource, u)
	}
}

func TestLocalDataOfRook(t *testing.T) {
	t.Parallel()
	data := func(daemons string) []cluster.LocalData {
		return []cluster.LocalData{{Name: "rook/var/lib/rook", What: "Rook's directory of CephCluster rook-ceph/ceph (" + daemons + ")", Path: "/var/lib/rook"}}
	}
	monData := map[string]string{"ceph-daemon-data": "/var/lib/rook/mon-a/data", "rook-ceph-log": "/var/lib/rook/rook-ceph/log"}
	osdData := map[string]string{"activate-osd": "/var/lib/rook/rook-ceph/f_1"}
	finished := daemonPod("rook-ceph", "rook-ceph-osd", "wk1", osdData)
	finished.Status.Phase = corev1.PodSucceeded
	cases := map[string]struct {
		dir     string
		pods    []*corev1.Pod
		drained bool // the pods are gone, their Deployments are not
		want    []cluster.LocalData
	}{
		"monitor": {dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk1", monData)}, want: data("rook-ceph-mon")},
		"monitor and OSD": {
			dir:  "/var/lib/rook/",
			pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-osd", "wk1", osdData), daemonPod("rook-ceph", "rook-ceph-mon", "wk1", monData)},
			want: data("rook-ceph-mon, rook-ceph-osd"),
		},
		"drained": {
			dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk1", monData)}, drained: true,
			want: data("rook-ceph-mon"),
		},
		"drained, of another node": {dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk2", monData)}, drained: true},
		"on another node":          {dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk2", monData)}},
		"of another cluster":       {dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("default", "rook-ceph-mon", "wk1", monData)}},
		"another daemon":           {dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mgr", "wk1", monData)}},
		"monitor on a claim": {
			dir:  "/var/lib/rook",
			pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk1", map[string]string{"rook-ceph-log": "/var/lib/rook/rook-ceph/log"})},
		},
		"a neighbour's directory": {
			dir: "/var/lib/rook", pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk1", map[string]string{"x": "/var/lib/rook2"})},
		},
		"finished":      {dir: "/var/lib/rook", pods: []*corev1.Pod{finished}},
		"external Ceph": {pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk1", monData)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, "wk1", "wk2")
				time.Sleep(10 * time.Second)
				add := l.install(t, "ceph.rook.io", "v1", "cephclusters", "CephCluster", true)
				add("rook-ceph", "ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": tc.dir}})
				for _, p := range tc.pods {
					if tc.drained {
						l.put(t, store.Deployments(), tied(p))
					} else {
						l.put(t, store.Pods(), p)
					}
				}
				if diff := cmp.Diff(tc.want, l.localData(t, l.client(t, "system:masters"), "wk1")); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// tied is the Deployment of a daemon's pod, without any pod.
func tied(p *corev1.Pod) *appsv1.Deployment {
	spec := p.Spec
	spec.NodeSelector, spec.NodeName = map[string]string{hostname: spec.NodeName}, ""
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: spec},
		},
	}
}
