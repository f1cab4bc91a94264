package kubeapi_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pki "github.com/siderolabs/crypto/x509"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

func bare(t *testing.T, c kubernetes.Interface, namespace string, command ...string) *corev1.Pod {
	t.Helper()
	p := must.Get(c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bare"},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare", Image: "bare", Command: command}}},
	}, metav1.CreateOptions{}))(t)
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
	must.Bubbles(t, map[string]row{
		"with a code and words": {metav1.Status{Code: http.StatusForbidden, Message: "not now"}, `admission webhook "w.example.com" denied the request: not now`, http.StatusForbidden},
		"without a code":        {metav1.Status{Reason: "Closed"}, `admission webhook "w.example.com" denied the request: Closed`, http.StatusBadRequest},
		"without a word":        {metav1.Status{}, `admission webhook "w.example.com" denied the request without explanation`, http.StatusBadRequest},
	}, func(t *testing.T, c row) {
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
		must.Hold(t, ok && err.Error() == c.want && status.Status().Code == c.code, "err = %v", err)
		l.SetWebhook("", nil)
		must.Do(t, evict(t, client, "default", nil))
	})
}

func TestEvictionIsOfOnePodOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		p := bare(t, c, "default")
		err := evict(t, c, "default", new(types.UID("another")))
		must.Hold(t, apierrors.IsConflict(err), "err = %v", err)
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
		must.Be(t, err == nil && ns.Status.Phase == corev1.NamespaceTerminating, "namespace %+v, %v", ns.Status, err)
		err = evict(t, c, "old", nil)
		must.Hold(t, apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause),
			"err = %v", err)
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
		must.Hold(t, apierrors.IsForbidden(err) && err.Error() == want, "err = %v", err)
		for verb, may := range map[string]bool{"get": true, "create": false} {
			review, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: "default", Verb: verb, Resource: "pods", Subresource: "eviction",
				}},
			}, metav1.CreateOptions{})
			must.Hold(t, err == nil && review.Status.Allowed == may, "may %s: %t, %v", verb, review.Status.Allowed, err)
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
				Name(utilnet.JoinSchemeNamePort(scheme, name, port)).Suffix("/v1/nodes").SetHeader("Accept", "application/json").Do(t.Context())
			b, err := result.Raw()
			if err != nil {
				err = result.Error()
			}
			return strings.TrimSpace(string(b)), err
		}
		refused := func(err error, code int32, want string) {
			t.Helper()
			status, ok := err.(*apierrors.StatusError)
			must.Hold(t, ok && status.ErrStatus.Code == code && strings.Contains(status.ErrStatus.Message, want),
				"err = %v, want %d with %q", err, code, want)
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
			body, err := get("", "linstor-controller", port)
			must.Hold(t, err == nil && strings.Contains(body, `"connection_status":"ONLINE"`), "%s: %s, %v", port, body, err)
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
			raw := table.Rows[0].Object.Raw
			must.Hold(t, (len(raw) == 0 || json.Unmarshal(raw, &row) == nil) && row.Kind == want, "includeObject=%s: %s", include, raw)
		}
		_, err := tableOf(t, c, "/api/v1/nodes?includeObject=All", asTable)
		must.Hold(t, apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "Unable to convert to Table as requested: includeObject"), "an unknown includeObject: %v", err)
		plain, err := tableOf(t, c, "/api/v1/nodes", "application/json,"+asTable)
		must.Hold(t, err == nil && plain.Kind == "NodeList", "objects were preferred, got a %s, %v", plain.Kind, err)
	})
}

