package kube

import (
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// PendingCertificates lists, by name, the serving certificates that the node's
// kubelet has requested and that are undecided. Without one the kubelet cannot be
// asked for logs, metrics or an exec.
func (c *Client) PendingCertificates(ctx context.Context, node string) ([]string, error) {
	selector := fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName).String()
	list, err := c.api.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list certificate signing requests: %w", c.translate(err))
	}
	var names []string
	for _, r := range list.Items {
		if r.Spec.Username == "system:node:"+node && !decided(r.Status) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// decided reports whether a request was approved, denied, failed or served. An
// approved one waits for the signer, not for approval.
func decided(s certificatesv1.CertificateSigningRequestStatus) bool {
	return len(s.Certificate) > 0 || slices.ContainsFunc(s.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			return true
		}
		return false
	})
}
