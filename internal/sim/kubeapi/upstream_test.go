package kubeapi_test

import (
	"crypto/tls"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

// newBridge is a lab's API, and its kubelets, in front of another control plane: here a
// second lab's, which has no kubelets of its own.
func newBridge(t *testing.T, upstream *lab, nodes ...string) *lab {
	t.Helper()
	pair := upstream.ca.issue(t, "lab", []string{"system:masters"})
	kubeconfig, err := kubeapi.Kubeconfig("upstream", "https://"+apiAddr, upstream.ca.cert, pair.cert, pair.key)
	if err != nil {
		t.Fatal(err)
	}
	up, err := kubeapi.ReadUpstream(kubeconfig, upstream.net.Dialer().DialContext)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{net: network.Memory(), calls: record.New(), ca: newAuthority(t)}
	server := l.ca.issue(t, "kube-apiserver", nil)
	cert, err := tls.X509KeyPair(server.cert, server.key)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var refused []error
	l.who = kubeapi.Identity{Version: "v1.35.4", Certificate: &cert, ClientCA: l.ca.pool()}
	l.Server, err = kubeapi.New(t.Context(), kubeapi.Options{
		Version: "v1.35.4", Recorder: l.calls, Upstream: up,
		Refused: func(err error) { mu.Lock(); defer mu.Unlock(); refused = append(refused, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := l.net.Listen(apiAddr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve(t.Context(), listener, l.who) }()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = up.Close() // it never fails
		mu.Lock()
		defer mu.Unlock()
		if len(refused) > 0 {
			t.Errorf("refused: %v", refused)
		}
	})
	for i, name := range nodes {
		l.NodeUp(node(name, i))
	}
	return l
}

// TestBridge: kubelets work on the objects of another control plane, and clients reach it
// through the lab.
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
		if err := c.PolicyV1().PodDisruptionBudgets("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := evict(); err != nil {
			t.Errorf("eviction: %v", err)
		}
		time.Sleep(5 * time.Second)
		if _, err := there.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the evicted pod: %v, want it ended by its kubelet", err)
		}
	})
}
