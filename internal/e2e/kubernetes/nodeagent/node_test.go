package nodeagent_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// registered looks at a Node and its Lease.
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

// failOn fails a Job if its container ends with that code; a pod that was evicted does
// not count.
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

// evicted evicts the pod of a Job, whose program then ends with the code that would fail
// the Job.
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

// probes runs a pod that is ready once its probe finds a file, which a hook writes.
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

// waits waits until the only container of a pod waits for that reason, and returns why.
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
	n.Stop()
	n.Wipe()
	n.Boot()
	if _, end := w.ended("wiped", corev1.PodFailed); end.ExitCode != 137 || end.Reason != "ContainerStatusUnknown" {
		w.Errorf("the container has ended as %+v", end)
	}
}
