package kubernetes

import (
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
)

func troubles() []trouble {
	return slices.Concat(gateTroubles(), drainTroubles(), serverTroubles(), nodeTroubles())
}

// drainTroubles are those of pods and volumes that can't be removed.
func drainTroubles() []trouble {
	return []trouble{
		{
			name: "a budget never allows", roll: soon, code: 1,
			begins: func(s *scene) func() {
				ends := s.pinned(nil)
				budgets := s.plane.Client.PolicyV1().PodDisruptionBudgets("default")
				_, err := budgets.Create(s.t.Context(), &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Name: "never", Namespace: "default"},
					Spec: policyv1.PodDisruptionBudgetSpec{
						MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "pinned"}},
					},
				}, metav1.CreateOptions{})
				s.check(err)
				s.until("the budget is known", func() bool {
					b, err := budgets.Get(s.t.Context(), "never", metav1.GetOptions{})
					return err == nil && b.Status.CurrentHealthy == 1
				})
				return func() {
					s.check(budgets.Delete(s.t.Context(), "never", metav1.DeleteOptions{}))
					ends()
				}
			},
			says:  []string{"PodDisruptionBudget default/never needs 1 healthy pods and has 1", "give the workload a replica to spare or loosen its budget"},
			after: (*scene).serves,
		},
		{
			name: "a pod ignores SIGTERM for longer than the drain may take", roll: soon, code: 1,
			begins: func(s *scene) func() { return s.pinned(stubborn(3600)) },
			says:   []string{"still terminating"},
			after:  (*scene).serves,
		},
		{
			name:   "a pod ignores SIGTERM until it is killed",
			begins: func(s *scene) func() { return s.pinned(stubborn(40)) },
			says:   []string{"pod default/pinned"},
		},
		{
			name: "an attachment never goes", roll: soon, code: 1,
			begins: func(s *scene) func() {
				use, remove := s.volume()
				ends := s.pinned(use)
				s.holdAttachments(true)
				return func() { s.holdAttachments(false); ends(); remove() }
			},
			says:  []string{"still attached: PersistentVolume far (claim default/far, driver csi.example.com)"},
			after: (*scene).serves,
		},
		{
			name: "an admission webhook denies evictions", roll: soon, code: 1,
			begins: func(s *scene) func() {
				ends, allow := s.pinned(nil), s.denyEvictions("not during the sale")
				return func() { allow(); ends() }
			},
			says:  []string{"not during the sale"},
			after: (*scene).serves,
		},
	}
}

// stubborn is a pod that ignores SIGTERM.
func stubborn(graceSeconds int64) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) {
		p.TerminationGracePeriodSeconds = &graceSeconds
		p.Containers[0].Command = []string{"sleep", "infinity"}
	}
}

// serves requires a node that could not be drained to be schedulable again.
func (s *scene) serves() {
	s.t.Helper()
	if n := s.node(); n == nil || n.Spec.Unschedulable || !nodeReady(n) {
		s.t.Errorf("%s was left out of service: %+v", target, n)
	}
}

// holdAttachments blocks the detaching of the worker's volumes, like a storage that does
// not answer, or unblocks it.
func (s *scene) holdAttachments(hold bool) {
	s.t.Helper()
	const finalizer = "example.com/storage-does-not-answer"
	attachments := s.plane.Client.StorageV1().VolumeAttachments()
	held := 0
	s.check(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		list, err := attachments.List(s.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, a := range list.Items {
			a.Finalizers = slices.DeleteFunc(a.Finalizers, func(f string) bool { return f == finalizer })
			if hold {
				a.Finalizers = append(a.Finalizers, finalizer)
			}
			if _, err := attachments.Update(s.t.Context(), &a, metav1.UpdateOptions{}); err != nil {
				return err
			}
			held++
		}
		return nil
	}))
	if hold && held == 0 {
		s.t.Error("no volume is attached")
	}
}

// serverTroubles are those of the control plane itself.
func serverTroubles() []trouble {
	return []trouble{
		{
			name: "the API server dies in the middle of a drain and comes back",
			begins: func(s *scene) func() {
				return s.pinned(func(p *corev1.PodSpec) {
					p.TerminationGracePeriodSeconds = new(int64(600))
					p.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 100}}}
				})
			},
			meanwhile: func(s *scene) {
				s.until("the pod is told to end", func() bool {
					return slices.ContainsFunc(s.pinnedPods(), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
				})
				s.plane.StopAPI()
				time.Sleep(2 * time.Second)
				s.plane.StartAPI()
				s.plane.WaitReady()
			},
		},
		{
			name: "the Node of a boot before is still called Ready", roll: briefly, code: 1,
			begins: func(s *scene) func() { return s.muteKubelet(true) },
			meanwhile: func(s *scene) {
				// The controllers would set the Node to Unknown after a while.
				s.check(s.plane.Controllers.Signal(syscall.SIGSTOP))
			},
			says: []string{"Kubernetes has not seen this boot yet"},
			after: func(s *scene) {
				if n := s.node(); n == nil || !nodeReady(n) {
					s.t.Errorf("the Node should look Ready, as of the boot before: %+v", n)
				}
				s.check(s.plane.Controllers.Signal(syscall.SIGCONT))
			},
		},
	}
}
