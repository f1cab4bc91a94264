package kube_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// What an OSD restores from its own device at every start is no loss.
func TestLocalDataOfOSDs(t *testing.T) {
	t.Parallel()
	data := func(daemons string) []cluster.LocalData {
		return []cluster.LocalData{{Name: "rook/var/lib/rook", What: "Rook's directory of CephCluster rook-ceph/ceph (" + daemons + ")", Path: "/var/lib/rook"}}
	}
	monData := map[string]string{"ceph-daemon-data": "/var/lib/rook/mon-a/data"}
	onClaim := osdPod("raw", "/dev/sdb", map[string]string{"set1-data-0-bridge": "/var/lib/rook/rook-ceph/set1-data-0"})
	onClaim.Spec.Volumes = append(onClaim.Spec.Volumes, corev1.Volume{Name: "set1-data-0", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "set1-data-0"},
	}})
	onClaimOldMode := onClaim.DeepCopy()
	onClaimOldMode.Spec.InitContainers[0].Name = "blkdevmapper" // without an activating container, in the mode lvm
	cases := map[string]struct {
		pods    []*corev1.Pod
		drained bool // the pods are gone, their Deployments are not
		want    []cluster.LocalData
	}{
		"monitor on a claim, with sockets": {
			pods: []*corev1.Pod{daemonPod("rook-ceph", "rook-ceph-mon", "wk1", map[string]string{"ceph-daemons-sock-dir": "/var/lib/rook/exporter"})},
		},
		"OSD, raw":           {pods: []*corev1.Pod{osdPod("raw", "/dev/sdb", osdVolumes)}},
		"OSD, raw, drained":  {pods: []*corev1.Pod{osdPod("raw", "/dev/sdb", osdVolumes)}, drained: true},
		"OSD, LVM":           {pods: []*corev1.Pod{osdPod("lvm", "/dev/ceph-1/osd-block-1", osdVolumes)}},
		"OSD, raw, on claim": {pods: []*corev1.Pod{onClaim}},
		"OSD, raw, and a monitor": {
			pods: []*corev1.Pod{osdPod("raw", "/dev/sdb", osdVolumes), daemonPod("rook-ceph", "rook-ceph-mon", "wk1", monData)},
			want: data("rook-ceph-mon"),
		},
		"OSD that nothing activates":   {pods: []*corev1.Pod{onClaimOldMode}, want: data("rook-ceph-osd")},
		"OSD of an unknown mode":       {pods: []*corev1.Pod{osdPod("seastore", "/dev/sdb", osdVolumes)}, want: data("rook-ceph-osd")},
		"OSD of no mode":               {pods: []*corev1.Pod{osdPod("", "/dev/sdb", osdVolumes)}, want: data("rook-ceph-osd")},
		"OSD in a file":                {pods: []*corev1.Pod{osdPod("raw", "/dev/loop0", osdVolumes)}, want: data("rook-ceph-osd")},
		"OSD with a directory of data": {pods: []*corev1.Pod{osdPod("raw", "/dev/sdb", map[string]string{"data": "/var/lib/rook/osd0"})}, want: data("rook-ceph-osd")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, "wk1", "wk2")
				time.Sleep(10 * time.Second)
				add := l.install(t, "ceph.rook.io", "v1", "cephclusters", "CephCluster", true)
				add("rook-ceph", "ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": "/var/lib/rook"}})
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

// osdVolumes are Rook's volumes for an OSD on a device of the node (rook,
// pkg/operator/ceph/cluster/osd/spec.go, makeDeployment and
// getActivateOSDInitContainer).
var osdVolumes = map[string]string{
	"rook-data": "/var/lib/rook", "activate-osd": "/var/lib/rook/rook-ceph/f_1", "ceph-daemons-sock-dir": "/var/lib/rook/exporter",
	"rook-ceph-log": "/var/lib/rook/rook-ceph/log", "rook-ceph-crash": "/var/lib/rook/rook-ceph/crash",
	"devices": "/dev", "run-udev": "/run/udev",
}

// osdPod is an OSD on wk1 in a mode of ceph-volume, whose first container activates it.
func osdPod(mode, device string, volumes map[string]string) *corev1.Pod {
	p := daemonPod("rook-ceph", "rook-ceph-osd", "wk1", volumes)
	env := []corev1.EnvVar{{Name: "ROOK_BLOCK_PATH", Value: device}, {Name: "ROOK_CV_MODE", Value: mode}}
	p.Spec.Containers[0].Name, p.Spec.Containers[0].Env = "osd", env
	activate := corev1.Container{Name: "activate", Image: "x"}
	for _, name := range []string{"activate-osd", "set1-data-0-bridge"} {
		if volumes[name] != "" {
			activate.VolumeMounts = append(activate.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/var/lib/ceph/osd/ceph-0"})
		}
	}
	p.Spec.InitContainers = []corev1.Container{activate}
	return p
}

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
