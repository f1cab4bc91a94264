package talos

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// errConnectionLost says that a call's connection broke. A new one could reach
// another machine, or another boot of the same one.
var errConnectionLost = errors.New("the connection broke")

// silentError ends a call whose machine has been silent for that long.
type silentError struct{ after time.Duration }

func (e silentError) Error() string {
	return fmt.Sprintf("gave up: the machine was silent for too long (%s)", e.after)
}

// Is matches cluster.ErrNotNow.
func (e silentError) Is(target error) bool { return target == cluster.ErrNotNow }

// call talks to the machine at addr with the cluster's credentials.
func (c *Client) call(ctx context.Context, addr string, do func(context.Context, session) error) error {
	return c.callWithin(ctx, addr, c.timeout, do)
}

// ask reads something from the machine at addr with the cluster's credentials.
func ask[T any](ctx context.Context, c *Client, addr netip.Addr, read func(context.Context, session) (T, error)) (found T, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) (err error) {
		found, err = read(ctx, s)
		return err
	})
	return found, err
}

// callWithin is call with a deadline of its own.
func (c *Client) callWithin(ctx context.Context, addr string, limit time.Duration, do func(context.Context, session) error) error {
	return c.with(ctx, addr, limit, do, c.as)
}

// patience sets how long the machine may take to send the next message; 0 is for ever.
type patience func(time.Duration)

// callPatient is call without a deadline for the whole: the machine may take as long
// as it keeps sending. The first message has the usual timeout.
func (c *Client) callPatient(parent context.Context, addr string, do func(context.Context, session, patience) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var limit atomic.Int64
	limit.Store(int64(c.timeout))
	silent := time.AfterFunc(c.timeout, func() { cancel(silentError{time.Duration(limit.Load())}) })
	defer silent.Stop()
	wait := func(d time.Duration) {
		limit.Store(int64(d))
		if d == 0 {
			silent.Stop()
		} else {
			silent.Reset(d)
		}
	}
	return c.with(ctx, addr, 0, func(ctx context.Context, s session) error { return do(ctx, s, wait) }, c.as)
}

// callBlank talks to whatever is at addr, without credentials on either side: the
// certificate of a machine in maintenance mode cannot be verified.
//
// Its fingerprint is recorded but not checked: Talos makes a new certificate, with a
// new key, whenever its addresses or its name change within a boot
// (controllers/secrets/api.go, maintenance_cert_sans.go). Callers read the UUID over
// this connection before they change anything over it.
func (c *Client) callBlank(ctx context.Context, addr netip.Addr, do func(context.Context, session) error) error {
	var asked atomic.Bool
	var shown atomic.Pointer[string]
	insecure := &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // see above; the UUID is checked instead
		VerifyConnection: func(state tls.ConnectionState) error {
			shown.Store(new(x509.SPKIFingerprint(state.PeerCertificates[0]).String()))
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked.Store(true)
			return new(tls.Certificate), nil
		},
	}
	err := c.with(ctx, addr.String(), c.timeout, func(ctx context.Context, s session) error {
		s.fingerprint = &shown
		return do(ctx, s)
	}, identity{as: client.WithTLSConfig(insecure), over: c.over(insecure), blank: true})
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.Unavailable && asked.Load() {
		// The error varies: TLS 1.3 has no reply for a missing certificate.
		err = fault.WithHint(fmt.Errorf("%w (it asked for a certificate)", err), "it is not in maintenance mode: a machine that asks for a certificate has been configured already")
	}
	return err
}

// with has no deadline of its own if limit is 0.
func (c *Client) with(
	parent context.Context, addr string, limit time.Duration, do func(context.Context, session) error, who identity,
) error {
	if err := checkExpiry(c.config.Context, c.expires); err != nil && !who.blank {
		return err
	}
	ctx, start := parent, time.Now()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(parent, limit)
		defer cancel()
	}
	options := slices.Concat([]grpc.DialOption{
		grpc.WithContextDialer(once(c.dial)), grpc.WithUserAgent("recast"),
		grpc.WithReadBufferSize(4 << 10), // a connection carries few, short answers; long ones need no buffer
	}, c.grpc, who.over)
	tc, err := client.New(ctx, who.as, client.WithEndpoints(addr), client.WithGRPCDialOptions(options...))
	if err != nil {
		return fault.Configf("connect to %s: %w", addr, err)
	}
	err = do(ctx, session{Client: tc, blank: who.blank})
	_ = tc.Close() // its answers have all been read
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		err = fmt.Errorf("%s: %w: %w", addr, err, context.Cause(parent))
		if _, silent := errors.AsType[silentError](err); silent {
			err = explainSilence(err, addr)
		}
		return err
	case ctx.Err() != nil, unconnected(err), limit > 0 && time.Since(start) >= limit: // the machine knows the deadline as well, and may be the first to end the call
		return explainSilence(fmt.Errorf("%s: gave up after %s: %w", addr, time.Since(start).Round(time.Second), err), addr)
	}
	return hinted(fmt.Errorf("%s: %w", addr, err))
}

func unconnected(err error) bool {
	e, ok := errors.AsType[*answerError](err)
	return ok && e.unconnected()
}

func explainSilence(err error, addr string) error {
	if _, ofEtcd := errors.AsType[*etcdError](err); ofEtcd {
		return fault.WithHint(fault.EtcdUnhealthy.Of(err), "the machine answers, but its etcd does not: it needs a majority of its members. talosctl -n %s etcd status and talosctl -n %s logs etcd say more", addr, addr)
	}
	return fault.WithHint(fault.Unreachable.Of(err), "the console of its VM and talosctl -n %s dmesg say more; a machine that stays silent has to be restarted", addr)
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
