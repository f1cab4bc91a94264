package talos

import (
	"context"
	"errors"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/fault"
)

// answerError is what a machine or the way to it answered, without gRPC's wrapping.
type answerError struct {
	code codes.Code
	text string
	err  error
}

func (e *answerError) Error() string { return e.text }
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
	case e.refused():
		e.text = "it refuses our certificate: " + e.text
	case e.untrusted():
		e.text = "its certificate is not of the talosconfig's cluster: " + e.text
	case e.code == codes.PermissionDenied:
		e.text = "our talosconfig may not: " + e.text
	case e.code == codes.Unavailable:
		e.text = "no answer: " + e.text
	}
	return e
}

// unwrapped is a status' message without the layers of gRPC's transport.
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

// refused says whether the machine did not take our certificate, or wanted one.
func (e *answerError) refused() bool {
	return e.code == codes.Unauthenticated || strings.Contains(e.err.Error(), "remote error: tls:")
}

// untrusted says whether the machine's certificate could not be verified.
func (e *answerError) untrusted() bool {
	return e.code == codes.Unavailable && strings.Contains(e.err.Error(), "x509: ")
}

// lost says whether a change may have happened although this is what came back.
func (e *answerError) lost() bool {
	switch e.code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Aborted, codes.DataLoss:
		return true
	}
	return false
}

// hinted adds the remedy where one is known.
func hinted(err error) error {
	e, ok := errors.AsType[*answerError](err)
	switch {
	case !ok || errors.Is(err, context.Canceled):
		return err
	case e.untrusted():
		return fault.WithHint(err, "the machine is of another cluster or has no configuration yet, or the talosconfig is of another cluster (talos.config)")
	case e.refused():
		return fault.WithHint(err, "the talosconfig is of another cluster or its certificate has expired: check talos.config, talosctl config info")
	case e.code == codes.PermissionDenied:
		return fault.WithHint(err, "recast needs a talosconfig with the role os:admin: talosctl config info shows the roles")
	}
	return err
}
