package kubeapi_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// TestApply: a server-side apply creates, changes nothing the second time, removes fields
// that its manager dropped, and keeps the fields of others.
func TestApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").CoreV1().ConfigMaps("default")
		apply := func(manager, data string, force, dry bool) (*corev1.ConfigMap, error) {
			o := metav1.PatchOptions{FieldManager: manager}
			if manager != "" {
				o.Force = &force
			}
			if dry {
				o.DryRun = []string{metav1.DryRunAll}
			}
			body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"default"},"data":%s}`, data)
			return c.Patch(t.Context(), "m", types.ApplyPatchType, []byte(body), o)
		}
		for _, step := range []struct {
			name, manager, data string
			force, dry          bool
			want                map[string]string // of the answer
			err                 func(error) bool
			there               map[string]string // afterwards
		}{
			{name: "nobody", data: `{"a":"1"}`, err: apierrors.IsInvalid},
			{name: "only to see", manager: "talos", data: `{"a":"1"}`, dry: true, want: map[string]string{"a": "1"}},
			{name: "create", manager: "talos", data: `{"a":"1","b":"1"}`, want: map[string]string{"a": "1", "b": "1"}, there: map[string]string{"a": "1", "b": "1"}},
			{name: "another's own", manager: "kubectl", data: `{"c":"1"}`, want: map[string]string{"a": "1", "b": "1", "c": "1"}, there: map[string]string{"a": "1", "b": "1", "c": "1"}},
			{name: "another's", manager: "kubectl", data: `{"a":"2"}`, err: apierrors.IsConflict, there: map[string]string{"a": "1", "b": "1", "c": "1"}},
			{name: "taken", manager: "kubectl", data: `{"a":"2","c":"1"}`, force: true, want: map[string]string{"a": "2", "b": "1", "c": "1"}, there: map[string]string{"a": "2", "b": "1", "c": "1"}},
			{name: "taken back", manager: "talos", data: `{}`, want: map[string]string{"a": "2", "c": "1"}, there: map[string]string{"a": "2", "c": "1"}},
			{name: "only to see again", manager: "kubectl", data: `{}`, dry: true, there: map[string]string{"a": "2", "c": "1"}},
		} {
			got, err := apply(step.manager, step.data, step.force, step.dry)
			if step.err != nil && !step.err(err) || step.err == nil && err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
			if diff := cmp.Diff(step.want, got.Data); err == nil && diff != "" {
				t.Errorf("%s: answer (-want +got):\n%s", step.name, diff)
			}
			now, err := c.Get(t.Context(), "m", metav1.GetOptions{})
			if step.there == nil && !apierrors.IsNotFound(err) {
				t.Errorf("%s: it is there: %v", step.name, err)
			}
			if diff := cmp.Diff(step.there, now.Data); diff != "" {
				t.Errorf("%s: what is there (-want +got):\n%s", step.name, diff)
			}
		}
		before, err := apply("kubectl", `{"a":"2","c":"1"}`, false, false)
		if err != nil {
			t.Fatal(err)
		}
		if after, err := apply("kubectl", `{"a":"2","c":"1"}`, false, false); err != nil || after.ResourceVersion != before.ResourceVersion {
			t.Errorf("the same again is revision %s after %s, %v", after.ResourceVersion, before.ResourceVersion, err)
		}
	})
}

// TestDaemonSetRollsOut: a new template replaces the pods, one node after the other.
func TestDaemonSetRollsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2", "wk3")
		c := l.client(t, "system:masters")
		time.Sleep(20 * time.Second)
		if got := proxies(t, c); got["registry.k8s.io/kube-proxy:v1.35.4"] != 3 {
			t.Fatalf("at first %v", got)
		}
		patch := `{"spec":{"template":{"spec":{"containers":[{"name":"kube-proxy","image":"registry.k8s.io/kube-proxy:v1.36.1"}]}}}}`
		if _, err := c.AppsV1().DaemonSets("kube-system").Patch(t.Context(), "kube-proxy", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ {
			ds, err := c.AppsV1().DaemonSets("kube-system").Get(t.Context(), "kube-proxy", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if ds.Status.NumberReady < 2 || i > 60 {
				t.Fatalf("after %d s: %+v", i, ds.Status)
			}
			if ds.Status.ObservedGeneration == ds.Generation && ds.Status.UpdatedNumberScheduled == 3 && ds.Status.NumberReady == 3 {
				break
			}
			time.Sleep(time.Second)
		}
		if got := proxies(t, c); got["registry.k8s.io/kube-proxy:v1.36.1"] != 3 || len(got) != 1 {
			t.Errorf("in the end %v", got)
		}
	})
}

// proxies counts the pods of kube-proxy by image.
func proxies(t *testing.T, c kubernetes.Interface) map[string]int {
	t.Helper()
	pods, err := c.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"})
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]int{}
	for _, p := range pods.Items {
		images[p.Spec.Containers[0].Image]++
	}
	return images
}
