package kubeapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

func TestStatusErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters")
		leases := c.CoordinationV1().Leases("kube-system")
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "recast"}}
		stored, err := leases.Create(t.Context(), lease, metav1.CreateOptions{})
		must.Do(t, err)
		stale := stored.DeepCopy()
		stored.Spec.HolderIdentity = new("a")
		must.Get(leases.Update(t.Context(), stored, metav1.UpdateOptions{}))(t)
		stale.Spec.HolderIdentity = new("b")

		_, twice := leases.Create(t.Context(), lease, metav1.CreateOptions{})
		_, lost := leases.Update(t.Context(), stale, metav1.UpdateOptions{})
		_, none := leases.Get(t.Context(), "none", metav1.GetOptions{})
		_, nowhere := c.CoordinationV1().Leases("nowhere").Create(t.Context(), lease, metav1.CreateOptions{})
		_, field := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.hostname=x"})
		_, patch := leases.Patch(t.Context(), "recast", "application/x-patch", []byte("{}"), metav1.PatchOptions{})
		other := leases.Delete(t.Context(), "recast", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")})
		unserved := c.RESTClient().Get().AbsPath("/apis/batch/v1/jobs").Do(t.Context()).Error()
		forbidden := func() error {
			_, err := l.client(t, "viewers").CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		}()

		want := []metav1.StatusReason{
			metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict, metav1.StatusReasonNotFound, metav1.StatusReasonNotFound,
			metav1.StatusReasonBadRequest, metav1.StatusReasonUnsupportedMediaType, metav1.StatusReasonConflict,
			metav1.StatusReasonNotFound, metav1.StatusReasonForbidden,
		}
		var got []metav1.StatusReason
		for _, err := range []error{twice, lost, none, nowhere, field, patch, other, unserved, forbidden} {
			got = append(got, apierrors.ReasonForError(err))
		}
		must.Equal(t, "reasons", want, got)
	})
}

func TestPatches(t *testing.T) {
	type row struct {
		kind  types.PatchType
		patch string
		want  map[string]string
	}
	must.Each(t, map[string]row{
		"merge":             {types.MergePatchType, `{"data":{"a":null,"c":"3"}}`, map[string]string{"b": "2", "c": "3"}},
		"strategic":         {types.StrategicMergePatchType, `{"data":{"a":"9"}}`, map[string]string{"a": "9", "b": "2"}},
		"json":              {types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"1"},{"op":"remove","path":"/data/a"},{"op":"add","path":"/data/x~1y","value":"4"}]`, map[string]string{"b": "2", "x/y": "4"}},
		"json that fails":   {types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"2"},{"op":"remove","path":"/data/a"}]`, nil},
		"json into nothing": {types.JSONPatchType, `[{"op":"replace","path":"/nothing/a","value":"2"}]`, nil},
	}, func(t *testing.T, tc row) {
		synctest.Test(t, func(t *testing.T) {
			maps := newLab(t).client(t, "system:masters").CoreV1().ConfigMaps("default")
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"a": "1", "b": "2"}}
			must.Get(maps.Create(t.Context(), cm, metav1.CreateOptions{}))(t)
			got, err := maps.Patch(t.Context(), "x", tc.kind, []byte(tc.patch), metav1.PatchOptions{})
			if tc.want == nil {
				if known := apierrors.APIStatus(nil); !errors.As(err, &known) || known.Status().Code != http.StatusUnprocessableEntity {
					t.Fatalf("err = %v, want 422", err)
				}
				return
			}
			must.Do(t, err)
			must.Equal(t, "data", tc.want, got.Data)
		})
	})
}

func TestStatusAndSpecAreWrittenApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).client(t, "system:masters")
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}
		n, err := c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		must.Do(t, err)
		type view struct {
			Phase      corev1.NodePhase
			PodCIDR    string
			Generation int64
		}
		got := []view{{n.Status.Phase, n.Spec.PodCIDR, n.Generation}}
		n.Status.Phase, n.Spec.PodCIDR = corev1.NodeRunning, "10.244.0.0/24"
		if n, err = c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		got = append(got, view{n.Status.Phase, n.Spec.PodCIDR, n.Generation})
		n.Status.Phase, n.Spec.PodCIDR = corev1.NodeTerminated, "10.244.0.0/24"
		if n, err = c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		got = append(got, view{n.Status.Phase, n.Spec.PodCIDR, n.Generation})
		want := []view{{"", "", 1}, {corev1.NodeRunning, "", 1}, {corev1.NodeRunning, "10.244.0.0/24", 2}}
		must.Equal(t, "created, status written, spec written", want, got)
	})
}

func TestDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).client(t, "system:masters")
		v, err := c.Discovery().ServerVersion()
		if err != nil || v.GitVersion != "v1.35.4" || v.Minor != "35" {
			t.Errorf("version = %+v, %v", v, err)
		}
		_, lists, err := c.Discovery().ServerGroupsAndResources()
		must.Do(t, err)
		var served []string
		for _, l := range lists {
			for _, r := range l.APIResources {
				if r.Name == "pods/eviction" || r.Kind == "VolumeAttachment" || r.Kind == "PodDisruptionBudget" {
					served = append(served, l.GroupVersion+" "+r.Name+" "+r.Group)
				}
			}
		}
		want := []string{
			"v1 pods/eviction policy", "policy/v1 poddisruptionbudgets ", "policy/v1 poddisruptionbudgets/status ",
			"storage.k8s.io/v1 volumeattachments ", "storage.k8s.io/v1 volumeattachments/status ",
		}
		slices.Sort(served)
		slices.Sort(want)
		must.Equal(t, "resources", want, served)
	})
}

func TestWatchSeesWhatItSelects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			l := newLab(t)
			cfg := l.config(t, "system:masters")
			cfg.ContentType = accept
			cfg.AcceptContentTypes = accept
			c := must.Get(kubernetes.NewForConfig(cfg))(t)
			w := must.Get(c.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{LabelSelector: "rack=a"}))(t)
			must.Get(c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))(t)
			for _, patch := range []string{`{"metadata":{"labels":{"rack":"a"}}}`, `{"metadata":{"labels":{"b":"c"}}}`, `{"metadata":{"labels":{"rack":null}}}`} {
				must.Get(c.CoreV1().Nodes().Patch(t.Context(), "x", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
			}
			var got []watch.EventType
			for range 3 {
				e := <-w.ResultChan()
				if _, ok := e.Object.(*corev1.Node); !ok {
					t.Fatalf("%s: event %s with a %T", accept, e.Type, e.Object)
				}
				got = append(got, e.Type)
			}
			w.Stop()
			must.Equal(t, accept+": events", []watch.EventType{watch.Added, watch.Modified, watch.Deleted}, got)
			must.Do(t, l.Close())
		}
	})
}

func TestInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		ctx, cancel := context.WithCancel(t.Context())
		f := informers.NewSharedInformerFactory(c, 0)
		nodes := f.Core().V1().Nodes()
		informer := nodes.Informer()
		f.Start(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			t.Fatal("informer did not sync")
		}
		time.Sleep(10 * time.Second)
		n, err := nodes.Lister().Get("wk1")
		if err != nil || n.Status.NodeInfo.BootID != "boot-1-wk1" || len(n.Spec.Taints) != 0 {
			t.Errorf("informer's node = %+v, %v", n, err)
		}
		cancel()
		f.Shutdown()
	})
}

func TestRecorderSeesAndBreaksRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		time.Sleep(10 * time.Second)
		c := l.client(t, "system:masters")
		cordon := func() error {
			_, err := c.CoreV1().Nodes().Patch(t.Context(), "wk1", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
			return err
		}
		l.calls.Hooks(func(record.Call) error { return errors.New("cut") }, nil)
		if err := cordon(); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			t.Fatalf("err = %v, want a broken connection", err)
		}
		l.calls.Hooks(nil, nil)
		n, err := l.Node(t.Context(), "wk1")
		if err != nil || n.Spec.Unschedulable {
			t.Fatalf("a request that was broken off has acted: %v, %v", n, err)
		}
		acted := false
		l.calls.Hooks(nil, func(record.Call) {
			n, err := l.Node(t.Context(), "wk1")
			acted = err == nil && n.Spec.Unschedulable
		})
		must.Do(t, cordon())
		must.Equal(t, "the after hook ran before the server acted", false, !acted)
		calls := l.calls.Calls()
		must.Equal(t, "the bytes of the answer are not counted", false, calls[len(calls)-1].Bytes == 0)
		want := record.Call{
			Seq: len(calls), Proto: "kubernetes", Target: "wk1", Method: http.MethodPatch, Path: "/api/v1/nodes/wk1",
			User: "admin", Mutation: true, Bytes: calls[len(calls)-1].Bytes,
		}
		must.Equal(t, "call", want, calls[len(calls)-1])
	})
}

