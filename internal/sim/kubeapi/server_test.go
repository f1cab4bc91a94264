package kubeapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
)

// bare creates a bare pod on wk1 and waits until it runs.
func bare(t *testing.T, c kubernetes.Interface, namespace string, command ...string) *corev1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bare"},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare", Image: "bare", Command: command}}},
	}, metav1.CreateOptions{})
	must.Do(t, err)
	time.Sleep(10 * time.Second)
	return p
}

func evict(t *testing.T, c kubernetes.Interface, namespace string, uid *types.UID) error {
	t.Helper()
	return c.PolicyV1().Evictions(namespace).Evict(t.Context(), &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: "bare", Namespace: namespace},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: uid}},
	})
}

func TestWebhookDeniesAsTheServerSays(t *testing.T) {
	type row struct {
		denied metav1.Status
		want   string
		code   int32
	}
	must.Each(t, map[string]row{
		"with a code and words": {metav1.Status{Code: http.StatusForbidden, Message: "not now"}, `admission webhook "w.example.com" denied the request: not now`, http.StatusForbidden},
		"without a code":        {metav1.Status{Reason: "Closed"}, `admission webhook "w.example.com" denied the request: Closed`, http.StatusBadRequest},
		"without a word":        {metav1.Status{}, `admission webhook "w.example.com" denied the request without explanation`, http.StatusBadRequest},
	}, func(t *testing.T, c row) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, "wk1")
			client := l.client(t, "system:masters")
			bare(t, client, "default")
			l.SetWebhook("w.example.com", func(r kubeapi.Request) *metav1.Status {
				if r != (kubeapi.Request{Verb: "create", Resource: "pods/eviction", Namespace: "default", Name: "bare"}) {
					return nil
				}
				return &c.denied
			})
			err := evict(t, client, "default", nil)
			status, ok := err.(apierrors.APIStatus)
			if !ok || err.Error() != c.want || status.Status().Code != c.code {
				t.Errorf("err = %v", err)
			}
			l.SetWebhook("", nil)
			must.Do(t, evict(t, client, "default", nil))
		})
	})
}

func TestEvictionIsOfOnePodOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		p := bare(t, c, "default")
		if err := evict(t, c, "default", new(types.UID("another"))); !apierrors.IsConflict(err) {
			t.Errorf("err = %v", err)
		}
		must.Do(t, evict(t, c, "default", &p.UID))
	})
}

// TestNamespaceIsTerminated: nothing new is created in it, and evictions are refused; its
// pods have their grace period, and the namespace is deleted last.
func TestNamespaceIsTerminated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		namespaces := c.CoreV1().Namespaces()
		must.Get(namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.CreateOptions{}))(t)
		bare(t, c, "old", "sleep", "infinity")
		must.Do(t, namespaces.Delete(t.Context(), "old", metav1.DeleteOptions{}))
		ns, err := namespaces.Get(t.Context(), "old", metav1.GetOptions{})
		if err != nil || ns.Status.Phase != corev1.NamespaceTerminating {
			t.Fatalf("namespace %+v, %v", ns.Status, err)
		}
		err = evict(t, c, "old", nil)
		if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("err = %v", err)
		}
		time.Sleep(30 * time.Second)
		if p, err := c.CoreV1().Pods("old").Get(t.Context(), "bare", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil {
			t.Errorf("within its grace period: %v, %v", p.DeletionTimestamp, err)
		}
		time.Sleep(10 * time.Second)
		if _, err := namespaces.Get(t.Context(), "old", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the namespace is still there: %v", err)
		}
	})
}

func TestEvictionPermissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		bare(t, l.client(t, "system:masters"), "default")
		l.Grant("readers", func(r kubeapi.Request) bool { return r.Verb == "get" || r.Verb == "list" })
		c := l.client(t, "readers")
		err := evict(t, c, "default", nil)
		const want = `pods "bare" is forbidden: User "admin" cannot create resource "pods/eviction" in API group "" in the namespace "default"`
		if !apierrors.IsForbidden(err) || err.Error() != want {
			t.Errorf("err = %v", err)
		}
		for verb, may := range map[string]bool{"get": true, "create": false} {
			review, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: "default", Verb: verb, Resource: "pods", Subresource: "eviction",
				}},
			}, metav1.CreateOptions{})
			if err != nil || review.Status.Allowed != may {
				t.Errorf("may %s: %t, %v", verb, review.Status.Allowed, err)
			}
		}
	})
}

// TestServiceProxy reaches a program behind a Service as through a real API server: by port or its name, and not without
// a ready pod, a Service, a port, or the right to it.
func TestServiceProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		get := func(scheme, name, port string) (string, error) {
			result := c.CoreV1().RESTClient().Get().Namespace("default").Resource("services").SubResource("proxy").
				Name(net.JoinSchemeNamePort(scheme, name, port)).Suffix("/v1/nodes").SetHeader("Accept", "application/json").Do(t.Context())
			b, err := result.Raw()
			if err != nil {
				err = result.Error()
			}
			return strings.TrimSpace(string(b)), err
		}
		refused := func(err error, code int32, want string) {
			t.Helper()
			status, ok := err.(*apierrors.StatusError)
			if !ok || status.ErrStatus.Code != code || !strings.Contains(status.ErrStatus.Message, want) {
				t.Errorf("err = %v, want %d with %q", err, code, want)
			}
		}
		_, err := get("", "linstor-controller", "3370")
		refused(err, http.StatusNotFound, `services "linstor-controller" not found`)
		labels := map[string]string{"app": "linstor-controller"}
		put := func(s *corev1.Service) { must.Get(l.Store().Create(t.Context(), store.Services(), s))(t) }
		put(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "linstor-controller", Namespace: "default"},
			Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "api", Port: 3370}}},
		})
		_, err = get("", "linstor-controller", "3370")
		refused(err, http.StatusServiceUnavailable, `no endpoints available for service "linstor-controller"`)
		_, err = get("", "linstor-controller", "80")
		refused(err, http.StatusServiceUnavailable, `no service port 80 found for service "linstor-controller"`)
		pod := func(name, container string, labels map[string]string) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels}, Spec: corev1.PodSpec{NodeName: "wk1"}}
			p.Spec.Containers = []corev1.Container{{Name: container, Image: "x"}}
			must.Get(l.Store().Create(t.Context(), store.Pods(), p))(t)
		}
		pod("a", "linstor-controller", labels)
		pod("b", "other", map[string]string{"app": "other"})
		put(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "default"},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "other"}, Ports: []corev1.ServicePort{{Name: "api", Port: 3370}}},
		})
		time.Sleep(20 * time.Second)
		l.LINSTOR().AddNode("wk1")
		for _, port := range []string{"3370", "api"} {
			if body, err := get("", "linstor-controller", port); err != nil || !strings.Contains(body, `"connection_status":"ONLINE"`) {
				t.Errorf("%s: %s, %v", port, body, err)
			}
		}
		_, err = get("https", "linstor-controller", "3370")
		refused(err, http.StatusServiceUnavailable, "error trying to reach service: ")
		_, err = get("", "other", "3370")
		refused(err, http.StatusServiceUnavailable, "connection refused")
		_, err = c.CoreV1().Services("default").ProxyGet("", "linstor-controller", "3370", "/v1/none", nil).DoRaw(t.Context())
		refused(err, http.StatusNotFound, "")

		l.Grant("readers", func(r kubeapi.Request) bool { return r.Resource == "services" })
		c = l.client(t, "readers")
		_, err = get("", "linstor-controller", "3370")
		refused(err, http.StatusForbidden, `services "linstor-controller:3370" is forbidden: User "admin" cannot get resource "services/proxy" in API group "" in the namespace "default"`)
		l.Grant("readers", func(r kubeapi.Request) bool {
			return r == kubeapi.Request{Verb: "get", Resource: "services/proxy", Namespace: "default", Name: "linstor-controller:3370"}
		})
		must.Get(get("", "linstor-controller", "3370"))(t)
	})
}

