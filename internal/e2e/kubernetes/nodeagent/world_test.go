package nodeagent_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

const namespace = "default"

// world is a control plane and its nodes, seen by one test.
type world struct {
	*testing.T

	plane *plane.ControlPlane
	nodes []*nodeagent.Node
}

func (w world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// until waits at most three minutes for something.
func (w world) until(what string, so func() bool) {
	w.Helper()
	for range 1800 {
		if so() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.Fatalf("after three minutes it is not so that %s; pods: %s", what, w.describe())
}

// describe is all pods' statuses, and the Events.
func (w world) describe() string {
	list, err := w.plane.Client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, p := range list.Items {
		b, err := json.Marshal(p.Status)
		text += fmt.Sprintf("\n%s %s %v", p.Name, b, err)
	}
	events, err := w.plane.Client.CoreV1().Events(namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		return text + err.Error()
	}
	for _, e := range events.Items {
		text += fmt.Sprintf("\n%s %s: %s (%d times)", e.InvolvedObject.Name, e.Reason, e.Message, e.Count)
	}
	return text
}

// spec is a pod with one container, of the program.
func spec(args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "main", Image: "example.com/program:v1", Args: args}},
	}
}

// pod creates a pod.
func (w world) pod(name string, spec corev1.PodSpec) {
	w.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": name}}, Spec: spec}
	w.until("the default service account exists", func() bool {
		_, err := w.plane.Client.CoreV1().ServiceAccounts(namespace).Get(w.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	_, err := w.plane.Client.CoreV1().Pods(namespace).Create(w.Context(), p, metav1.CreateOptions{})
	w.check(err)
}

// get is the pod as it is now.
func (w world) get(name string) *corev1.Pod {
	w.Helper()
	p, err := w.plane.Client.CoreV1().Pods(namespace).Get(w.Context(), name, metav1.GetOptions{})
	w.check(err)
	return p
}

// ended waits for the end of a pod, and returns it and its container's.
func (w world) ended(name string, phase corev1.PodPhase) (*corev1.Pod, *corev1.ContainerStateTerminated) {
	w.Helper()
	var p *corev1.Pod
	var end *corev1.ContainerStateTerminated
	w.until(fmt.Sprintf("pod %s is %s", name, phase), func() bool {
		p = w.get(name)
		if s := p.Status.ContainerStatuses; len(s) > 0 {
			end = s[0].State.Terminated // for a moment, a kubelet may say of a pod without containers that they are being created
		}
		return p.Status.Phase == phase && end != nil
	})
	return p, end
}

// container waits until the container main of a pod runs on one of the nodes.
func (w world) container(pod string) (on *nodeagent.Node, c nodeagent.Container) {
	w.Helper()
	w.until("pod "+pod+" runs", func() bool {
		for _, n := range w.nodes {
			if found := n.Find(namespace, pod, "main"); found != nil && found.Running() {
				on, c = n, *found
				return true
			}
		}
		return false
	})
	return on, c
}

// output is that of the container main of a pod, which may have ended.
func (w world) output(pod string) string {
	w.Helper()
	for _, n := range w.nodes {
		if c := n.Find(namespace, pod, "main"); c != nil {
			return n.Output(*c)
		}
	}
	w.Fatalf("no node has had a container of pod %s", pod)
	return ""
}

// look runs a pod that tells what it sees.
func (w world) look(name string, spec corev1.PodSpec) (s seen) {
	w.Helper()
	w.pod(name, spec)
	w.ended(name, corev1.PodSucceeded)
	if err := json.Unmarshal([]byte(w.output(name)), &s); err != nil {
		w.Fatalf("%v:\n%s", err, w.output(name))
	}
	return s
}

// job creates a Job.
func (w world) job(name string, change func(*batchv1.JobSpec)) {
	w.Helper()
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	change(&j.Spec)
	_, err := w.plane.Client.BatchV1().Jobs(namespace).Create(w.Context(), j, metav1.CreateOptions{})
	w.check(err)
}

// jobIs waits for a condition of a Job, and returns the Job.
func (w world) jobIs(name string, condition batchv1.JobConditionType) (j *batchv1.Job, c batchv1.JobCondition) {
	w.Helper()
	w.until(fmt.Sprintf("Job %s is %s", name, condition), func() bool {
		var err error
		j, err = w.plane.Client.BatchV1().Jobs(namespace).Get(w.Context(), name, metav1.GetOptions{})
		w.check(err)
		i := slices.IndexFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == condition })
		if i >= 0 {
			c = j.Status.Conditions[i]
		}
		return i >= 0
	})
	return j, c
}

// podsOf are a Job's pods, the oldest first.
func (w world) podsOf(job string) []corev1.Pod {
	w.Helper()
	list, err := w.plane.Client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: "job-name=" + job})
	w.check(err)
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return list.Items
}
