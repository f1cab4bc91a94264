package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
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