func TestServesOnRealSockets(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- l.Serve(t.Context(), listener, l.who) }()
	cfg := l.config(t, "system:masters")
	cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, listener.Addr().String())
	}
	c := must.Get(kubernetes.NewForConfig(cfg))(t)
	list, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 4 {
		t.Errorf("namespaces = %v, %v", list, err)
	}
	must.Do(t, listener.Close())
	if err := <-served; err != nil {
		t.Errorf("serve after its listener was closed: %v", err)
	}
}

// A list comes in pages of one revision, while etcd has that revision.
func TestListsComeInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		r := widgets(true)
		l.Define(r)
		c := l.dynamic(t).Resource(r.GroupVersionResource)
		make := func(name string) {
			must.Get(c.Namespace("default").Create(t.Context(), widget(name, 1), metav1.CreateOptions{}))(t)
		}
		for i := range 5 {
			make(fmt.Sprintf("w%d", i))
		}
		var got, revisions []string
		o := metav1.ListOptions{Limit: 2}
		for {
			list := must.Get(c.List(t.Context(), o))(t)
			for _, w := range list.Items {
				got = append(got, w.GetName())
			}
			left := int64(0)
			if n := list.GetRemainingItemCount(); n != nil {
				left = *n
			}
			got, revisions = append(got, fmt.Sprintf("|%d", left)), append(revisions, list.GetResourceVersion())
			make(fmt.Sprintf("w0later%d", len(got))) // in no page: it is newer
			if o.Continue = list.GetContinue(); o.Continue == "" {
				break
			}
		}
		must.Equal(t, "got", []string{"w0", "w1", "|3", "w2", "w3", "|1", "w4", "|0"}, got)
		if revisions = slices.Compact(revisions); len(revisions) != 1 {
			t.Errorf("pages of the revisions %v", revisions)
		}
		list, err := c.List(t.Context(), metav1.ListOptions{Limit: 2})
		must.Do(t, err)
		time.Sleep(6 * time.Minute)
		_, err = c.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: list.GetContinue()})
		status, is := err.(apierrors.APIStatus)
		if !is || !apierrors.IsResourceExpired(err) || status.Status().Continue == "" {
			t.Fatalf("an old token: %v", err)
		}
		rest, err := c.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: status.Status().Continue})
		if err != nil || len(rest.Items) != 6 { // present objects, including newer ones
			t.Errorf("the rest as it is now: %d, %v", len(rest.Items), err)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{ResourceVersion: "1", Continue: list.GetContinue()}); !apierrors.IsBadRequest(err) {
			t.Errorf("a token and a revision: %v", err)
		}
		selected, err := c.List(t.Context(), metav1.ListOptions{Limit: 1, LabelSelector: "!none"})
		if err != nil || selected.GetContinue() == "" || selected.GetRemainingItemCount() != nil {
			t.Errorf("a list with a selector tells how many are left: %v, %v", selected, err)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
			t.Errorf("no token at all: %v", err)
		}
	})
}

// deploy creates a Deployment of the app through the API.
func deploy(t *testing.T, c kubernetes.Interface, app string, replicas int32, volumes ...corev1.Volume) {
	t.Helper()
	labels := map[string]string{"app": app}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: app, Image: app}}, Volumes: volumes},
			},
		},
	}
	must.Get(c.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}))(t)
}

func protect(t *testing.T, c kubernetes.Interface, app string, minAvailable int) {
	t.Helper()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
	must.Get(c.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), b, metav1.CreateOptions{}))(t)
}

// podsOn lists the pods on a node, by name without the generated suffix.
func podsOn(t *testing.T, c kubernetes.Interface, node string) []string {
	t.Helper()
	pods := must.Get(c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}))(t)
	names := []string{}
	for _, p := range pods.Items {
		name, _, _ := strings.Cut(p.Name, "-")
		if p.Namespace == "kube-system" {
			name = p.GenerateName
		}
		names = append(names, name)
	}
	return names
}
