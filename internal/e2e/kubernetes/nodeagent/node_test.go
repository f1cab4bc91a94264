package nodeagent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

// TestNode runs pods on two nodes of a real control plane.
func TestNode(t *testing.T) {
	p := plane.Start(t)
	w := world{T: t, plane: p}
	for _, name := range []string{"one", "two"} {
		w.nodes = append(w.nodes, nodeagent.Start(t, p.Node(name), name, nodeagent.Options{
			Labels: map[string]string{"example.com/rack": name},
			Images: map[string]nodeagent.Image{"example.com/program:v1": programImage(t)},
		}))
	}
	w.registered()
	t.Run("pods", func(t *testing.T) {
		for name, test := range map[string]func(world){
			"a Job succeeds":                      world.jobSucceeds,
			"a Job fails by its code":             world.jobFails,
			"a container is killed":               world.killed,
			"a container runs out of memory":      world.oomKilled,
			"an evicted pod is replaced":          world.evicted,
			"a pod that does not end is killed":   world.stubborn,
			"init containers":                     world.initContainers,
			"isolation":                           world.isolation,
			"the API server from the inside":      world.api,
			"probes and hooks":                    world.probes,
			"a missing Secret":                    world.missingSecret,
			"a volume of a missing ConfigMap":     world.missingVolume,
			"root where it may not be":            world.rootRefused,
			"a program that is not there":         world.noProgram,
			"an image that comes later":           world.lateImage,
			"a Deployment's container is renewed": world.restarted,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(world{T: t, plane: w.plane, nodes: w.nodes})
			})
		}
	})
	t.Run("a node dies", func(t *testing.T) { world{T: t, plane: w.plane, nodes: w.nodes}.nodeDies() })
}

func (w world) registered() {
	w.Helper()
	n, err := w.plane.Client.CoreV1().Nodes().Get(w.Context(), "one", metav1.GetOptions{})
	w.check(err)
	if n.Labels[corev1.LabelHostname] != "one" || n.Labels[corev1.LabelOSStable] != "linux" || n.Labels["example.com/rack"] != "one" {
		w.Errorf("labels %v", n.Labels)
	}
	if a := n.Status.Allocatable; a.Cpu().Value() != 4 || a.Memory().Value() != 8<<30 || a.Pods().Value() != 50 {
		w.Errorf("allocatable %v", a)
	}
	w.until("the node has a Lease", func() bool {
		l, err := w.plane.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(w.Context(), "one", metav1.GetOptions{})
		return err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == "one"
	})
}

func (w world) jobSucceeds() {
	w.job("succeeds", func(j *batchv1.JobSpec) { j.Template.Spec = spec("exit", "0", "all", "is", "well") })
	w.jobIs("succeeds", batchv1.JobComplete)
	pods := w.podsOf("succeeds")
	if len(pods) != 1 {
		w.Fatalf("%d pods, want 1", len(pods))
	}
	_, end := w.ended(pods[0].Name, corev1.PodSucceeded)
	if end.Reason != "Completed" || end.Message != "all is well" || end.StartedAt.IsZero() || end.FinishedAt.IsZero() {
		w.Errorf("the container has ended as %+v", end)
	}
	if got := w.output(pods[0].Name); got != "exits with 0\n" {
		w.Errorf("output %q", got)
	}
}

// failOn fails a Job if its container ends with that code; a pod that was evicted does not count.
func failOn(code int32) *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{
			Action:          batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
		},
		{
			Action:      batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code}},
		},
	}}
}

func (w world) jobFails() {
	w.job("fails", func(j *batchv1.JobSpec) {
		j.Template.Spec = spec("exit", "4")
		j.PodReplacementPolicy, j.PodFailurePolicy = new(batchv1.Failed), failOn(4)
	})
	j, c := w.jobIs("fails", batchv1.JobFailed)
	if c.Reason != batchv1.JobReasonPodFailurePolicy || !strings.Contains(c.Message, "failed with exit code 4 matching FailJob rule") {
		w.Errorf("the Job has failed with %s: %s", c.Reason, c.Message)
	}
	if j.Status.Failed != 1 {
		w.Errorf("%d pods have failed, want 1", j.Status.Failed)
	}
}

func (w world) killed() {
	w.pod("killed", spec("run", "0"))
	n, c := w.container("killed")
	n.Signal(c, syscall.SIGKILL)
	_, end := w.ended("killed", corev1.PodFailed)
	if end.ExitCode != 137 || end.Reason != "Error" {
		w.Errorf("the container has ended as %+v", end)
	}
}

