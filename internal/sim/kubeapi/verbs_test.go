package kubeapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
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
			must.Hold(t, (step.err == nil || step.err(err)) && (step.err != nil || err == nil), "%s: %v", step.name, err)
			diff := cmp.Diff(step.want, got.Data)
			must.Hold(t, err != nil || diff == "", "%s: answer (-want +got):\n%s", step.name, diff)
			now, err := c.Get(t.Context(), "m", metav1.GetOptions{})
			must.Hold(t, step.there != nil || apierrors.IsNotFound(err), "%s: it is there: %v", step.name, err)
			must.Equal(t, "what is there", step.there, now.Data)
		}
		before := must.Get(apply("kubectl", `{"a":"2","c":"1"}`, false, false))(t)
		after, err := apply("kubectl", `{"a":"2","c":"1"}`, false, false)
		must.Hold(t, err == nil && after.ResourceVersion == before.ResourceVersion, "the same again is revision %s after %s, %v", after.ResourceVersion, before.ResourceVersion, err)
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
		must.Get(c.AppsV1().DaemonSets("kube-system").Patch(t.Context(), "kube-proxy", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		for i := 0; ; i++ {
			ds := must.Get(c.AppsV1().DaemonSets("kube-system").Get(t.Context(), "kube-proxy", metav1.GetOptions{}))(t)
			must.Be(t, ds.Status.NumberReady >= 2 && i <= 60, "after %d s: %+v", i, ds.Status)
			if ds.Status.ObservedGeneration == ds.Generation && ds.Status.UpdatedNumberScheduled == 3 && ds.Status.NumberReady == 3 {
				break
			}
			time.Sleep(time.Second)
		}
		got := proxies(t, c)
		must.Hold(t, got["registry.k8s.io/kube-proxy:v1.36.1"] == 3 && len(got) == 1, "in the end %v", got)
	})
}

func proxies(t *testing.T, c kubernetes.Interface) map[string]int {
	t.Helper()
	pods := must.Get(c.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"}))(t)
	images := map[string]int{}
	for _, p := range pods.Items {
		images[p.Spec.Containers[0].Image]++
	}
	return images
}

func widgets(status bool) store.Resource {
	return store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "example.org", Version: "v1beta1", Resource: "widgets"},
		Kind:                 "Widget", Short: []string{"wg"}, Namespaced: true, Status: status,
	}
}

func (l *lab) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	return must.Get(dynamic.NewForConfig(l.config(t, "system:masters")))(t)
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
			lists := must.Get(l.client(t, "system:masters").Discovery().ServerPreferredResources())(t)
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
		must.Equal(t, "discovery", []string{"widgets Widget"}, groups())
		list, err := c.Resource(r.GroupVersionResource).List(t.Context(), metav1.ListOptions{})
		must.Be(t, err == nil && len(list.Items) == 0, "empty: %v, %v", list, err)
		for _, name := range []string{"b", "a"} {
			must.Get(l.Store().Create(t.Context(), r.GroupVersionResource, widget(name, 1)))(t)
		}
		list, err = c.Resource(r.GroupVersionResource).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name!=zzz"})
		must.Do(t, err)
		var got []string
		for _, w := range list.Items {
			got = append(got, w.GetKind()+" "+w.GetName())
		}
		must.Equal(t, "list", []string{"WidgetList", "Widget a", "Widget b"}, slices.Insert(got, 0, list.GetKind()))
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
	must.Do(t, err)
	size, _, err := unstructured.NestedInt64(w.Object, "spec", "size")
	must.Do(t, err)
	phase, _, err := unstructured.NestedString(w.Object, "status", "phase")
	must.Do(t, err)
	return life{size, phase, w.GetGeneration()}
}

func TestCustomResourcesKeepTheirHalvesApart(t *testing.T) {
	t.Parallel()
	type row struct {
		status bool
		want   []life // created, main part patched, status patched or whole updated
	}
	must.Bubbles(t, map[string]row{
		"status subresource": {true, []life{{1, "", 1}, {2, "", 2}, {2, "Ready", 2}}},
		"one piece":          {false, []life{{1, "Made", 1}, {2, "Odd", 2}, {2, "Ready", 2}}},
	}, func(t *testing.T, tc row) {
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
		must.Equal(t, "got", tc.want, got)
	})
}

func TestCustomResourcesRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).widgets(t, true)
		first := must.Get(c.Create(t.Context(), widget("a", 1), metav1.CreateOptions{}))(t)
		must.Get(c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{}))(t)
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
		must.Equal(t, "got", want, got)
	})
}

func TestCustomResourcesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).widgets(t, true)
		w := must.Get(c.Watch(t.Context(), metav1.ListOptions{}))(t)
		must.Get(c.Create(t.Context(), widget("a", 1), metav1.CreateOptions{}))(t)
		must.Do(t, c.Delete(t.Context(), "a", metav1.DeleteOptions{}))
		var got []string
		for range 2 {
			e := <-w.ResultChan()
			got = append(got, string(e.Type)+" "+e.Object.GetObjectKind().GroupVersionKind().Kind)
		}
		w.Stop()
		must.Equal(t, "events", []string{string(watch.Added) + " Widget", string(watch.Deleted) + " Widget"}, got)
	})
}

func TestCertificateRequestsAreSelectedBySigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").CertificatesV1().CertificateSigningRequests()
		for name, signer := range map[string]string{"a": certificatesv1.KubeletServingSignerName, "b": certificatesv1.KubeAPIServerClientSignerName} {
			r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer}}
			must.Get(c.Create(t.Context(), r, metav1.CreateOptions{}))(t)
		}
		list, err := c.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName})
		must.Hold(t, err == nil && len(list.Items) == 1 && list.Items[0].Name == "a", "list = %+v, %v", list, err)
	})
}

type warned []string

func (w *warned) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestUnknownFields: a field that a kind does not have is a warning, or an error for a client that wants so.
func TestUnknownFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").AppsV1().RESTClient()
		const (
			wrong = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replcas":1}}`
			path  = "/apis/apps/v1/namespaces/default/deployments"
		)
		said := &warned{}
		post := func(validation string) error {
			*said = nil
			return c.Post().RequestURI(path+"?dryRun=All&fieldValidation="+validation).WarningHandler(said).SetHeader("Content-Type", "application/json").Body([]byte(wrong)).Do(t.Context()).Error()
		}
		for _, validation := range []string{"", "Warn"} {
			if err := post(validation); err != nil || len(*said) != 1 || (*said)[0] != `unknown field "spec.replcas"` {
				t.Errorf("%q: %v, warned of %q", validation, err, *said)
			}
		}
		must.Equal(t, "ignored, warned of", []any{nil, 0}, []any{post("Ignore"), len(*said)})
		const refused = `Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.replcas"`
		err := post("Strict")
		must.Hold(t, err != nil && err.Error() == refused, "Strict: %v", err)
		deploy(t, l.client(t, "system:masters"), "web", 1)
		patch := func(kind types.PatchType) error {
			return c.Patch(kind).RequestURI(path + "/web?fieldValidation=Strict&fieldManager=me").Body([]byte(wrong)).Do(t.Context()).Error()
		}
		for kind, want := range map[types.PatchType]string{
			types.MergePatchType:          `strict decoding error: unknown field "spec.replcas"`,
			types.StrategicMergePatchType: `strict decoding error: unknown field "spec.replcas"`,
			types.ApplyPatchType:          "failed to create typed patch object (default/web; apps/v1, Kind=Deployment): .spec.replcas: field not declared in schema",
		} {
			err := patch(kind)
			must.Hold(t, err != nil && strings.HasSuffix(err.Error(), want), "%s: %v", kind, err)
		}
	})
}

var _ rest.WarningHandler = (*warned)(nil)

