package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	registry "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // decoded for the printers
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

func troubles() []trouble {
	return slices.Concat(gateTroubles(), drainTroubles(), serverTroubles(), nodeTroubles())
}

func drainTroubles() []trouble {
	return []trouble{
		{
			name: "a budget never allows", roll: soon, code: 1,
			begins: func(s *scene) func() {
				ends := s.pinned(nil)
				budgets := s.plane.Client.PolicyV1().PodDisruptionBudgets("default")
				_, err := budgets.Create(s.t.Context(), &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Name: "never", Namespace: "default"},
					Spec: policyv1.PodDisruptionBudgetSpec{
						MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "pinned"}},
					},
				}, metav1.CreateOptions{})
				s.check(err)
				s.until("the budget is known", func() bool {
					b, err := budgets.Get(s.t.Context(), "never", metav1.GetOptions{})
					return err == nil && b.Status.CurrentHealthy == 1
				})
				return func() {
					s.check(budgets.Delete(s.t.Context(), "never", metav1.DeleteOptions{}))
					ends()
				}
			},
			says:  []string{"PodDisruptionBudget default/never needs 1 healthy pods and has 1", "give the workload a replica to spare or loosen its budget"},
			after: (*scene).serves,
		},
		{
			name: "a pod ignores SIGTERM for longer than the drain may take", roll: soon, code: 1,
			begins: func(s *scene) func() { return s.pinned(stubborn(3600)) },
			says:   []string{"still terminating"},
			after:  (*scene).serves,
		},
		{
			name:   "a pod ignores SIGTERM until it is killed",
			begins: func(s *scene) func() { return s.pinned(stubborn(40)) },
			says:   []string{"pod default/pinned"},
		},
		{
			name: "an attachment never goes", roll: soon, code: 1,
			begins: func(s *scene) func() {
				use, remove := s.volume()
				ends := s.pinned(use)
				s.holdAttachments(true)
				return func() { s.holdAttachments(false); ends(); remove() }
			},
			says:  []string{"still attached: PersistentVolume far (claim default/far, driver csi.example.com)"},
			after: (*scene).serves,
		},
		{
			name: "an admission webhook denies evictions", roll: soon, code: 1,
			begins: func(s *scene) func() {
				ends, allow := s.pinned(nil), s.denyEvictions("not during the sale")
				return func() { allow(); ends() }
			},
			says:  []string{"not during the sale"},
			after: (*scene).serves,
		},
	}
}

// stubborn is a pod that ignores SIGTERM.
func stubborn(graceSeconds int64) func(*corev1.PodSpec) {
	return func(p *corev1.PodSpec) {
		p.TerminationGracePeriodSeconds = &graceSeconds
		p.Containers[0].Command = []string{"sleep", "infinity"}
	}
}

// serves requires a node that could not be drained to be schedulable again.
func (s *scene) serves() {
	s.t.Helper()
	if n := s.node(); n == nil || n.Spec.Unschedulable || !nodeReady(n) {
		s.t.Errorf("%s was left out of service: %+v", target, n)
	}
}

// holdAttachments blocks the detaching of the worker's volumes, like a storage that does not answer, or unblocks it.
func (s *scene) holdAttachments(hold bool) {
	s.t.Helper()
	const finalizer = "example.com/storage-does-not-answer"
	attachments := s.plane.Client.StorageV1().VolumeAttachments()
	held := 0
	s.check(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		list, err := attachments.List(s.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, a := range list.Items {
			a.Finalizers = slices.DeleteFunc(a.Finalizers, func(f string) bool { return f == finalizer })
			if hold {
				a.Finalizers = append(a.Finalizers, finalizer)
			}
			if _, err := attachments.Update(s.t.Context(), &a, metav1.UpdateOptions{}); err != nil {
				return err
			}
			held++
		}
		return nil
	}))
	if hold && held == 0 {
		s.t.Error("no volume is attached")
	}
}

