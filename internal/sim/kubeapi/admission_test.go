package kubeapi_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
)

// bare creates a bare pod on wk1 and waits until it runs.
func bare(t *testing.T, c kubernetes.Interface, namespace string, command ...string) *corev1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bare"},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare", Image: "bare", Command: command}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
	cases := map[string]struct {
		denied metav1.Status
		want   string
		code   int32
	}{
		"with a code and words": {metav1.Status{Code: http.StatusForbidden, Message: "not now"}, `admission webhook "w.example.com" denied the request: not now`, http.StatusForbidden},
		"without a code":        {metav1.Status{Reason: "Closed"}, `admission webhook "w.example.com" denied the request: Closed`, http.StatusBadRequest},
		"without a word":        {metav1.Status{}, `admission webhook "w.example.com" denied the request without explanation`, http.StatusBadRequest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
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
				if err := evict(t, client, "default", nil); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestEvictionIsOfOnePodOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		p := bare(t, c, "default")
		if err := evict(t, c, "default", new(types.UID("another"))); !apierrors.IsConflict(err) {
			t.Errorf("err = %v", err)
		}
		if err := evict(t, c, "default", &p.UID); err != nil {
			t.Error(err)
		}
	})
}

// TestNamespaceIsTerminated: nothing new is created in it, and evictions are refused; its
// pods have their grace period, and the namespace is deleted last.
func TestNamespaceIsTerminated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		namespaces := c.CoreV1().Namespaces()
		if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		bare(t, c, "old", "sleep", "infinity")
		if err := namespaces.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
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
