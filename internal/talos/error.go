package talos

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// answerError is the answer of a machine, or of the way to it, without gRPC's wrapping.
type answerError struct {
	code codes.Code
	text string
	err  error
}

func (e *answerError) Error() string { return foreign.Line(e.text) }

// Is matches cluster.ErrNotNow if the machine, or something on the way to it, could
// not answer for now. A failed identity check is a definite answer. gRPC keeps only the text of what
// this machine lacks to connect.
func (e *answerError) Is(target error) bool {
	if target == syscall.EMFILE {
		return e.code == codes.Unavailable && strings.HasSuffix(e.text, ": "+syscall.EMFILE.Error())
	}
	if target != cluster.ErrNotNow || e.ownCertRefused() || e.ownCertExpired() || e.peerCertExpired() || e.peerUntrusted() {
		return false
	}
	return slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted}, e.code)
}
func (e *answerError) Unwrap() error { return e.err }

// answer makes err readable. answer(nil) is nil.
func answer(err error) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*answerError](err); done {
		return err
	}
	e := &answerError{code: client.StatusCode(err), text: err.Error(), err: err}
	if st := client.Status(err); st != nil {
		e.text = unwrapped(st)
	}
	switch {
	case e.ownCertExpired():
		e.text = "our certificate is expired or not yet valid by its clock: " + e.text
	case e.ownCertRefused():
		e.text = "it refuses our certificate: " + e.text
	case e.peerCertExpired():
		e.text = "its certificate is not valid at this time, so its clock or ours is wrong: " + e.text
	case e.peerUntrusted():
		e.text = "its certificate is not of the talosconfig's cluster: " + e.text
	case e.code == codes.PermissionDenied:
		e.text = "our talosconfig may not: " + e.text
	case e.unconnected():
		e.text = "cannot connect: " + e.text
	case e.code == codes.Unavailable:
		e.text = "no answer: " + e.text
	}
	return e
}

// unwrapped is a status message without the layers of gRPC's transport.
func unwrapped(st *status.Status) string {
	text := st.Message()
	for _, layer := range []string{"last connection error: ", "connection error: desc = ", "transport: ", "Error while dialing: ", "authentication handshake failed: "} {
		if i := strings.LastIndex(text, layer); i >= 0 {
			text = text[i+len(layer):]
		}
		text = strings.TrimPrefix(text, `"`)
	}
	return strings.TrimSuffix(text, `"`)
}

// ownCertRefused reports whether the machine rejected our certificate, or required one.
func (e *answerError) ownCertRefused() bool {
	return e.code == codes.Unauthenticated || strings.Contains(e.err.Error(), "remote error: tls:")
}

// ownCertExpired reports whether our certificate is not valid by the machine's clock.
func (e *answerError) ownCertExpired() bool {
	return strings.Contains(e.err.Error(), "remote error: tls: expired certificate")
}

// peerCertExpired reports whether the machine's certificate is not valid by our clock. It
// lasts a day, and the machine dates it by its own clock
// (controllers/secrets/api.go).
func (e *answerError) peerCertExpired() bool {
	return e.code == codes.Unavailable && strings.Contains(e.err.Error(), "x509: certificate has expired or is not yet valid")
}

// peerUntrusted reports whether the machine's certificate could not be verified.
func (e *answerError) peerUntrusted() bool {
	return e.code == codes.Unavailable && strings.Contains(e.err.Error(), "x509: ")
}

// unconnected reports whether gRPC gave up connecting after its 20 s.
func (e *answerError) unconnected() bool {
	return e.code == codes.Unavailable && strings.HasSuffix(e.text, context.DeadlineExceeded.Error())
}

// lost reports whether a change may have happened despite this error.
func (e *answerError) lost() bool {
	switch e.code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Aborted, codes.DataLoss:
		return true
	}
	return false
}

// hinted adds the remedy if one is known.
func hinted(err error) error {
	e, ok := errors.AsType[*answerError](err)
	switch {
	case !ok || errors.Is(err, context.Canceled):
		return err
	case e.peerCertExpired():
		return fault.WithHint(fault.TLS.Of(err), "compare the machine's clock with this computer's: talosctl time, once it is reached; Talos needs a time server (machine.time), and makes a new certificate when its clock is right")
	case e.ownCertExpired():
		return fault.WithHint(fault.Credentials.Of(err), "talosctl config info says how long the talosconfig's certificate is valid; if it is still valid, the machine's clock is wrong: Talos needs a time server (machine.time)")
	case e.peerUntrusted():
		return fault.WithHint(fault.TLS.Of(err), "the machine was reset and has no configuration (talosctl apply-config --insecure gives it one), or it belongs to another cluster, or the talosconfig does (talos.config)")
	case e.ownCertRefused():
		return fault.WithHint(fault.Credentials.Of(err), "the talosconfig is of another cluster or its certificate has expired: check talos.config, talosctl config info")
	case e.code == codes.PermissionDenied:
		return fault.WithHint(fault.Credentials.Of(err), "recast needs a talosconfig with the role os:admin (recast drift: os:reader, recast backup: os:etcd:backup): talosctl config info shows the roles")
	case e.code == codes.Unavailable:
		return fault.Unreachable.Of(err)
	}
	return err
}