func serverTroubles() []trouble {
	return []trouble{
		{
			name: "the API server dies in the middle of a drain and comes back",
			begins: func(s *scene) func() {
				return s.pinned(func(p *corev1.PodSpec) {
					p.TerminationGracePeriodSeconds = new(int64(600))
					p.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 100}}}
				})
			},
			meanwhile: func(s *scene) {
				s.until("the pod is told to end", func() bool {
					return slices.ContainsFunc(s.pinnedPods(), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
				})
				s.plane.StopAPI()
				time.Sleep(2 * time.Second)
				s.plane.StartAPI()
				s.plane.WaitReady()
			},
		},
		{
			name: "the Node of a boot before is still called Ready", roll: briefly, code: 1,
			begins: func(s *scene) func() { return s.muteKubelet(true) },
			meanwhile: func(s *scene) {
				// The controllers would set the Node to Unknown after a while.
				s.check(s.plane.Controllers.Signal(syscall.SIGSTOP))
			},
			says: []string{"Kubernetes has not seen this boot yet"},
			after: func(s *scene) {
				if n := s.node(); n == nil || !nodeReady(n) {
					s.t.Errorf("the Node should look Ready, as of the boot before: %+v", n)
				}
				s.check(s.plane.Controllers.Signal(syscall.SIGCONT))
			},
		},
	}
}

// scene is a lab in front of a control plane in which one worker, wk1, is rolled
// repeatedly, each time with another trouble.
type scene struct {
	*user
	t     *testing.T
	plane *plane.ControlPlane
}

type trouble struct {
	name string
	// roll is the timeouts in recast.yaml; "": long enough for everything.
	roll string
	// begins makes the trouble before the roll; the result ends it.
	begins func(s *scene) (ends func())
	// meanwhile runs during the roll.
	meanwhile func(s *scene)
	code      int
	says      []string
	// after checks the cluster after the roll, before the trouble ends.
	after func(s *scene)
}

const (
	soon     = "drain: {timeout: 10s}\n  timeouts: {stop: 1m, boot: 2m, join: 2m}"
	briefly  = "timeouts: {stop: 1m, boot: 2m, join: 15s}"
	patient  = "timeouts: {stop: 1m, boot: 2m, join: 2m}"
	target   = "wk1"
	rollLine = "roll --yes --only " + target
)

// TestTroubles: the roll ends as the trouble says, and the same command finishes it once the trouble is over.
func TestTroubles(t *testing.T) {
	t.Parallel() // both mostly wait
	plane := plane.Start(t)
	u := startLab(t, plane)
	for _, c := range troubles() {
		t.Run(c.name, func(t *testing.T) {
			s := &scene{user: u, t: t, plane: plane}
			u.t = t
			s.suffer(c)
			t.Attr("kubernetes-troubles", "1")
		})
	}
	u.t = t
	u.must(0, "lab check --dir .", "persistent disks intact")
	t.Attr("commands", strconv.Itoa(u.count))
}

func (s *scene) suffer(c trouble) {
	s.t.Helper()
	fmt.Fprintf(s.t.Output(), "\n%s\n", c.name)
	s.waits(patient)
	s.must(0, "lab patch iscsi-tools --dir .")
	s.must(0, "lock --update")
	s.must(2, "drift", "stale    "+target)
	ends := func() {}
	if c.begins != nil {
		ends = c.begins(s)
	}
	if c.roll != "" {
		s.waits(c.roll)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.meanwhile != nil {
			c.meanwhile(s)
		}
	}()
	said := s.run(rollLine)
	<-done
	if c.after != nil {
		c.after(s)
	}
	ends()
	said.has(s.t, c.code, c.says...)
	s.waits(patient)
	s.must(0, rollLine)
	s.settled()
}

// settled waits until the other worker and the workloads are as before.
func (s *scene) settled() {
	s.t.Helper()
	s.until("no node is cordoned", func() bool {
		for _, n := range s.nodes() {
			if n.Spec.Unschedulable || !nodeReady(&n) {
				return false
			}
		}
		return true
	})
}

