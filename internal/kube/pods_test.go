package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStays(t *testing.T) {
	t.Parallel()
	of := func(api, kind string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: api, Kind: kind, Controller: new(true)}}}}
	}
	ended := of("apps/v1", "DaemonSet")
	ended.Status.Phase = corev1.PodFailed
	mirror := of("v1", "Node")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1a2b"}
	for name, c := range map[string]struct {
		pod           corev1.Pod
		want          string
		irreplaceable bool // after kubectl's own filter
	}{
		"bare":                  {corev1.Pod{}, "", true},
		"of a ReplicaSet":       {of("apps/v1", "ReplicaSet"), "", false},
		"of a DaemonSet":        {of("apps/v1", "DaemonSet"), "DaemonSet", true},
		"of one, ended":         {ended, "", false},
		"of OpenKruise's":       {of("apps.kruise.io/v1alpha1", "DaemonSet"), "DaemonSet", false},
		"a static one's mirror": {mirror, "static", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := stayingKind(&c.pod); got != c.want || irreplaceable(&c.pod) != c.irreplaceable {
				t.Errorf("%q, irreplaceable: %t", got, irreplaceable(&c.pod))
			}
		})
	}
}

func TestClaimsOf(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-x"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shared"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}}}
	if diff := cmp.Diff([]string{"shared", "agent-x-scratch"}, claimsOf(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStarted(t *testing.T) {
	t.Parallel()
	waits := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	lost := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown"}}
	for name, tc := range map[string]struct {
		containers []corev1.ContainerStatus
		want       bool
	}{
		"no status yet":               {nil, false},
		"being created":               {[]corev1.ContainerStatus{{State: waits("ContainerCreating")}}, false},
		"behind an init container":    {[]corev1.ContainerStatus{{State: waits("PodInitializing")}}, false},
		"created again on a new disk": {[]corev1.ContainerStatus{{State: waits("ContainerCreating"), LastTerminationState: lost}}, false},
		"crashes":                     {[]corev1.ContainerStatus{{State: waits("CrashLoopBackOff"), LastTerminationState: lost}}, true},
		"lacks its image":             {[]corev1.ContainerStatus{{State: waits("ImagePullBackOff")}}, true},
		"runs":                        {[]corev1.ContainerStatus{{State: waits("ContainerCreating")}, {State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}, true},
		"has ended once":              {[]corev1.ContainerStatus{{State: lost}}, true},
	} {
		p := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: tc.containers}}
		if got := started(&p); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses = tc.containers, nil
		if got := started(&p); got != tc.want {
			t.Errorf("%s, of an init container: %t", name, got)
		}
	}
}