// TestOwners: a client with a name owns the fields that it sets, and entries of a list have owners of their own.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").CoreV1().Services("default")
		apply := func(manager, port string) error {
			body := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[` + port + `]}}`
			_, err := c.Patch(t.Context(), "web", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
			return err
		}
		must.Do(t, apply("a", `{"port":80,"protocol":"TCP","name":"http"}`))
		must.Pass(t, apply("b", `{"port":443,"protocol":"TCP","name":"https"}`))
		err := apply("b", `{"port":80,"protocol":"TCP","name":"web"}`)
		must.Hold(t, err != nil && err.Error() == `Apply failed with 1 conflict: conflict with "a": .spec.ports[port=80,protocol="TCP"].name`, "the same port: %v", err)
	})
}

// TestOpenAPI: the index names a document for each group, and a document has what kubectl apply and explain look for.
func TestOpenAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.Define(widgets(false))
		c := l.client(t, "system:masters").CoreV1().RESTClient()
		var index struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		fetch := func(uri string, into any) {
			t.Helper()
			b, err := c.Get().RequestURI(uri).SetHeader("Accept", "application/json").DoRaw(t.Context())
			if err == nil {
				err = json.Unmarshal(b, into)
			}
			must.Be(t, err == nil, "%s: %v", uri, err)
		}
		fetch("/openapi/v3", &index)
		for _, r := range append(store.Resources(), widgets(false)) {
			group := "apis/" + r.GroupVersion().String()
			if r.Group == "" {
				group = "api/v1"
			}
			var doc struct {
				Components struct {
					Schemas map[string]struct {
						Kinds      []map[string]string `json:"x-kubernetes-group-version-kind"`
						Properties map[string]map[string]any
					}
				}
				Paths map[string]struct {
					Patch struct {
						Kind        map[string]string `json:"x-kubernetes-group-version-kind"`
						Parameters  []struct{ Name string }
						RequestBody struct{ Content map[string]any }
					}
				}
			}
			fetch(index.Paths[group].ServerRelativeURL, &doc)
			patched, described := false, false
			for _, p := range doc.Paths {
				validates := false
				for _, parameter := range p.Patch.Parameters {
					validates = validates || parameter.Name == "fieldValidation"
				}
				_, strategic := p.Patch.RequestBody.Content[string(types.StrategicMergePatchType)]
				patched = patched || p.Patch.Kind["kind"] == r.Kind && validates && strategic == (r.Group != widgets(false).Group)
			}
			for _, m := range doc.Components.Schemas {
				described = described || len(m.Kinds) == 1 && m.Kinds[0]["kind"] == r.Kind
			}
			must.Equal(t, "patch, schema", []any{true, true}, []any{patched, described})
			if r.Kind == "Pod" {
				containers := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"].Properties["containers"]
				must.Hold(t, containers["x-kubernetes-patch-merge-key"] == "name" &&
					containers["x-kubernetes-patch-strategy"] == "merge", "containers: %v", containers)
			}
		}
		must.Hold(t, must.Err(c.Get().RequestURI("/openapi/v3/apis/batch/v1").DoRaw(t.Context())) != nil,
			"a group that is not served has a document")
	})
}

// seenNode is the part of a Node that the tests check.
type seenNode struct {
	BootID, Rack string
	Ready        corev1.ConditionStatus
	Taints       []string
}

func look(t *testing.T, c kubernetes.Interface, name string) seenNode {
	t.Helper()
	n := must.Get(c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
	s := seenNode{BootID: n.Status.NodeInfo.BootID, Rack: n.Labels["rack"]}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			s.Ready = cond.Status
		}
	}
	for _, taint := range n.Spec.Taints {
		s.Taints = append(s.Taints, taint.ToString())
	}
	return s
}

func TestNodeLeavesAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		step := func(what string, want seenNode) {
			t.Helper()
			must.Equal(t, what, want, look(t, c, "wk1"))
		}
		time.Sleep(time.Second)
		step("registered", seenNode{"boot-1-wk1", "", corev1.ConditionFalse, []string{"node.kubernetes.io/not-ready:NoSchedule"}})
		time.Sleep(9 * time.Second)
		step("up", seenNode{"boot-1-wk1", "", corev1.ConditionTrue, nil})
		if _, err := c.CoreV1().Nodes().Patch(t.Context(), "wk1", "application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"rack":"a"}},"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}

		l.NodeDown(node("wk1", 0).UUID)
		time.Sleep(39 * time.Second)
		step("silent, not noticed yet", seenNode{"boot-1-wk1", "a", corev1.ConditionTrue, []string{"gpu:NoSchedule"}})
		time.Sleep(2 * time.Second)
		step("silent", seenNode{"boot-1-wk1", "a", corev1.ConditionUnknown, []string{
			"gpu:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute",
		}})

		again := node("wk1", 0)
		again.BootID = "boot-2-wk1"
		l.NodeUp(again)
		time.Sleep(time.Second)
		step("booting again", seenNode{"boot-2-wk1", "a", corev1.ConditionFalse, []string{"gpu:NoSchedule", "node.kubernetes.io/not-ready:NoSchedule"}})
		time.Sleep(9 * time.Second)
		step("up again", seenNode{"boot-2-wk1", "a", corev1.ConditionTrue, []string{"gpu:NoSchedule"}})
	})
}

func TestPodsOfALostNodeStayTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		c := l.client(t, "system:masters")
		deploy(t, c, "web", 2)
		time.Sleep(20 * time.Second)
		phases := func() map[string]int {
			pods := must.Get(c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"}))(t)
			count := map[string]int{}
			for _, p := range pods.Items {
				what := p.Spec.NodeName + " " + string(p.Status.Phase)
				if p.DeletionTimestamp != nil {
					what += " terminating"
				}
				count[what]++
			}
			return count
		}
		must.Equal(t, "at first", map[string]int{"wk1 Running": 1, "wk2 Running": 1}, phases())
		l.NodeDown(node("wk1", 0).UUID)
		time.Sleep(10 * time.Minute)
		must.Equal(t, "node lost", map[string]int{"wk1 Running terminating": 1, "wk2 Running": 2}, phases())
		l.NodeUp(node("wk1", 0))
		time.Sleep(10 * time.Second)
		must.Equal(t, "node back", map[string]int{"wk2 Running": 2}, phases())
	})
}

func static(component, version, waiting string) kubeapi.StaticPod {
	return kubeapi.StaticPod{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: component, Namespace: "kube-system", Labels: map[string]string{"tier": "control-plane"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: component, Image: "registry.k8s.io/" + component + ":" + version}}},
		},
		Hash: component + version, Ready: waiting == "", Waiting: waiting, Started: time.Now(),
	}
}

// TestMirrorPods: the API shows a kubelet's static pods, a new version of one as a new
// pod, and keeps them while the kubelet is down.
func TestMirrorPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "cp1")
		c, uuid := l.client(t, "system:masters"), node("cp1", 0).UUID
		show := func(step string, want ...string) (uids map[string]types.UID) {
			t.Helper()
			time.Sleep(20 * time.Second)
			pods := must.Get(c.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "tier=control-plane"}))(t)
			var got []string
			uids = map[string]types.UID{}
			for _, p := range pods.Items {
				_, version, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
				ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
				line := fmt.Sprintf("%s %s ready=%v", p.Name, version, ready)
				if w := p.Status.ContainerStatuses[0].State.Waiting; w != nil {
					line += " " + w.Reason
				}
				got, uids[p.Name] = append(got, line), p.UID
			}
			must.Equal(t, step, want, got)
			return uids
		}
		l.StaticPods(uuid, []kubeapi.StaticPod{static("kube-apiserver", "v1", ""), static("kube-scheduler", "v1", "")})
		before := show("at first", "kube-apiserver-cp1 v1 ready=true", "kube-scheduler-cp1 v1 ready=true")
		l.StaticPods(uuid, []kubeapi.StaticPod{static("kube-apiserver", "v2", "ErrImagePull"), static("kube-scheduler", "v1", "")})
		after := show("another version", "kube-apiserver-cp1 v2 ready=false ErrImagePull", "kube-scheduler-cp1 v1 ready=true")
		must.Hold(t, before["kube-apiserver-cp1"] != after["kube-apiserver-cp1"] &&
			before["kube-scheduler-cp1"] == after["kube-scheduler-cp1"], "UIDs before %v, after %v", before, after)
		l.NodeDown(uuid)
		show("without a kubelet", "kube-apiserver-cp1 v2 ready=false ErrImagePull", "kube-scheduler-cp1 v1 ready=true")
		l.NodeUp(node("cp1", 0))
		show("before it tells", "kube-apiserver-cp1 v2 ready=false ErrImagePull", "kube-scheduler-cp1 v1 ready=false")
		l.StaticPods(uuid, []kubeapi.StaticPod{static("kube-apiserver", "v2", "")})
		show("one is removed", "kube-apiserver-cp1 v2 ready=true")
	})
}

func TestSameStorySamePods(t *testing.T) {
	tell := func(t *testing.T) (pods []string) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, "wk1", "wk2", "wk3")
			c := l.client(t, "system:masters")
			deploy(t, c, "web", 6)
			deploy(t, c, "db", 3)
			time.Sleep(20 * time.Second)
			l.NodeDown(node("wk2", 1).UUID)
			time.Sleep(10 * time.Minute)
			list := must.Get(c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}))(t)
			for _, p := range list.Items {
				pods = append(pods, p.Name+" on "+p.Spec.NodeName+" "+string(p.UID))
			}
		})
		return pods
	}
	must.Equal(t, "the same story told twice (-first +second)", tell(t), tell(t))
}

// TestNodeLeases: a running kubelet renews its Lease, one that is off does not, and the Lease goes with its Node.
func TestNodeLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		c := l.client(t, "system:masters")
		renewed := func() map[string]time.Duration {
			t.Helper()
			time.Sleep(15 * time.Second)
			leases := must.Get(c.CoordinationV1().Leases("kube-node-lease").List(t.Context(), metav1.ListOptions{}))(t)
			out := map[string]time.Duration{}
			for _, lease := range leases.Items {
				must.Equal(t, "lease", []any{lease.Name, "Node"}, []any{*lease.Spec.HolderIdentity, lease.OwnerReferences[0].Kind})
				out[lease.Name] = time.Since(lease.Spec.RenewTime.Time).Truncate(10 * time.Second)
			}
			return out
		}
		revision := l.Revision()
		must.Equal(t, "both run", map[string]time.Duration{"wk1": 0, "wk2": 0}, renewed())
		l.NodeDown(node("wk2", 1).UUID)
		must.Equal(t, "wk2 is off", map[string]time.Duration{"wk1": 0, "wk2": 10 * time.Second}, renewed())
		if l.Revision() < revision+3 {
			t.Errorf("the revision went from %d to %d", revision, l.Revision())
		}
		must.Do(t, c.CoreV1().Nodes().Delete(t.Context(), "wk2", metav1.DeleteOptions{}))
		must.Equal(t, "wk2 is deleted", map[string]time.Duration{"wk1": 0}, renewed())
	})
}

var longhornNodes = store.Resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "nodes"},
	Kind:                 "Node", Namespaced: true, Status: true,
}

func longhornNode(name string, evicting bool, replicas ...string) *unstructured.Unstructured {
	scheduled := map[string]any{}
	for _, r := range replicas {
		scheduled[r] = int64(1 << 30)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": map[string]any{"name": name, "namespace": "longhorn-system"},
		"spec": map[string]any{
			"allowScheduling": !evicting, "evictionRequested": evicting,
			"disks": map[string]any{"default-disk": map[string]any{"path": "/var/lib/longhorn/", "allowScheduling": true, "evictionRequested": false}},
		},
		"status": map[string]any{"diskStatus": map[string]any{"default-disk": map[string]any{"diskUUID": name, "scheduledReplica": scheduled}}},
	}}
}

// Longhorn moves replicas from an evicted node to nodes that take replicas and have none of the volume.
func TestLonghornEvicts(t *testing.T) {
	t.Parallel()
	type row struct {
		wk1, wk2 *unstructured.Unstructured
		volumes  []string // with replicas on wk1 in the end
	}
	must.Bubbles(t, map[string]row{
		"nobody asked":           {longhornNode("wk1", false, "a-r-1"), longhornNode("wk2", false), []string{"a-r"}},
		"another node":           {longhornNode("wk1", true, "a-r-1", "b-r-1"), longhornNode("wk2", false), nil},
		"one that has a replica": {longhornNode("wk1", true, "a-r-1", "b-r-1"), longhornNode("wk2", false, "b-r-2"), []string{"b-r"}},
		"one that is evicted":    {longhornNode("wk1", true, "a-r-1"), longhornNode("wk2", true), []string{"a-r"}},
		"no machine of it":       {longhornNode("wk1", true, "a-r-1"), longhornNode("wk9", false), []string{"a-r"}},
	}, func(t *testing.T, tc row) {
		l := newLab(t, "wk1", "wk2")
		l.Define(longhornNodes)
		for _, n := range []*unstructured.Unstructured{tc.wk1, tc.wk2} {
			must.Get(l.Store().Create(t.Context(), longhornNodes.GroupVersionResource, n))(t)
		}
		time.Sleep(5 * time.Minute)
		count, left := 0, []string(nil)
		objects, _, err := l.Store().List(t.Context(), longhornNodes.GroupVersionResource, "")
		must.Do(t, err)
		for _, o := range objects {
			replicas, _, _ := unstructured.NestedMap(o.(*unstructured.Unstructured).Object, "status", "diskStatus", "default-disk", "scheduledReplica")
			count += len(replicas)
			for r := range replicas {
				if o.GetName() == "wk1" {
					left = append(left, r[:3])
				}
			}
		}
		slices.Sort(left)
		before, _, _ := unstructured.NestedMap(tc.wk1.Object, "status", "diskStatus", "default-disk", "scheduledReplica")
		others, _, _ := unstructured.NestedMap(tc.wk2.Object, "status", "diskStatus", "default-disk", "scheduledReplica")
		diff := cmp.Diff(tc.volumes, left)
		must.Hold(t, diff == "" && count == len(before)+len(others), "%d replicas in all; on wk1 (-want +got):\n%s", count, diff)
	})
}

// Load restores exactly the dumped objects; a new cluster has the bootstrap objects.
func TestDumpAndLoad(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		ctx, s, r := t.Context(), l.Store(), widgets(false)
		l.Define(r)
		must.Get(s.Create(ctx, r.GroupVersionResource, widget("kept", 3)))(t)
		time.Sleep(time.Minute)
		values := func() map[string]string {
			t.Helper()
			all := must.Get(l.Dump(ctx))(t)
			out, revisions := map[string]string{}, []uint64{}
			for _, kv := range all {
				if strings.HasPrefix(kv.Key, "/registry/leases/kube-node-lease/") {
					kv.Value = nil // the kubelet renews it
				}
				out[kv.Key], revisions = string(kv.Value), append(revisions, kv.Revision)
			}
			slices.Sort(revisions)
			must.Equal(t, "revisions that differ", len(all), len(slices.Compact(revisions)))
			return out
		}
		before := values()
		for _, key := range []string{"/registry/minions/wk1", "/registry/example.org/widgets/default/kept", "/registry/deployments/kube-system/coredns"} {
			must.Hold(t, before[key] != "", "there is no %s", key)
		}
		dump := must.Get(l.Dump(ctx))(t)
		must.Get(s.Delete(ctx, r.GroupVersionResource, "default", "kept", metav1.DeleteOptions{}))(t)
		must.Get(s.Create(ctx, r.GroupVersionResource, widget("later", 4)))(t)
		must.Do(t, l.Load(dump))
		time.Sleep(time.Minute)
		must.Equal(t, "(-before +after)", before, values())

		must.Do(t, l.Renew(ctx, nil))
		fresh := values()
		must.Hold(t, fresh["/registry/namespaces/kube-system"] != "" &&
			fresh["/registry/example.org/widgets/default/kept"] == "", "a new cluster has %d objects", len(fresh))
		must.Hold(t, l.Load([]kubeapi.Stored{{Key: "/registry/pods/default/web", Value: []byte("k8s\x00what")}}) != nil,
			"no error for something that is not an object")
		must.Hold(t, must.Err(s.Get(ctx, store.Nodes(), "", "wk1")) != nil, "what could not be read has changed something")
	})
}