func (s *scene) waits(roll string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "recast.yaml")
	b := must(os.ReadFile(path))(s.t)
	head, _, found := strings.Cut(string(b), "\nroll:\n")
	if !found {
		s.t.Fatalf("recast.yaml has no roll:\n%s", b)
	}
	text := head + "\nroll:\n  settle: 2s\n  poll: 200ms\n  " + roll + "\n"
	mustDo(s.t, os.WriteFile(path, []byte(text), 0o600))
}

// until waits until something happens by itself.
func (s *scene) until(what string, so func() bool) {
	s.t.Helper()
	for range 600 {
		if so() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Errorf("after a minute it is not so that %s", what)
}

// gateTroubles are refusals before anything is touched.
func gateTroubles() []trouble {
	return []trouble{
		{
			name: "a gate of the user's own does not hold", code: 4,
			roll: patient + "\n  gates: [{description: the vault is well, apiVersion: example.com/v1, kind: Vault, expr: \"status.health == 'OK'\", timeout: 4s, when: both}]",
			begins: func(s *scene) func() {
				remove := s.defineVaults()
				s.vault("DEGRADED")
				return remove
			},
			says:  []string{"the vault is well", "DEGRADED"},
			after: (*scene).serves,
		},
		{
			name: "no controller would bring a pod back", roll: soon, code: 4,
			begins: func(s *scene) func() {
				pods := s.plane.Client.CoreV1().Pods("default")
				_, err := pods.Create(s.t.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default"},
					Spec: corev1.PodSpec{
						NodeSelector: map[string]string{corev1.LabelHostname: target},
						Containers:   []corev1.Container{{Name: "bare", Image: "registry.k8s.io/e2e-test-images/agnhost"}},
					},
				}, metav1.CreateOptions{})
				s.check(err)
				s.until("the pod is on its node", func() bool {
					p, err := pods.Get(s.t.Context(), "bare", metav1.GetOptions{})
					return err == nil && p.Spec.NodeName == target
				})
				return func() { s.check(pods.Delete(s.t.Context(), "bare", now)) }
			},
			says:  []string{"no controller would bring these pods back: default/bare", "roll.drain.force"},
			after: (*scene).serves,
		},
	}
}

var vaults = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "vaults"}

func (s *scene) dynamic() *dynamic.DynamicClient {
	s.t.Helper()
	c, err := dynamic.NewForConfig(s.plane.Admin)
	s.check(err)
	return c
}

func (s *scene) defineVaults() (ends func()) {
	s.t.Helper()
	definitions := s.dynamic().Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Create(s.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "vaults.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "vaults", "singular": "vault", "kind": "Vault", "listKind": "VaultList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	s.check(err)
	s.until("vaults are served", func() bool {
		_, err := s.dynamic().Resource(vaults).List(s.t.Context(), metav1.ListOptions{})
		return err == nil
	})
	return func() { s.check(definitions.Delete(s.t.Context(), "vaults.example.com", metav1.DeleteOptions{})) }
}

func (s *scene) vault(health string) {
	s.t.Helper()
	made, err := s.dynamic().Resource(vaults).Namespace("default").Create(s.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Vault", "metadata": map[string]any{"name": "crown"},
	}}, metav1.CreateOptions{})
	s.check(err)
	made.Object["status"] = map[string]any{"health": health}
	_, err = s.dynamic().Resource(vaults).Namespace("default").UpdateStatus(s.t.Context(), made, metav1.UpdateOptions{})
	s.check(err)
}

