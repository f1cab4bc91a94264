package kube_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// web is a Deployment with that many pods and an emptyDir in each.
func web(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: "web"}},
					Volumes:    []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			},
		},
	}
}

func budget(minAvailable int) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
}

// podsOn lists the pods on a node without the generated ends of their names.
func (l *lab) podsOn(t *testing.T, node string) []string {
	t.Helper()
	objects, _, err := l.Store().List(t.Context(), store.Pods(), "")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, o := range objects {
		if p := o.(*corev1.Pod); p.Spec.NodeName == node {
			names = append(names, strings.TrimSuffix(p.Name, "-"+p.Name[strings.LastIndex(p.Name, "-")+1:]))
		}
	}
	return names
}

func TestDrainEvictsAllButTheNodesOwnPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		l.put(t, store.Deployments(), web(3))
		l.put(t, store.Budgets(), budget(2))
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		var said []string
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(s string) { said = append(said, s) })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"kube-flannel", "kube-proxy"}, l.podsOn(t, "wk1")); diff != "" {
			t.Errorf("pods left on wk1 (-want +got):\n%s", diff)
		}
		gone := slices.IndexFunc(said, func(s string) bool {
			return strings.HasPrefix(s, "pod default/web-") && strings.HasSuffix(s, " is gone")
		})
		if gone < 0 {
			t.Errorf("no line about a pod of web: %q", said)
		}
	})
}

func TestDrainNamesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		l.put(t, store.Budgets(), budget(1))
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var said []string
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: 30 * time.Second}, func(s string) { said = append(said, s) })
		if err == nil || !strings.Contains(err.Error(), "PodDisruptionBudget default/web needs 1 healthy pods and has 1 currently)") {
			t.Fatalf("err = %v", err)
		}
		if took := time.Since(start); took < 30*time.Second || took > 35*time.Second {
			t.Errorf("gave up after %v, want 30 s", took)
		}
		if hints := fault.Hints(err); len(hints) != 1 {
			t.Errorf("hints = %q", hints)
		}
		refusals := slices.DeleteFunc(said, func(s string) bool { return !strings.Contains(s, "violate the pod's disruption budget") })
		if len(refusals) != 1 {
			t.Errorf("refusals said: %q, want the same one once", refusals)
		}
	})
}

func TestDrainRefusesToLosePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		time.Sleep(10 * time.Second)
		l.put(t, store.Deployments(), web(1))
		l.put(t, store.Pods(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default"},
			Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare"}}},
		})
		time.Sleep(10 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		before := l.podsOn(t, "wk1")
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "default/bare") {
			t.Fatalf("err = %v (kind %v), want a refusal that names default/bare", err, fault.KindOf(err))
		}
		if diff := cmp.Diff(before, l.podsOn(t, "wk1")); diff != "" {
			t.Errorf("pods changed (-before +after):\n%s", diff)
		}
		if err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Force: true}, func(string) {}); err != nil {
			t.Fatalf("with force: %v", err)
		}
	})
}

func TestDrainEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		l.put(t, store.Budgets(), budget(1))
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		err := c.Drain(ctx, "wk1", cluster.DrainOptions{Timeout: time.Hour}, func(string) {})
		if err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
			t.Fatalf("err = %v", err)
		}
	})
}

func TestAttachedVolumesFollowTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		l.put(t, store.Volumes(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv1"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.proxmox.sinextra.dev", VolumeHandle: "vm-9999-pv1"},
			}},
		})
		l.put(t, store.Claims(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"},
		})
		d := web(1)
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		l.put(t, store.Deployments(), d)
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		attached := func(node string) int {
			names, err := c.AttachedVolumes(t.Context(), node)
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		from, to := "wk1", "wk2"
		if attached(from) == 0 {
			from, to = to, from
		}
		if err := c.Cordon(t.Context(), from, cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		if err := c.Drain(t.Context(), from, cluster.DrainOptions{Timeout: time.Minute}, func(string) {}); err != nil {
			t.Fatal(err)
		}
		if n := attached(from); n != 1 {
			t.Errorf("%d volumes attached right after the drain, want the 1 that is being detached", n)
		}
		time.Sleep(5 * time.Second)
		if got, want := []int{attached(from), attached(to)}, []int{0, 1}; !slices.Equal(got, want) {
			t.Errorf("volumes attached to the old and new node: %v, want %v", got, want)
		}
	})
}
