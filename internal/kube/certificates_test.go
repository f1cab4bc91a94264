package kube_test

import (
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

func TestPendingCertificates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		request := func(name, user, signer string, decided ...certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequest {
			r := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       certificatesv1.CertificateSigningRequestSpec{Username: user, SignerName: signer},
			}
			for _, d := range decided {
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: d, Status: corev1.ConditionTrue})
			}
			return r
		}
		serving, client := certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName
		issued := request("issued", "system:node:wk1", serving)
		issued.Status.Certificate = []byte("x")
		for _, r := range []*certificatesv1.CertificateSigningRequest{
			request("csr-b", "system:node:wk1", serving), request("csr-a", "system:node:wk1", serving), issued,
			request("other-node", "system:node:wk11", serving),
			request("client", "system:node:wk1", client),
			request("approved", "system:node:wk1", serving, certificatesv1.CertificateApproved),
			request("denied", "system:node:wk1", serving, certificatesv1.CertificateDenied),
			request("failed", "system:node:wk1", serving, certificatesv1.CertificateApproved, certificatesv1.CertificateFailed),
		} {
			l.put(t, store.CertificateRequests(), r)
		}
		got, err := l.client(t, "system:masters").PendingCertificates(t.Context(), "wk1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"csr-a", "csr-b"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
