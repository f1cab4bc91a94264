package kubeapi_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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
		put := func(s *corev1.Service) {
			if _, err := l.Store().Create(t.Context(), store.Services(), s); err != nil {
				t.Fatal(err)
			}
		}
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
			if _, err := l.Store().Create(t.Context(), store.Pods(), p); err != nil {
				t.Fatal(err)
			}
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
		if _, err := get("", "linstor-controller", "3370"); err != nil {
			t.Error(err)
		}
	})
}
