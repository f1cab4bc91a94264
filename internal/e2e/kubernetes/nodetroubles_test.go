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
	"net"
	"net/http"
	"net/http/httptest"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// nodeTroubles are those of a Node and its kubelet.
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

// muteKubelet makes the API server reject that the worker's Node becomes Ready, or any
// status from its kubelet.
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

// denyEvictions serves a webhook that denies all evictions.
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
