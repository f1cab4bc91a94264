package table_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/recast-sh/recast/internal/sim/kubeapi/table"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestPods is the row of a pod in every state that it tells apart: READY, STATUS, RESTARTS. That
// these are Kubernetes' own is what make e2e-k8s compares, for all kinds.
func TestPods(t *testing.T) {
	t.Parallel()
	ended := func(code, signal int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Signal: signal, Reason: reason}}
	}
	waits := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	hourAgo := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-time.Hour))}}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	type containers = []corev1.ContainerStatus
	for want, s := range map[string]corev1.PodStatus{
		"0/3 ImagePullBackOff 0":                {ContainerStatuses: containers{{State: waits("ImagePullBackOff")}}},
		"0/3 CrashLoopBackOff 3 (60m ago)":      {ContainerStatuses: containers{{State: waits("CrashLoopBackOff"), RestartCount: 3, LastTerminationState: hourAgo}}},
		"0/3 Completed 0":                       {Phase: corev1.PodSucceeded, ContainerStatuses: containers{{State: ended(0, 0, "Completed")}}},
		"0/3 ExitCode:2 0":                      {Phase: corev1.PodFailed, ContainerStatuses: containers{{State: ended(2, 0, "")}}},
		"0/3 Signal:9 0":                        {Phase: corev1.PodFailed, ContainerStatuses: containers{{State: ended(0, 9, "")}}},
		"0/3 Evicted 0":                         {Phase: corev1.PodFailed, Reason: "Evicted"},
		"1/3 NotReady 0":                        {Phase: corev1.PodRunning, ContainerStatuses: containers{{State: ended(0, 0, "Completed")}, {Ready: true, State: runs}}},
		"1/3 Running 0":                         {Phase: corev1.PodRunning, Conditions: ready, ContainerStatuses: containers{{State: ended(0, 0, "Completed")}, {Ready: true, State: runs}}},
		"0/3 Error 0":                           {Phase: corev1.PodRunning, ContainerStatuses: containers{{State: ended(0, 0, "Completed")}, {State: ended(1, 0, "Error")}}},
		"0/3 Init:0/2 0":                        {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: runs}}},
		"0/3 Init:1/2 0":                        {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: ended(0, 0, "")}, {Name: "s", State: waits("PodInitializing")}}},
		"0/3 Init:ErrImagePull 1":               {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: waits("ErrImagePull"), RestartCount: 1}}},
		"0/3 Init:ExitCode:3 0":                 {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: ended(3, 0, "")}}},
		"0/3 Init:Signal:9 0":                   {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: ended(137, 9, "")}}},
		"0/3 Init:Error 0":                      {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: ended(1, 0, "Error")}}},
		"2/3 Running 3 (60m ago)":               {Phase: corev1.PodRunning, InitContainerStatuses: containers{{Name: "i", State: ended(0, 0, ""), RestartCount: 7}, {Name: "s", Ready: true, Started: new(true), State: runs, RestartCount: 2, LastTerminationState: hourAgo}}, ContainerStatuses: containers{{Ready: true, State: runs, RestartCount: 1}}},
		"0/3 SchedulingGated 0":                 {Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Reason: corev1.PodReasonSchedulingGated}}},
		"leaves: 0/3 Terminating 0":             {Phase: corev1.PodRunning},
		"leaves: 0/3 Unknown 0":                 {Phase: corev1.PodRunning, Reason: "NodeLost"},
		"leaves: 0/3 Succeeded 0":               {Phase: corev1.PodSucceeded},
		"0/3 Pending 0":                         {Phase: corev1.PodPending, ContainerStatuses: containers{{State: waits("")}}},
		"0/3 Init:CrashLoopBackOff 4 (60m ago)": {Phase: corev1.PodPending, InitContainerStatuses: containers{{Name: "i", State: waits("CrashLoopBackOff"), RestartCount: 4, LastTerminationState: hourAgo}}},
	} {
		p := &corev1.Pod{Status: s, Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "a"}, {Name: "b"}},
			InitContainers: []corev1.Container{{Name: "i"}, {Name: "s", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
		}}
		leaves := ""
		if len(want) > 6 && want[:6] == "leaves" {
			leaves, p.DeletionTimestamp = "leaves: ", new(metav1.Now())
		}
		made := must.Get(table.Of(&corev1.Pod{}, []runtime.Object{p}))(t)
		cells := made.Rows[0].Cells
		must.Equal(t, "got", want, leaves+fmt.Sprint(cells[1], " ", cells[2], " ", cells[3]))
		completed := s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed
		if completed != (len(made.Rows[0].Conditions) == 1) || len(cells) != len(made.ColumnDefinitions) {
			t.Errorf("%s: conditions %v, %d cells in %d columns", want, made.Rows[0].Conditions, len(cells), len(made.ColumnDefinitions))
		}
	}
}