func nodeTroubles() []trouble {
	return []trouble{
		{
			name: "someone deletes the Node while its machine is away",
			begins: func(s *scene) func() {
				s.edit(func(n *corev1.Node) { n.Labels["example.com/rack"] = "r7" })
				return func() { s.edit(func(n *corev1.Node) { delete(n.Labels, "example.com/rack") }) }
			},
			meanwhile: func(s *scene) {
				s.until("the machine is away", func() bool { return s.telling("✓ take " + target + " down") })
				s.check(s.plane.Client.CoreV1().Nodes().Delete(s.t.Context(), target, metav1.DeleteOptions{}))
			},
			after: func(s *scene) {
				if n := s.node(); n == nil || n.Labels["example.com/rack"] != "r7" || n.Spec.Unschedulable {
					s.t.Errorf("the Node is not what it was: %+v", n)
				}
			},
		},
		{
			name:   "someone else cordoned the Node",
			begins: func(s *scene) func() { return s.cordoned() },
			after: func(s *scene) {
				if n := s.node(); n == nil || !n.Spec.Unschedulable {
					s.t.Errorf("recast let pods onto a Node that a person had cordoned: %+v", n)
				}
			},
		},
		{
			name: "the kubelet never becomes Ready", roll: briefly, code: 1,
			begins: func(s *scene) func() { return s.muteKubelet(false) },
			says:   []string{"its Node is not Ready", "recast undo " + target},
		},
		{
			name: "a serving certificate waits for approval", roll: briefly, code: 1,
			begins: (*scene).requestCertificate,
			says:   []string{"certificate requests of its kubelet wait for approval: kubectl certificate approve serving"},
		},
	}
}

func (s *scene) cordoned() (ends func()) {
	s.edit(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	return func() { s.edit(func(n *corev1.Node) { n.Spec.Unschedulable = false }) }
}

// muteKubelet makes the API server reject that the worker's Node becomes Ready, or any status from its kubelet.
func (s *scene) muteKubelet(entirely bool) (ends func()) {
	s.t.Helper()
	// Until it is recreated, its kubelet reports what the machine runs now.
	expr := "object.metadata.name != '" + target + "' || oldObject.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')" +
		" || !object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"
	if entirely {
		expr = "object.metadata.name != '" + target + "' || object.status.nodeInfo.bootID == oldObject.status.nodeInfo.bootID"
	}
	fail, equivalent := admissionregistrationv1.Fail, admissionregistrationv1.Equivalent
	policies := s.plane.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := s.plane.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(s.t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "mute"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{
				MatchPolicy: &equivalent,
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes/status"}},
				}}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: expr, Message: "this kubelet is mute"}},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	_, err = bindings.Create(s.t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mute"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "mute", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	return func() {
		s.check(bindings.Delete(s.t.Context(), "mute", metav1.DeleteOptions{}))
		s.check(policies.Delete(s.t.Context(), "mute", metav1.DeleteOptions{}))
	}
}

func (s *scene) denyEvictions(why string) (ends func()) {
	s.t.Helper()
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: why}}
		_ = json.NewEncoder(w).Encode(review) // fails only if the client is gone
	}))
	served := s.plane.CA.Issue("webhook")
	certificate, err := tls.X509KeyPair(served.Cert, served.Key)
	s.check(err)
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	hook.StartTLS()
	hooks := s.plane.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	_, err = hooks.Create(s.t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "sale"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "sale.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: s.plane.CA.PEM},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}},
		}},
	}, metav1.CreateOptions{})
	s.check(err)
	return func() {
		s.check(hooks.Delete(s.t.Context(), "sale", metav1.DeleteOptions{}))
		hook.Close()
	}
}

// requestCertificate requests the serving certificate of the worker's kubelet, as the
// kubelet does; the end is a person's approval.
func (s *scene) requestCertificate() (ends func()) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.check(err)
	subject := pkix.Name{CommonName: "system:node:" + target, Organization: []string{"system:nodes"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, key)
	s.check(err)
	kubelet := rest.CopyConfig(s.plane.Admin)
	kubelet.Impersonate = rest.ImpersonationConfig{UserName: subject.CommonName, Groups: subject.Organization}
	client, err := kubernetes.NewForConfig(kubelet)
	s.check(err)
	made, err := client.CertificatesV1().CertificateSigningRequests().Create(s.t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "serving"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeletServingSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	return func() {
		made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Seen", Message: "by a person",
		}}
		requests := s.plane.Client.CertificatesV1().CertificateSigningRequests()
		_, err := requests.UpdateApproval(s.t.Context(), made.Name, made, metav1.UpdateOptions{})
		s.check(err)
		s.until("the certificate is signed", func() bool {
			r, err := requests.Get(s.t.Context(), made.Name, metav1.GetOptions{})
			return err == nil && len(r.Status.Certificate) > 0
		})
		s.check(requests.Delete(s.t.Context(), made.Name, metav1.DeleteOptions{}))
	}
}