// TestWatchTables: kubectl get --watch gets the columns once, and a row per change.
func TestWatchTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		time.Sleep(20 * time.Second)
		body := must.Get(c.CoreV1().RESTClient().Get().RequestURI("/api/v1/nodes?watch=true&timeoutSeconds=60").SetHeader("Accept", asTable).Stream(t.Context()))(t)
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
	pair := issue(t, upstream.ca, "lab", "system:masters")
	kubeconfig := must.Get(kubeapi.Kubeconfig("upstream", "https://"+apiAddr, upstream.ca.CrtPEM, pair.CrtPEM, pair.KeyPEM))(t)
	up := must.Get(kubeapi.ReadUpstream(kubeconfig, upstream.net.Dialer().DialContext))(t)
	var mu sync.Mutex
	var refused []error
	t.Cleanup(func() { // after the lab's own
		_ = up.Close() // it never fails
		mu.Lock()
		defer mu.Unlock()
		must.Hold(t, len(refused) == 0, "refused: %v", refused)
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
		n := look(t, there, "wk1")
		must.Hold(t, n.BootID == "boot-1-wk1" && n.Ready == corev1.ConditionTrue, "node wk1 is %+v", n)
		lease, err := there.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "wk1", metav1.GetOptions{})
		must.Hold(t, err == nil && time.Since(lease.Spec.RenewTime.Time) <= 11*time.Second, "lease of wk1: %+v, %v", lease, err)

		list, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		must.Be(t, err == nil && len(list.Items) == 2, "pods through the lab: %v, %v", list, err)
		pod := list.Items[0]
		evict := func() error {
			return c.PolicyV1().Evictions("default").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: "default"}})
		}
		if err := evict(); !apierrors.IsTooManyRequests(err) {
			t.Errorf("eviction against the budget: %v, want a refusal", err)
		}
		must.Do(t, c.PolicyV1().PodDisruptionBudgets("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		must.Pass(t, evict())
		time.Sleep(5 * time.Second)
		if _, err := there.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the evicted pod: %v, want it ended by its kubelet", err)
		}
	})
}

const apiAddr = "127.42.7.10:6443"

// lab is an API in memory with three workers that are starting.
type lab struct {
	*kubeapi.Server
	net   *network.Network
	calls *record.Recorder
	ca    *pki.CertificateAuthority
	who   kubeapi.Identity // its only API server
}

func newLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	return startLab(t, kubeapi.Options{}, nodes...)
}

// startLab starts an API with these options, which its version and recorder are added to.
func startLab(t *testing.T, o kubeapi.Options, nodes ...string) *lab {
	t.Helper()
	l := &lab{net: network.Memory(), calls: record.New(), ca: newAuthority(t)}
	server := issue(t, l.ca, "kube-apiserver")
	clients := x509.NewCertPool()
	clients.AddCert(l.ca.Crt)
	l.who = kubeapi.Identity{Version: "v1.35.4", Certificate: server.Certificate, ClientCA: clients}
	o.Version, o.Recorder = "v1.35.4", l.calls
	l.Server = must.Get(kubeapi.New(t.Context(), o))(t)
	listener := must.Get(l.net.Listen(apiAddr))(t)
	served := make(chan error, 1)
	go func() { served <- l.Serve(t.Context(), listener, l.who) }()
	t.Cleanup(func() {
		must.Pass(t, l.Close())
		must.Pass(t, <-served)
	})
	for i, name := range nodes {
		l.NodeUp(node(name, i))
	}
	return l
}

func node(name string, i int) kubeapi.NodeInfo {
	return kubeapi.NodeInfo{
		Name: name, UUID: "4c4c4544-0000-4000-8000-00000000000" + string(rune('1'+i)), BootID: "boot-1-" + name,
		KubeletVersion: "v1.35.4", OSImage: "Talos (v1.13.9)", Addresses: []string{"127.42.7.3" + string(rune('1'+i))},
		Annotations: map[string]string{"talos.dev/owned-labels": "[]"},
	}
}

func (l *lab) client(t *testing.T, organization ...string) *kubernetes.Clientset {
	t.Helper()
	return must.Get(kubernetes.NewForConfig(l.config(t, organization...)))(t)
}

func (l *lab) config(t *testing.T, organization ...string) *rest.Config {
	t.Helper()
	pair := issue(t, l.ca, "admin", organization...)
	kubeconfig := must.Get(kubeapi.Kubeconfig("lab", "https://"+apiAddr, l.ca.CrtPEM, pair.CrtPEM, pair.KeyPEM))(t)
	cfg := must.Get(clientcmd.RESTConfigFromKubeConfig(kubeconfig))(t)
	cfg.Dial = l.net.Dialer().DialContext
	cfg.QPS = -1
	httpClient := must.Get(rest.HTTPClientFor(cfg))(t)
	// All clients of this config share the transport.
	t.Cleanup(httpClient.CloseIdleConnections)
	return cfg
}

func newAuthority(t *testing.T) *pki.CertificateAuthority {
	t.Helper()
	return must.Get(pki.NewSelfSignedCertificateAuthority(pki.ECDSA(true), pki.CommonName("kubernetes")))(t)
}

