package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// The Lease that holds the claim of a run.
const (
	leaseNamespace  = metav1.NamespaceSystem
	leaseName       = "recast"
	claimAnnotation = "recast.dev/claim"
)

// Lease reads the claim's Lease.
func (c *Client) Lease(ctx context.Context) (cluster.Lease, error) {
	l, err := c.api.CoordinationV1().Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return cluster.Lease{}, c.translateLease(err)
	}
	out := cluster.Lease{Name: leaseNamespace + "/" + leaseName, UID: string(l.UID), Revision: l.ResourceVersion, Claim: l.Annotations[claimAnnotation]}
	if l.Spec.HolderIdentity != nil {
		out.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.LeaseDurationSeconds != nil {
		out.Duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	if l.Spec.AcquireTime != nil {
		out.Acquired = l.Spec.AcquireTime.Time
	}
	if l.Spec.RenewTime != nil {
		out.Renewed = l.Spec.RenewTime.Time
	}
	return out, nil
}

// CreateLease creates the claim's Lease.
func (c *Client) CreateLease(ctx context.Context, l cluster.Lease) error {
	_, err := c.api.CoordinationV1().Leases(leaseNamespace).Create(ctx, leaseOf(l), metav1.CreateOptions{})
	return c.translateLeaseChange(err)
}

// UpdateLease writes the claim's Lease if it is as it was read.
func (c *Client) UpdateLease(ctx context.Context, l cluster.Lease) error {
	_, err := c.api.CoordinationV1().Leases(leaseNamespace).Update(ctx, leaseOf(l), metav1.UpdateOptions{})
	return c.translateLeaseChange(err)
}

// DeleteLease deletes the claim's Lease if it is as it was read. A missing Lease is not an error.
func (c *Client) DeleteLease(ctx context.Context, l cluster.Lease) error {
	err := c.translateLeaseChange(c.api.CoordinationV1().Leases(leaseNamespace).Delete(ctx, leaseName,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID(l.UID)), ResourceVersion: &l.Revision}}))
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	return err
}

// leaseOf returns the complete Lease: a write drops everything else that is in it. Without the UID an update would
// recreate a Lease that was deleted meanwhile, which the API server allows (AllowCreateOnUpdate in
// registry/coordination/lease/strategy.go).
func leaseOf(l cluster.Lease) *coordinationv1.Lease {
	acquired, renewed := metav1.NewMicroTime(l.Acquired), metav1.NewMicroTime(l.Renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: leaseNamespace, Name: leaseName, UID: types.UID(l.UID), ResourceVersion: l.Revision,
			Annotations: map[string]string{claimAnnotation: l.Claim},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &l.Holder, LeaseDurationSeconds: new(int32(l.Duration / time.Second)),
			AcquireTime: &acquired, RenewTime: &renewed,
		},
	}
}

func (c *Client) translateLease(err error) error {
	err = foreign.Error(err)
	if apierrors.IsForbidden(err) {
		return fault.WithHint(fault.As(fault.Refused, err),
			"the kubeconfig's user needs to get leases in kube-system, to see whether a run is at work; where the Proxmox token may not make VMs, "+
				"to create, update and delete them as well; Talos' own admin kubeconfig may do all of it")
	}
	status, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case answered && status.ErrStatus.Code >= http.StatusInternalServerError: // etcd's time-outs are 500 (apiserver's etcd3, interpret.go)
		return fmt.Errorf("%w: %w", cluster.ErrNoAnswer, err)
	case isUnanswered(err):
		return fmt.Errorf("%w from %s: %w", cluster.ErrNoAnswer, c.host, err)
	}
	return c.translate(err)
}

// isUnanswered reports whether a request reached no server, or a server that fell silent.
func isUnanswered(err error) bool {
	_, request := errors.AsType[*url.Error](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return request && !untrusted && !errors.Is(err, context.Canceled)
}

// translateLeaseChange is translateLease for a write, which the server may have made without answering.
func (c *Client) translateLeaseChange(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", cluster.ErrExists, err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", cluster.ErrChanged, err)
	}
	err = c.translateLease(err)
	if errors.Is(err, cluster.ErrNoAnswer) {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return err
}