// client is one of the lab's own Kubernetes API.
func (u *user) client() *kubernetes.Clientset {
	u.t.Helper()
	config := must(clientcmd.BuildConfigFromFlags("", filepath.Join(u.dir, "kubeconfig")))(u.t)
	return must(kubernetes.NewForConfig(config))(u.t)
}

// tables compares the table of every kind that the lab serves with that of Kubernetes' own
// printers for the same objects.
func (u *user) tables() {
	c := u.client()
	u.oddPods(c)
	groups := must(c.Discovery().ServerPreferredResources())(u.t)
	real := printers.NewTableGenerator().With(printersinternal.AddHandlers)
	for _, g := range groups {
		for _, r := range g.APIResources {
			gv := must(schema.ParseGroupVersion(g.GroupVersion))(u.t)
			path := "/api/v1/" + r.Name
			if gv.Group != "" {
				path = "/apis/" + g.GroupVersion + "/" + r.Name
			}
			diff := ""
			for range 20 { // an age may change between two requests
				if diff = u.compareTables(c, real, path, gv.WithResource(r.Name).GroupResource()); diff == "" {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if diff != "" {
				u.t.Errorf("%s (-Kubernetes' +the lab's):\n%s", path, diff)
			}
		}
	}
}

func (u *user) compareTables(c *kubernetes.Clientset, real printers.TableGenerator, path string, r schema.GroupResource) string {
	u.t.Helper()
	get := func(accept string) []byte {
		b, err := c.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(u.t.Context())
		if err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
		return b
	}
	list, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), get("application/json"))
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
	want, err := real.GenerateTable(list, printers.GenerateOptions{Wide: true})
	if err != nil { // it has no columns of its own
		want, err = registry.NewDefaultTableConvertor(r).ConvertToTable(u.t.Context(), list, nil)
	}
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
	b := must(json.Marshal(want))(u.t)
	var expected, got metav1.Table
	for into, from := range map[*metav1.Table][]byte{&expected: b, &got: get("application/json;as=Table;v=v1;g=meta.k8s.io")} {
		if err := json.Unmarshal(from, into); err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
	}
	if len(expected.Rows) == 0 {
		return "no object to compare"
	}
	// Leases are renewed meanwhile, and some descriptions are those of older versions of the kinds.
	return cmp.Diff(expected, got, cmpopts.IgnoreTypes(runtime.RawExtension{}, metav1.TypeMeta{}),
		cmpopts.IgnoreFields(metav1.ListMeta{}, "ResourceVersion"), cmpopts.IgnoreFields(metav1.TableColumnDefinition{}, "Description"))
}