func issue(t *testing.T, ca *pki.CertificateAuthority, name string, organization ...string) *pki.KeyPair {
	t.Helper()
	return must.Get(pki.NewKeyPair(ca, pki.CommonName(name), pki.Organization(organization...), pki.IPAddresses([]net.IP{net.ParseIP("127.42.7.10")}),
		pki.ExtKeyUsage([]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth})))(t)
}

func TestStatusErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters")
		leases := c.CoordinationV1().Leases("kube-system")
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "recast"}}
		stored := must.Get(leases.Create(t.Context(), lease, metav1.CreateOptions{}))(t)
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
	must.Bubbles(t, map[string]row{
		"merge":             {types.MergePatchType, `{"data":{"a":null,"c":"3"}}`, map[string]string{"b": "2", "c": "3"}},
		"strategic":         {types.StrategicMergePatchType, `{"data":{"a":"9"}}`, map[string]string{"a": "9", "b": "2"}},
		"json":              {types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"1"},{"op":"remove","path":"/data/a"},{"op":"add","path":"/data/x~1y","value":"4"}]`, map[string]string{"b": "2", "x/y": "4"}},
		"json that fails":   {types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"2"},{"op":"remove","path":"/data/a"}]`, nil},
		"json into nothing": {types.JSONPatchType, `[{"op":"replace","path":"/nothing/a","value":"2"}]`, nil},
	}, func(t *testing.T, tc row) {
		maps := newLab(t).client(t, "system:masters").CoreV1().ConfigMaps("default")
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"a": "1", "b": "2"}}
		must.Get(maps.Create(t.Context(), cm, metav1.CreateOptions{}))(t)
		got, err := maps.Patch(t.Context(), "x", tc.kind, []byte(tc.patch), metav1.PatchOptions{})
		if tc.want == nil {
			known := apierrors.APIStatus(nil)
			must.Be(t, errors.As(err, &known) && known.Status().Code == http.StatusUnprocessableEntity, "err = %v, want 422", err)
			return
		}
		must.Do(t, err)
		must.Equal(t, "data", tc.want, got.Data)
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
		must.Hold(t, err == nil && v.GitVersion == "v1.35.4" && v.Minor == "35", "version = %+v, %v", v, err)
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
				_, ok := e.Object.(*corev1.Node)
				must.Be(t, ok, "%s: event %s with a %T", accept, e.Type, e.Object)
				got = append(got, e.Type)
			}
			w.Stop()
			must.Equal(t, accept+": events", []watch.EventType{watch.Added, watch.Modified, watch.Deleted}, got)
			must.Do(t, l.Close())
		}
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
		must.Be(t, err == nil && !n.Spec.Unschedulable, "a request that was broken off has acted: %v, %v", n, err)
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
	must.Hold(t, err == nil && len(list.Items) == 4, "namespaces = %v, %v", list, err)
	must.Do(t, listener.Close())
	must.Pass(t, <-served)
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
		must.Be(t, is && apierrors.IsResourceExpired(err) && status.Status().Continue != "", "an old token: %v", err)
		rest, err := c.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: status.Status().Continue})
		if err != nil || len(rest.Items) != 6 { // present objects, including newer ones
			t.Errorf("the rest as it is now: %d, %v", len(rest.Items), err)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{ResourceVersion: "1", Continue: list.GetContinue()}); !apierrors.IsBadRequest(err) {
			t.Errorf("a token and a revision: %v", err)
		}
		selected, err := c.List(t.Context(), metav1.ListOptions{Limit: 1, LabelSelector: "!none"})
		must.Hold(t, err == nil && selected.GetContinue() != "" && selected.GetRemainingItemCount() == nil,
			"a list with a selector tells how many are left: %v, %v", selected, err)
		if _, err := c.List(t.Context(), metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
			t.Errorf("no token at all: %v", err)
		}
	})
}

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

func TestInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		ctx, cancel := context.WithCancel(t.Context())
		f := informers.NewSharedInformerFactory(c, 0)
		nodes := f.Core().V1().Nodes()
		informer := nodes.Informer()
		f.Start(ctx.Done())
		must.Be(t, cache.WaitForCacheSync(ctx.Done(), informer.HasSynced), "informer did not sync")
		time.Sleep(10 * time.Second)
		n, err := nodes.Lister().Get("wk1")
		must.Hold(t, err == nil && n.Status.NodeInfo.BootID == "boot-1-wk1" && len(n.Spec.Taints) == 0,
			"informer's node = %+v, %v", n, err)
		cancel()
		f.Shutdown()
	})
}
