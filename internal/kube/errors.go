package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// translate turns an error of client-go into ours. All changes of this client are
// repeatable, so one whose answer was lost is cluster.ErrNotNow as well.
func (c *Client) translate(err error) error {
	err = foreign.Error(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case missing(err):
		return fmt.Errorf("%w: %w", cluster.ErrNotFound, err)
	case apierrors.IsUnauthorized(err):
		return fault.WithHint(fault.Credentials.Of(fmt.Errorf("%s does not accept the kubeconfig's credentials: %w", c.host, err)),
			"the client certificate may have expired: fetch a new kubeconfig with \"talosctl kubeconfig\"")
	case apierrors.IsForbidden(err):
		return fault.WithHint(fault.Credentials.Of(fault.As(fault.Refused, err)),
			"the kubeconfig's user needs to read nodes, pods, daemonsets, deployments, poddisruptionbudgets, persistentvolumes, "+
				"volumeattachments, certificatesigningrequests and, where installed, the resources of Longhorn, Rook, Piraeus, Mayastor (and with these "+
				"two services, and to get services/proxy of their APIs), tuppr and system-upgrade-controller, to watch nodes, pods, volumeattachments, poddisruptionbudgets and the volumes of Longhorn and Rook (without that changes are seen later), "+
				"to patch nodes and Longhorn's settings, and to evict pods (with roll.drain.onTimeout: delete, to delete them too), and to read "+
				"what roll.gates asks about; Talos' own admin kubeconfig may do all of it")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.WithHint(fault.TLS.Of(fmt.Errorf("%s is not the server that the kubeconfig names: %w", c.host, err)),
			"the kubeconfig's certificate authority is another cluster's: fetch a new one with \"talosctl kubeconfig\"")
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return fault.WithHint(fault.Unreachable.Of(&silentError{fmt.Errorf("no answer from %s: %w", c.host, err)}),
			"check that the address in the kubeconfig is reachable from here and does not depend on one node")
	}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && isBusy(status.ErrStatus.Code) {
		return &silentError{err}
	}
	return err
}

// isBusy reports whether the server, or a proxy in front of it, could not answer for now.
func isBusy(code int32) bool {
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// silentError is a request that got no clear answer.
type silentError struct{ error }

func (e *silentError) Unwrap() error        { return e.error }
func (e *silentError) Is(target error) bool { return target == cluster.ErrNotNow }

// missing reports whether the API itself answered that there is no object of that
// name; a proxy's 404, or one for an unknown path, does not count.
func missing(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) || status.ErrStatus.Details == nil {
		return false
	}
	return status.ErrStatus.Details.Name != "" && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