// oddPods makes pods that no node fits, so that no kubelet touches them, in every state that a pod's row tells apart.
func (u *user) oddPods(c *kubernetes.Clientset) {
	u.t.Helper()
	always := corev1.ContainerRestartPolicyAlways
	started := true
	ended := func(code, signal int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Signal: signal, Reason: reason}}
	}
	waits := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	again := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-time.Hour))}}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "example.org/gate", Status: corev1.ConditionTrue}}
	for name, s := range map[string]corev1.PodStatus{
		"waits":         {Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: waits("ImagePullBackOff")}}},
		"loops":         {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: waits("CrashLoopBackOff"), RestartCount: 3, LastTerminationState: again}}},
		"done":          {Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}}},
		"failed":        {Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(2, 0, "")}}},
		"killed":        {Phase: corev1.PodFailed, Reason: "Evicted", ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 9, "")}}},
		"evicted":       {Phase: corev1.PodFailed, Reason: "Evicted"},
		"half":          {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}, {Name: "b", Ready: true, State: runs}}},
		"half-ready":    {Phase: corev1.PodRunning, Conditions: ready, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}, {Name: "b", Ready: true, State: runs}}},
		"half-failed":   {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}, {Name: "b", State: ended(1, 0, "Error")}}},
		"init":          {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: runs}, {Name: "s", State: waits("PodInitializing")}}},
		"init-waits":    {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: waits("ErrImagePull"), RestartCount: 1}}},
		"init-failed":   {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(3, 0, "")}}},
		"init-killed":   {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(0, 9, "")}, {Name: "s", State: ended(137, 9, "")}}},
		"init-error":    {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(1, 0, "Error")}}},
		"sidecar":       {Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(0, 0, ""), RestartCount: 7}, {Name: "s", Ready: true, Started: &started, State: runs, RestartCount: 2, LastTerminationState: again}}, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", Ready: true, State: runs, RestartCount: 1}}},
		"gated":         {Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}},
		"addressed":     {Phase: corev1.PodRunning, PodIP: "10.244.0.9", PodIPs: []corev1.PodIP{{IP: "10.244.0.9"}}, NominatedNodeName: "wk2", Conditions: ready},
		"leaving":       {Phase: corev1.PodRunning},
		"lost":          {Phase: corev1.PodRunning, Reason: "NodeLost"},
		"leaving-ended": {Phase: corev1.PodSucceeded},
	} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.org/stays"}},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"there": "is-none"}, Containers: []corev1.Container{{Name: "a", Image: "a"}, {Name: "b", Image: "b"}},
				InitContainers: []corev1.Container{{Name: "i", Image: "i"}, {Name: "s", Image: "s", RestartPolicy: &always}},
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.org/gate"}, {ConditionType: "example.org/other"}},
			},
		}
		made := must(c.CoreV1().Pods("default").Create(u.t.Context(), p, metav1.CreateOptions{}))(u.t)
		made.ResourceVersion, made.Status = "", s
		must(c.CoreV1().Pods("default").UpdateStatus(u.t.Context(), made, metav1.UpdateOptions{}))(u.t)
		if strings.HasPrefix(name, "leaving") || name == "lost" {
			mustDo(u.t, c.CoreV1().Pods("default").Delete(u.t.Context(), name, metav1.DeleteOptions{}))
		}
	}
}

// schemas compares the models of the lab's OpenAPI documents with those that Kubernetes
// publishes, by what kubectl reads of them.
func (u *user) schemas() {
	out := must(exec.CommandContext(u.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output())(u.t)
	type document struct {
		Components struct{ Schemas map[string]map[string]any }
	}
	c := u.client()
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	fetch := func(path string, into any) {
		u.t.Helper()
		at := must(url.Parse(path))(u.t)
		b, err := c.CoreV1().RESTClient().Get().AbsPath(at.Path).SetHeader("Accept", "application/json").DoRaw(u.t.Context())
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
	}
	fetch("/openapi/v3", &index)
	for group, at := range index.Paths {
		var real, lab document
		fetch(at.ServerRelativeURL, &lab)
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "api/openapi-spec/v3", strings.ReplaceAll(group, "/", "__")+"_openapi.json"))
		if err == nil {
			err = json.Unmarshal(b, &real)
		}
		mustDo(u.t, err)
		if len(lab.Components.Schemas) == 0 {
			u.t.Errorf("%s has no schemas", group)
		}
		for name, got := range lab.Components.Schemas {
			if diff := cmp.Diff(essence(real.Components.Schemas[name]), essence(got)); diff != "" {
				u.t.Errorf("%s: %s (-Kubernetes' +the lab's):\n%s", group, name, diff)
			}
		}
	}
}

// essence leaves out what the Go types do not say: see internal/sim/kubeapi/openapi. The words
// of descriptions are those of the same source, differently wrapped.
func essence(model any) any {
	switch m := model.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, v := range m {
			switch k {
			case "description", "default", "enum", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-unions":
				if _, isField := v.(map[string]any); !isField || k == "default" && len(v.(map[string]any)) == 0 {
					continue
				}
			}
			out[k] = essence(v)
		}
		return out
	case []any:
		out := []any{}
		for _, v := range m {
			out = append(out, essence(v))
		}
		return out
	}
	return model
}