func (w world) oomKilled() {
	w.pod("oom", spec("run", "0"))
	n, c := w.container("oom")
	n.OOMKill(c)
	_, end := w.ended("oom", corev1.PodFailed)
	if end.ExitCode != 137 || end.Reason != "OOMKilled" {
		w.Errorf("the container has ended as %+v", end)
	}
}

// evicted evicts the pod of a Job, whose program then ends with the code that would fail the Job.
func (w world) evicted() {
	w.job("evicted", func(j *batchv1.JobSpec) {
		j.Template.Spec = spec("run", "4")
		j.BackoffLimit = new(int32(0))
		j.PodReplacementPolicy, j.PodFailurePolicy = new(batchv1.Failed), failOn(4)
	})
	w.until("the Job has a pod", func() bool { return len(w.podsOf("evicted")) == 1 })
	first := w.podsOf("evicted")[0].Name
	n, c := w.container(first)
	w.until("the program listens", func() bool { return strings.Contains(n.Output(c), "runs") })
	seen := make(chan corev1.Pod, 1)
	go func() { defer close(seen); w.watch(first, seen) }()
	w.check(nodeagent.Evict(w.Context(), w.plane.Client, namespace, first))
	w.until("the pod is gone", func() bool {
		_, err := w.plane.Client.CoreV1().Pods(namespace).Get(w.Context(), first, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	last := <-seen
	if last.Status.Phase != corev1.PodFailed || !slices.ContainsFunc(last.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "EvictionByEvictionAPI"
	}) {
		w.Errorf("the pod's last status is %+v", last.Status)
	}
	if got := n.Output(c); got != "runs\ntold to end\n" {
		w.Errorf("output %q", got)
	}
	w.until("the Job has another pod", func() bool { p := w.podsOf("evicted"); return len(p) == 1 && p[0].Name != first })
	j, err := w.plane.Client.BatchV1().Jobs(namespace).Get(w.Context(), "evicted", metav1.GetOptions{})
	w.check(err)
	if len(j.Status.Conditions) > 0 {
		w.Errorf("the Job is %+v", j.Status)
	}
	w.container(w.podsOf("evicted")[0].Name)
}

// watch sends what a pod was before it was gone.
func (w world) watch(pod string, last chan<- corev1.Pod) {
	watch, err := w.plane.Client.CoreV1().Pods(namespace).Watch(w.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	if err != nil {
		w.Error(err)
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if p, ok := event.Object.(*corev1.Pod); ok && event.Type == "DELETED" {
			last <- *p
			return
		}
	}
}

func (w world) stubborn() {
	s := spec("run", "never")
	s.TerminationGracePeriodSeconds = new(int64(2))
	w.pod("stubborn", s)
	n, c := w.container("stubborn")
	w.until("the program listens", func() bool { return strings.Contains(n.Output(c), "runs") })
	w.check(w.plane.Client.CoreV1().Pods(namespace).Delete(w.Context(), "stubborn", metav1.DeleteOptions{}))
	w.until("the container has ended", func() bool { return !n.Find(namespace, "stubborn", "main").Running() })
	if end := n.Find(namespace, "stubborn", "main"); end.ExitCode != 137 || n.Output(*end) != "runs\ntold to end\n" {
		w.Errorf("%+v: %s", end, n.Output(*end))
	}
	w.until("the pod is gone", func() bool {
		_, err := w.plane.Client.CoreV1().Pods(namespace).Get(w.Context(), "stubborn", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// initContainers leave files to those that come after them.
func (w world) initContainers() {
	s := spec("look", "/shared/first")
	s.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	mount := []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	for _, name := range []string{"first", "second"} {
		s.InitContainers = append(s.InitContainers, corev1.Container{
			Name: name, Image: s.Containers[0].Image, Args: []string{"look", "/shared/first", ">/shared/" + name}, VolumeMounts: mount,
		})
	}
	s.Containers[0].VolumeMounts = mount
	got := w.look("init", s)
	if got.Files["/shared/first"] != "x" {
		w.Errorf("the container has found %q", got.Files)
	}
	for _, c := range w.get("init").Status.InitContainerStatuses {
		if c.State.Terminated == nil || c.State.Terminated.Reason != "Completed" {
			w.Errorf("init container %s: %+v", c.Name, c.State)
		}
	}
}

func (w world) api() {
	w.pod("api", spec("api"))
	w.ended("api", corev1.PodSucceeded)
	if got, want := w.output("api"), "system:serviceaccount:default:default [api]\n"; got != want {
		w.Errorf("the API server says %q, want %q", got, want)
	}
}

func (w world) probes() {
	s := spec("run", "0")
	c := &s.Containers[0]
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1000))}
	s.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}}
	command := func(args ...string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"program"}, args...)}}
	}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: command("find", "/tmp/hook"), PeriodSeconds: 1}
	c.StartupProbe = &corev1.Probe{ProbeHandler: command("find", "/proc/1/comm"), PeriodSeconds: 1}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: command("find", "/none"), PeriodSeconds: 1, FailureThreshold: 3}
	hook := command("look", ">/tmp/hook")
	c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: hook.Exec}}
	w.pod("probes", s)
	w.until("the pod is ready", func() bool { s := w.get("probes").Status.ContainerStatuses; return len(s) == 1 && s[0].Ready })
	w.until("an Event says why its container is stopped", func() bool {
		events, err := w.plane.Client.CoreV1().Events(namespace).List(w.Context(), metav1.ListOptions{FieldSelector: "reason=Unhealthy,involvedObject.name=probes"})
		w.check(err)
		return len(events.Items) == 1 && strings.HasPrefix(events.Items[0].Message, "Liveness probe failed: stat /none: no such file or directory")
	})
	w.until("the container has been told to end", func() bool { return strings.HasSuffix(w.output("probes"), "told to end\n") })
}

