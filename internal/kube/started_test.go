package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
