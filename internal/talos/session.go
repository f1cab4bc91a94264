package talos

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/fault"
)

// errConnectionLost says that a call's connection broke. Another one could end
// at another machine, or at another boot of the same.
var errConnectionLost = errors.New("the connection broke")

// errSilent ends a call whose machine has said nothing for too long.
var errSilent = errors.New("gave up: it has been silent for too long")

// session is a connection to one machine. It is never re-established: all that
// is read through it comes from the same boot of the same machine.
type session struct {
	*client.Client
	blank bool // in maintenance mode: no credentials, no secrets
}

// call talks to the machine at addr with the cluster's credentials.
func (c *Client) call(ctx context.Context, addr string, do func(context.Context, session) error) error {
	return c.callWithin(ctx, addr, c.timeout, do)
}

// callWithin is call with a deadline of its own.
func (c *Client) callWithin(ctx context.Context, addr string, limit time.Duration, do func(context.Context, session) error) error {
	return c.with(ctx, addr, limit, false, do, client.WithConfig(c.config))
}

// patience is how long the machine may take from now on to say the next thing; 0 is for ever.
type patience func(time.Duration)

// callPatient is call without a deadline for the whole: the machine may take as
// long as it goes on talking. It begins with the patience of any other call.
func (c *Client) callPatient(parent context.Context, addr string, do func(context.Context, session, patience) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	silent := time.AfterFunc(c.timeout, func() { cancel(errSilent) })
	defer silent.Stop()
	wait := func(d time.Duration) {
		if d == 0 {
			silent.Stop()
		} else {
			silent.Reset(d)
		}
	}
	return c.with(ctx, addr, 0, false, func(ctx context.Context, s session) error { return do(ctx, s, wait) }, client.WithConfig(c.config))
}

// callBlank talks to whatever is at addr, without credentials either way: a
// machine in maintenance mode has a certificate that nobody can verify.
func (c *Client) callBlank(ctx context.Context, addr netip.Addr, do func(context.Context, session) error) error {
	var asked atomic.Bool
	insecure := &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // see above; the UUID is checked instead
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked.Store(true)
			return new(tls.Certificate), nil
		},
	}
	err := c.with(ctx, addr.String(), c.timeout, true, do, client.WithTLSConfig(insecure))
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.Unavailable && asked.Load() {
		// How it hangs up is a matter of luck: TLS 1.3 has no answer to a missing certificate.
		err = fault.WithHint(fmt.Errorf("%w (it asked for a certificate)", err), "it is not in maintenance mode: a machine that asks for a certificate has been configured already")
	}
	return err
}

// with has no deadline of its own where limit is 0.
func (c *Client) with(
	parent context.Context, addr string, limit time.Duration, blank bool, do func(context.Context, session) error, as client.OptionFunc,
) error {
	ctx := parent
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(parent, limit)
		defer cancel()
	}
	tc, err := client.New(ctx, as, client.WithEndpoints(addr), client.WithGRPCDialOptions(
		grpc.WithContextDialer(once(c.dial)), grpc.WithUserAgent("recast"),
	))
	if err != nil {
		return fault.Configf("connect to %s: %w", addr, err)
	}
	start := time.Now()
	err = do(ctx, session{tc, blank})
	_ = tc.Close() // all it had to say has been read
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		return fmt.Errorf("%s: %w: %w", addr, err, context.Cause(parent))
	case ctx.Err() != nil:
		return fmt.Errorf("%s: gave up after %s: %w", addr, time.Since(start).Round(time.Second), err)
	}
	return hinted(fmt.Errorf("%s: %w", addr, err))
}

// once connects a single time.
func once(dial DialFunc) func(context.Context, string) (net.Conn, error) {
	var connected atomic.Bool
	return func(ctx context.Context, addr string) (net.Conn, error) {
		if connected.Load() {
			return nil, errConnectionLost
		}
		conn, err := dial(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		if connected.Swap(true) {
			_ = conn.Close() // a second address answered as well
			return nil, errConnectionLost
		}
		return conn, nil
	}
}