// asTable is what kubectl get asks for.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

// show is a table as kubectl prints it, without the columns of -o wide.
func show(t *metav1.Table) (lines []string) {
	header := []string{}
	for _, c := range t.ColumnDefinitions {
		if c.Priority == 0 {
			header = append(header, c.Name)
		}
	}
	lines = append(lines, strings.Join(header, "|"))
	for _, row := range t.Rows {
		cells := []string{}
		for i, c := range t.ColumnDefinitions {
			if c.Priority == 0 {
				cells = append(cells, fmt.Sprint(row.Cells[i]))
			}
		}
		lines = append(lines, strings.Join(cells, "|"))
	}
	return lines
}

func tableOf(t *testing.T, c *kubernetes.Clientset, path, accept string) (*metav1.Table, error) {
	t.Helper()
	answer := c.CoreV1().RESTClient().Get().RequestURI(path).SetHeader("Accept", accept).Do(t.Context())
	b, _ := answer.Raw()
	if err := answer.Error(); err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	must.Do(t, json.Unmarshal(b, table))
	return table, nil
}

// TestTables: a client that prefers tables gets them, with the columns of the kind.
func TestTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		r := widgets(false)
		l.Define(r)
		must.Get(l.Store().Create(t.Context(), r.GroupVersionResource, widget("one", 1)))(t)
		c := l.client(t, "system:masters")
		deploy(t, c, "web", 1)
		time.Sleep(20 * time.Second)
		for path, want := range map[string][]string{
			"/api/v1/nodes":     {"Name|Status|Roles|Age|Version", "wk1|Ready|<none>|20s|v1.35.4"},
			"/api/v1/nodes/wk1": {"Name|Status|Roles|Age|Version", "wk1|Ready|<none>|20s|v1.35.4"},
			"/apis/apps/v1/namespaces/default/deployments":        {"Name|Ready|Up-to-date|Available|Age", "web|1/1|1|1|20s"},
			"/apis/example.org/v1beta1/widgets":                   {"Name|Age", "one|20s"},
			"/apis/storage.k8s.io/v1/volumeattachments":           {"Name|Attacher|PV|Node|Attached|Age"},
			"/apis/coordination.k8s.io/v1/leases":                 {"Name|Holder|Age", "wk1|wk1|20s"},
			"/apis/rbac.authorization.k8s.io/v1/clusterroles":     {"Name|Created At", "flannel|2000-01-01T00:00:00Z", "system:coredns|2000-01-01T00:00:00Z", "system:talos-nodes|2000-01-01T00:00:00Z"},
			"/api/v1/namespaces?fieldSelector=metadata.name%3Dx":  {"Name|Status|Age"},
			"/api/v1/events?fieldSelector=involvedObject.name%3D": {"Last Seen|Type|Reason|Object|Message"},
		} {
			table, err := tableOf(t, c, path, asTable)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			must.Equal(t, path, want, show(table))
		}
		for include, want := range map[string]string{
			"": "PartialObjectMetadata", "Metadata": "PartialObjectMetadata", "Object": "Node", "None": "",
		} {
			table := must.Get(tableOf(t, c, "/api/v1/nodes?includeObject="+include, asTable))(t)
			var row struct{ Kind string }
			if raw := table.Rows[0].Object.Raw; len(raw) > 0 && json.Unmarshal(raw, &row) != nil || row.Kind != want {
				t.Errorf("includeObject=%s: %s", include, raw)
			}
		}
		_, err := tableOf(t, c, "/api/v1/nodes?includeObject=All", asTable)
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "Unable to convert to Table as requested: includeObject") {
			t.Errorf("an unknown includeObject: %v", err)
		}
		plain, err := tableOf(t, c, "/api/v1/nodes", "application/json,"+asTable)
		if err != nil || plain.Kind != "NodeList" {
			t.Errorf("objects were preferred, got a %s, %v", plain.Kind, err)
		}
	})
}