func (w world) waits(pod, reason string) (message string) {
	w.Helper()
	w.until(fmt.Sprintf("the container of pod %s waits: %s", pod, reason), func() bool {
		for _, c := range w.get(pod).Status.ContainerStatuses {
			if c.State.Waiting != nil && c.State.Waiting.Reason == reason {
				message = c.State.Waiting.Message
				return true
			}
		}
		return false
	})
	return message
}

func (w world) missingSecret() {
	s := spec("exit", "0")
	s.Containers[0].Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Key: "token",
	}}}}
	w.pod("secret", s)
	if got := w.waits("secret", "CreateContainerConfigError"); got != `secret "absent" not found` {
		w.Errorf("it waits because of %q", got)
	}
	_, err := w.plane.Client.CoreV1().Secrets(namespace).Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "absent"}, StringData: map[string]string{"token": "x"},
	}, metav1.CreateOptions{})
	w.check(err)
	w.ended("secret", corev1.PodSucceeded)
}

func (w world) missingVolume() {
	s := spec("exit", "0")
	s.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}},
	}}}
	s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/config"}}
	w.pod("volume", s)
	w.waits("volume", "ContainerCreating")
	w.until("an Event says why", func() bool {
		events, err := w.plane.Client.CoreV1().Events(namespace).List(w.Context(), metav1.ListOptions{FieldSelector: "reason=FailedMount,involvedObject.name=volume"})
		w.check(err)
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Message == `MountVolume.SetUp failed for volume "config" : configmap "none" not found`
		})
	})
}

func (w world) rootRefused() {
	s := spec("exit", "0")
	s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true)}
	w.pod("root", s)
	if got := w.waits("root", "CreateContainerConfigError"); !strings.HasPrefix(got, "container has runAsNonRoot and image will run as root (pod: \"root_default(") {
		w.Errorf("it waits because of %q", got)
	}
}

func (w world) noProgram() {
	s := spec()
	s.Containers[0].Command = []string{"/bin/sh"}
	w.pod("sh", s)
	_, end := w.ended("sh", corev1.PodFailed)
	if end.ExitCode != 128 || end.Reason != "StartError" || !strings.HasSuffix(end.Message, `exec: "/bin/sh": stat /bin/sh: no such file or directory`) {
		w.Errorf("the container has ended as %+v", end)
	}
}

func (w world) lateImage() {
	s := spec("exit", "0")
	s.Containers[0].Image = "example.com/late:v2"
	w.pod("late", s)
	w.waits("late", "ErrImagePull")
	for _, n := range w.nodes {
		n.SetImage("example.com/late:v2", programImage(w.T))
	}
	w.ended("late", corev1.PodSucceeded)
}

