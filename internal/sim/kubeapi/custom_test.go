package kubeapi_test

import (
	"slices"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

func widgets(status bool) store.Resource {
	return store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "example.org", Version: "v1beta1", Resource: "widgets"},
		Kind:                 "Widget", Short: []string{"wg"}, Namespaced: true, Status: status,
	}
}

func (l *lab) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(l.config(t, "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// widgets defines widgets and is a client of those in the namespace default.
func (l *lab) widgets(t *testing.T, status bool) dynamic.ResourceInterface {
	t.Helper()
	r := widgets(status)
	l.Define(r)
	return l.dynamic(t).Resource(r.GroupVersionResource).Namespace("default")
}

func widget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1beta1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec":     map[string]any{"size": size}, "status": map[string]any{"phase": "Made"},
	}}
}

func TestCustomResourcesAreServedOnceDefined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, r := l.dynamic(t), widgets(true)
		groups := func() []string {
			lists, err := l.client(t, "system:masters").Discovery().ServerPreferredResources()
			if err != nil {
				t.Fatal(err)
			}
			var served []string
			for _, list := range lists {
				for _, res := range list.APIResources {
					if list.GroupVersion == "example.org/v1beta1" {
						served = append(served, res.Name+" "+res.Kind)
					}
				}
			}
			return served
		}
		if _, err := c.Resource(r.GroupVersionResource).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) || groups() != nil {
			t.Fatalf("before it is defined: %v, %v", err, groups())
		}
		l.Define(r)
		if diff := cmp.Diff([]string{"widgets Widget"}, groups()); diff != "" {
			t.Errorf("discovery (-want +got):\n%s", diff)
		}
		list, err := c.Resource(r.GroupVersionResource).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 0 {
			t.Fatalf("empty: %v, %v", list, err)
		}
		for _, name := range []string{"b", "a"} {
			if _, err := l.Store().Create(t.Context(), r.GroupVersionResource, widget(name, 1)); err != nil {
				t.Fatal(err)
			}
		}
		list, err = c.Resource(r.GroupVersionResource).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=zzz"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range list.Items {
			got = append(got, w.GetKind()+" "+w.GetName())
		}
		if diff := cmp.Diff([]string{"WidgetList", "Widget a", "Widget b"}, slices.Insert(got, 0, list.GetKind())); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	})
}

// life is what a client sees of a widget after each of its actions.
type life struct {
	Size       int64
	Phase      string
	Generation int64
}

func lifeOf(t *testing.T, w *unstructured.Unstructured, err error) life {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	size, _, err := unstructured.NestedInt64(w.Object, "spec", "size")
	if err != nil {
		t.Fatal(err)
	}
	phase, _, err := unstructured.NestedString(w.Object, "status", "phase")
	if err != nil {
		t.Fatal(err)
	}
	return life{size, phase, w.GetGeneration()}
}

func TestCustomResourcesKeepTheirHalvesApart(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		status bool
		want   []life // created, main part patched, status patched or whole updated
	}{
		"status subresource": {true, []life{{1, "", 1}, {2, "", 2}, {2, "Ready", 2}}},
		"one piece":          {false, []life{{1, "Made", 1}, {2, "Odd", 2}, {2, "Ready", 2}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newLab(t).widgets(t, tc.status)
				w, err := c.Create(t.Context(), widget("a", 1), metav1.CreateOptions{})
				got := []life{lifeOf(t, w, err)}
				w, err = c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2},"status":{"phase":"Odd"}}`), metav1.PatchOptions{})
				got = append(got, lifeOf(t, w, err))
				var sub []string
				if tc.status {
					sub = []string{"status"}
				}
				w, err = c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"phase":"Ready"}}`), metav1.PatchOptions{}, sub...)
				got = append(got, lifeOf(t, w, err))
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestCustomResourcesRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).widgets(t, true)
		first, err := c.Create(t.Context(), widget("a", 1), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		stale := `{"metadata":{"resourceVersion":"` + first.GetResourceVersion() + `"},"spec":{"size":3}}`
		_, stalePatch := c.Patch(t.Context(), "a", types.MergePatchType, []byte(stale), metav1.PatchOptions{})
		_, staleUpdate := c.Update(t.Context(), first, metav1.UpdateOptions{})
		_, blindUpdate := c.Update(t.Context(), widget("a", 3), metav1.UpdateOptions{})
		_, strategic := c.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{"spec":{"size":3}}`), metav1.PatchOptions{})
		got := []metav1.StatusReason{}
		for _, err := range []error{stalePatch, staleUpdate, blindUpdate, strategic} {
			got = append(got, apierrors.ReasonForError(err))
		}
		want := []metav1.StatusReason{
			metav1.StatusReasonConflict, metav1.StatusReasonConflict, metav1.StatusReasonInvalid, metav1.StatusReasonUnsupportedMediaType,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestCustomResourcesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).widgets(t, true)
		w, err := c.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Create(t.Context(), widget("a", 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for range 2 {
			e := <-w.ResultChan()
			got = append(got, string(e.Type)+" "+e.Object.GetObjectKind().GroupVersionKind().Kind)
		}
		w.Stop()
		if diff := cmp.Diff([]string{string(watch.Added) + " Widget", string(watch.Deleted) + " Widget"}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestCertificateRequestsAreSelectedBySigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").CertificatesV1().CertificateSigningRequests()
		for name, signer := range map[string]string{"a": certificatesv1.KubeletServingSignerName, "b": certificatesv1.KubeAPIServerClientSignerName} {
			r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer}}
			if _, err := c.Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		list, err := c.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
			t.Errorf("list = %+v, %v", list, err)
		}
	})
}