// TestWatchTables: kubectl get --watch gets the columns once, and a row per change.
func TestWatchTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		time.Sleep(20 * time.Second)
		body, err := c.CoreV1().RESTClient().Get().RequestURI("/api/v1/nodes?watch=true&timeoutSeconds=60").SetHeader("Accept", asTable).Stream(t.Context())
		must.Do(t, err)
		defer func() { _ = body.Close() }()
		go l.NodeDown(node("wk1", 0).UUID)
		var got []string
		for lines := bufio.NewScanner(body); lines.Scan(); {
			var e struct {
				Type   string
				Object metav1.Table
			}
			must.Do(t, json.Unmarshal(lines.Bytes(), &e))
			got = append(got, fmt.Sprintf("%s %d columns: %v", e.Type, len(e.Object.ColumnDefinitions), e.Object.Rows[0].Cells[:3]))
		}
		want := []string{"ADDED 10 columns: [wk1 Ready <none>]", "MODIFIED 0 columns: [wk1 Ready <none>]", "MODIFIED 0 columns: [wk1 NotReady <none>]"}
		must.Equal(t, "got", want, got)
	})
}

// newBridge is a lab's API, and its kubelets, in front of another control plane: here a
// second lab's, which has no kubelets of its own.
func newBridge(t *testing.T, upstream *lab, nodes ...string) *lab {
	t.Helper()
	pair := upstream.ca.issue(t, "lab", []string{"system:masters"})
	kubeconfig := must.Get(kubeapi.Kubeconfig("upstream", "https://"+apiAddr, upstream.ca.cert, pair.cert, pair.key))(t)
	up := must.Get(kubeapi.ReadUpstream(kubeconfig, upstream.net.Dialer().DialContext))(t)
	var mu sync.Mutex
	var refused []error
	t.Cleanup(func() { // after the lab's own
		_ = up.Close() // it never fails
		mu.Lock()
		defer mu.Unlock()
		if len(refused) > 0 {
			t.Errorf("refused: %v", refused)
		}
	})
	return startLab(t, kubeapi.Options{Upstream: up, Refused: func(err error) { mu.Lock(); defer mu.Unlock(); refused = append(refused, err) }}, nodes...)
}

// TestBridge: kubelets work on the objects of another control plane, and clients reach it through the lab.
func TestBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := newLab(t)
		l := newBridge(t, upstream, "wk1", "wk2")
		c, there := l.client(t, "system:masters"), upstream.client(t, "system:masters")

		deploy(t, c, "web", 2)
		protect(t, c, "web", 2)
		time.Sleep(20 * time.Second)
		pods := slices.Concat(podsOn(t, there, "wk1"), podsOn(t, there, "wk2"))
		if n := len(slices.DeleteFunc(slices.Clone(pods), func(name string) bool { return name != "web" })); n != 2 {
			t.Fatalf("pods on the nodes: %v, want two of web", pods)
		}
		if n := look(t, there, "wk1"); n.BootID != "boot-1-wk1" || n.Ready != corev1.ConditionTrue {
			t.Errorf("node wk1 is %+v", n)
		}
		lease, err := there.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "wk1", metav1.GetOptions{})
		if err != nil || time.Since(lease.Spec.RenewTime.Time) > 11*time.Second {
			t.Errorf("lease of wk1: %+v, %v", lease, err)
		}

		list, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(list.Items) != 2 {
			t.Fatalf("pods through the lab: %v, %v", list, err)
		}
		pod := list.Items[0]
		evict := func() error {
			return c.PolicyV1().Evictions("default").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: "default"}})
		}
		if err := evict(); !apierrors.IsTooManyRequests(err) {
			t.Errorf("eviction against the budget: %v, want a refusal", err)
		}
		must.Do(t, c.PolicyV1().PodDisruptionBudgets("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		if err := evict(); err != nil {
			t.Errorf("eviction: %v", err)
		}
		time.Sleep(5 * time.Second)
		if _, err := there.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the evicted pod: %v, want it ended by its kubelet", err)
		}
	})
}