// restarted kills the container of a Deployment, which the kubelet starts again.
func (w world) restarted() {
	labels := map[string]string{"app": "restarted"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec("run", "0")}
	template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	_, err := w.plane.Client.AppsV1().Deployments(namespace).Create(w.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "restarted"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{})
	w.check(err)
	ready := func(restarts int32) func() bool {
		return func() bool {
			list, err := w.plane.Client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: "app=restarted"})
			w.check(err)
			return len(list.Items) == 1 && len(list.Items[0].Status.ContainerStatuses) == 1 &&
				list.Items[0].Status.ContainerStatuses[0].Ready && list.Items[0].Status.ContainerStatuses[0].RestartCount == restarts
		}
	}
	w.until("the pod is ready", ready(0))
	list, err := w.plane.Client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: "app=restarted"})
	w.check(err)
	n, c := w.container(list.Items[0].Name)
	n.Signal(c, syscall.SIGKILL)
	w.until("the pod is ready again", ready(1))
	if again := n.Find(namespace, c.Pod, "main"); again.Attempt != 1 || again.PID == c.PID {
		w.Errorf("the container is %+v", again)
	}
}

// nodeDies stops a node and all that runs on it. After a boot, its kubelet says what it
// finds of a pod; after the boot of an empty machine, that it finds nothing.
func (w world) nodeDies() {
	s := spec("run", "0")
	s.NodeSelector = map[string]string{"example.com/rack": "one"}
	w.pod("lost", s)
	n, _ := w.container("lost")
	w.isKnownToRun("lost")
	n.Stop()
	if got := w.get("lost").Status.Phase; got != corev1.PodRunning {
		w.Errorf("pod lost is %s, but nobody can have told", got)
	}
	n.Boot()
	if _, end := w.ended("lost", corev1.PodFailed); end.ExitCode != 255 || end.Reason != "Unknown" {
		w.Errorf("the container has ended as %+v", end)
	}
	w.pod("wiped", s)
	w.container("wiped")
	w.isKnownToRun("wiped") // else its kubelet starts it again
	n.Stop()
	n.Wipe()
	n.Boot()
	if _, end := w.ended("wiped", corev1.PodFailed); end.ExitCode != 137 || end.Reason != "ContainerStatusUnknown" {
		w.Errorf("the container has ended as %+v", end)
	}
}

func (w world) isKnownToRun(pod string) {
	w.until("pod "+pod+" is known to run", func() bool { return w.get(pod).Status.Phase == corev1.PodRunning })
}

const namespace = "default"

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

func spec(args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "main", Image: "example.com/program:v1", Args: args}},
	}
}

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

func (w world) get(name string) *corev1.Pod {
	w.Helper()
	p, err := w.plane.Client.CoreV1().Pods(namespace).Get(w.Context(), name, metav1.GetOptions{})
	w.check(err)
	return p
}

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

func (w world) job(name string, change func(*batchv1.JobSpec)) {
	w.Helper()
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	change(&j.Spec)
	_, err := w.plane.Client.BatchV1().Jobs(namespace).Create(w.Context(), j, metav1.CreateOptions{})
	w.check(err)
}

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

// programPath is where this test's binary is in its image. By that name it is the containers' program.
const programPath = "/usr/bin/program"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == filepath.Base(programPath) {
		os.Exit(program(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func programImage(t *testing.T) nodeagent.Image {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return nodeagent.Image{Files: map[string]string{programPath: self}, Entrypoint: []string{"program"}}
}

func program(args []string) int {
	switch args[0] {
	case "exit": // code, termination message
		fmt.Println("exits with", args[1])
		code, err := strconv.Atoi(args[1])
		if err == nil {
			err = os.WriteFile("/dev/termination-log", []byte(strings.Join(args[2:], " ")), 0o600)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 99
		}
		return code
	case "run": // exit code after SIGTERM, or "never"
		return run(args[1])
	case "look": // paths to read and, with a >, to write
		return look(args[1:])
	case "find": // a file
		if _, err := os.Stat(args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case "api":
		return api()
	}
	fmt.Fprintf(os.Stderr, "what is %q?\n", args)
	return 99
}

func run(code string) int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	fmt.Println("runs")
	for range told {
		fmt.Println("told to end")
		if n, err := strconv.Atoi(code); err == nil {
			return n
		}
	}
	return 99
}

// seen is what a container looks like from the inside.
type seen struct {
	UID, GID, PID int
	Groups        []int
	Hostname, Dir string
	Args          []string
	Env           map[string]string
	// Files are the contents of files, the errors of those that could not be read or written, and "written".
	Files map[string]string
}

func look(paths []string) int {
	s := seen{UID: os.Getuid(), GID: os.Getgid(), PID: os.Getpid(), Args: os.Args, Env: map[string]string{}, Files: map[string]string{}}
	s.Groups, _ = os.Getgroups() // an error is an empty list in the test
	s.Hostname, _ = os.Hostname()
	s.Dir, _ = os.Getwd()
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		s.Env[name] = value
	}
	for _, path := range paths {
		if file, write := strings.CutPrefix(path, ">"); write {
			s.Files[path] = "written"
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				s.Files[path] = err.Error()
			}
			continue
		}
		b, err := os.ReadFile(path)
		s.Files[path] = string(b)
		if err != nil {
			s.Files[path] = err.Error()
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		return 99
	}
	return 0
}

// api asks the API server who the container is.
func api() int {
	review, err := whoAmI()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(review.Status.UserInfo.Username, review.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"])
	return 0
}

func whoAmI() (review authenticationv1.SelfSubjectReview, err error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return review, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return review, err
	}
	client.Timeout = time.Minute
	answer, err := client.Post(config.Host+"/apis/authentication.k8s.io/v1/selfsubjectreviews", "application/json",
		strings.NewReader(`{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`))
	if err != nil {
		return review, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		return review, errors.New(answer.Status)
	}
	return review, json.NewDecoder(answer.Body).Decode(&review)
}

// isolation looks at a container as the strictest policy of Kubernetes wants it.
func (w world) isolation() {
	w.objects("looks")
	s := w.restricted("looks")
	got := w.look("looks", s)
	if got.UID != 65532 || got.GID != 65533 || !slices.Contains(got.Groups, 65534) {
		w.Errorf("user %d, group %d, groups %d", got.UID, got.GID, got.Groups)
	}
	if got.PID != 1 || got.Hostname != "looks" || got.Dir != "/work" {
		w.Errorf("process %d on %s in %s", got.PID, got.Hostname, got.Dir)
	}
	if want := []string{"program", "look"}; !slices.Equal(got.Args[:2], want) {
		w.Errorf("arguments %q", got.Args)
	}
	for file, want := range map[string]string{
		">/new":                      "open /new: read-only file system",
		">/tmp/new":                  "written",
		">/memory/new":               "written",
		">/config/new":               "open /config/new: read-only file system",
		"/config/greeting":           "hello",
		"/config/nested/other":       "world",
		"/one/greeting":              "hello",
		"/secret/password":           "s3cret",
		"/info/labels":               `app="looks"`,
		"/etc/hostname":              "looks\n",
		">/proc/sys/kernel/hostname": "open /proc/sys/kernel/hostname: read-only file system",
		"/root":                      "open /root: no such file or directory",
		">" + programPath:            "open " + programPath + ": read-only file system",
		"/proc/1/comm":               "program\n",
		"/proc/2/comm":               "open /proc/2/comm: no such file or directory",
	} {
		if got := got.Files[file]; got != want {
			w.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	for name, want := range map[string]string{
		"NODE": w.get("looks").Spec.NodeName, "NAME": "looks", "UID": string(w.get("looks").UID), "LABEL": "looks", "IP": w.get("looks").Status.PodIP,
		"ACCOUNT": "default", "PASSWORD": "s3cret", "GREETING": "hello", "ALL_greeting": "hello", "EXPANDED": "hello, looks $(NAME) $(NONE)",
	} {
		if got := got.Env[name]; got != want {
			w.Errorf("variable %s is %q, want %q", name, got, want)
		}
	}
	if _, is := got.Env["OPTIONAL"]; is {
		w.Errorf("an optional variable of a ConfigMap that is not there is %q", got.Env["OPTIONAL"])
	}
	if mount := mountOf(got.Files["/proc/self/mountinfo"], "/memory"); !strings.Contains(mount, "tmpfs") || !strings.Contains(mount, "size=1024k") {
		w.Errorf("/memory is %q", mount)
	}
	if n := strings.Count(got.Files["/proc/self/mountinfo"], "\n"); n > 60 {
		w.Errorf("the container sees %d mounts:\n%s", n, got.Files["/proc/self/mountinfo"])
	}
	if status := got.Files["/proc/self/status"]; !strings.Contains(status, "CapEff:\t0000000000000000\n") || !strings.Contains(status, "NoNewPrivs:\t1\n") {
		w.Errorf("the container has privileges:\n%s", status)
	}
}

func mountOf(info, target string) string {
	for line := range strings.Lines(info) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == target {
			return line
		}
	}
	return ""
}

func (w world) objects(name string) {
	w.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	_, err := w.plane.Client.CoreV1().ConfigMaps(namespace).Create(w.Context(), &corev1.ConfigMap{
		ObjectMeta: meta, Data: map[string]string{"greeting": "hello", "other": "world"},
	}, metav1.CreateOptions{})
	w.check(err)
	_, err = w.plane.Client.CoreV1().Secrets(namespace).Create(w.Context(), &corev1.Secret{
		ObjectMeta: meta, StringData: map[string]string{"password": "s3cret"},
	}, metav1.CreateOptions{})
	w.check(err)
}

func (w world) restricted(name string) corev1.PodSpec {
	s := spec("look", ">/new", ">/tmp/new", ">/memory/new", ">/config/new", "/config/greeting", "/config/nested/other", "/one/greeting",
		"/secret/password", "/info/labels", "/etc/hostname", ">/proc/sys/kernel/hostname", "/root", ">"+programPath, "/proc/1/comm", "/proc/2/comm",
		"/proc/self/mountinfo", "/proc/self/status")
	object := corev1.LocalObjectReference{Name: name}
	s.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65533)), FSGroup: new(int64(65534)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	s.Volumes = []corev1.Volume{
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}}},
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: object, Items: []corev1.KeyToPath{{Key: "greeting", Path: "greeting"}, {Key: "other", Path: "nested/other"}},
		}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o400))}}},
		{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}}},
	}
	c := &s.Containers[0]
	c.WorkingDir = "/work"
	c.SecurityContext = &corev1.SecurityContext{
		ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "tmp", MountPath: "/tmp"},
		{Name: "memory", MountPath: "/memory"},
		{Name: "config", MountPath: "/config", ReadOnly: true},
		{Name: "config", MountPath: "/one/greeting", SubPath: "greeting"},
		{Name: "secret", MountPath: "/secret"},
		{Name: "info", MountPath: "/info"},
	}
	c.Env = []corev1.EnvVar{
		{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: object, Key: "password"}}},
		{Name: "GREETING", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: object, Key: "greeting"}}},
		{Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "none", Optional: new(true),
		}}},
	}
	fields := map[string]string{
		"NODE": "spec.nodeName", "NAME": "metadata.name", "UID": "metadata.uid", "LABEL": "metadata.labels['app']", "IP": "status.podIP",
		"ACCOUNT": "spec.serviceAccountName",
	}
	for _, variable := range slices.Sorted(maps.Keys(fields)) {
		c.Env = append(c.Env, corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: fields[variable]}}})
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: "EXPANDED", Value: "$(GREETING), $(NAME) $$(NAME) $(NONE)"})
	c.EnvFrom = []corev1.EnvFromSource{{Prefix: "ALL_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: object}}}
	return s
}

// TestRestoredEtcd: a kubelet that ran while etcd was restored starts no new pod; once it is
// started again, as recast restore does, it does. TestRestoredEtcd of make e2e-k8s shows why.
func TestRestoredEtcd(t *testing.T) {
	p := plane.Start(t)
	door := p.Door()
	credentials := p.Node("one")
	credentials.Host = "https://" + door.Addr
	n := nodeagent.Start(t, credentials, "one", nodeagent.Options{Images: map[string]nodeagent.Image{"example.com/program:v1": programImage(t)}})
	w := world{T: t, plane: p, nodes: []*nodeagent.Node{n}}
	runs := func(name string) {
		s := spec("exit", "0")
		s.NodeName = "one"
		w.pod(name, s)
	}
	runs("before")
	w.ended("before", corev1.PodSucceeded)
	snapshot := p.SaveEtcd()
	p.Write(1000)
	runs("lost")
	w.ended("lost", corev1.PodSucceeded)

	door.Shut()
	p.RestoreEtcd(snapshot)
	door.Open()
	runs("after")
	time.Sleep(time.Minute) // a kubelet waits half of it at most before it connects again
	if s := w.get("after").Status; s.Phase != corev1.PodPending || len(s.ContainerStatuses) > 0 {
		t.Fatalf("the kubelet has seen the pod: it watches no revision of the future, and nothing is shown by that: %+v", s)
	}
	n.Stop()
	n.Boot()
	w.ended("after", corev1.PodSucceeded)
}
