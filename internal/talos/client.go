// Package talos talks to the machines of a Talos cluster through Talos' own client library. A [Client] reads their
// state, their etcd and their configuration, applies configurations, including the first one of a blank machine, and
// upgrades machines in place.
package talos

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	talosx509 "github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/client/dialer"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// defaultTimeout bounds one call of Client, including all its requests to one machine.
const defaultTimeout = 15 * time.Second

type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

type Options struct {
	Talosconfig []byte
	Context     string            // of the talosconfig; "": its current one
	Dial        DialFunc          // nil: the machine's network, through the proxy of the talosconfig or the environment
	Timeout     time.Duration     // of one call to one machine; 0: 15 s
	GRPC        []grpc.DialOption // for every connection, in addition to our own
}

// Client talks to the machines of one cluster. It is safe for concurrent use and opens a new connection for every call.
type Client struct {
	config    *clientconfig.Config // one context, without a proxy: dial handles the proxy
	endpoints []string
	dial      DialFunc
	timeout   time.Duration
	grpc      []grpc.DialOption
	expires   time.Time // of the certificate; zero: there is none
	as        identity  // with the cluster's credentials
}

var (
	_ cluster.Talos       = (*Client)(nil)
	_ cluster.Maintenance = (*Client)(nil)
)

// New returns a client with the credentials of a talosconfig, without connecting.
func New(o Options) (*Client, error) {
	parsed, err := clientconfig.FromBytes(o.Talosconfig)
	if err != nil {
		// The parser quotes the offending text, which may be the key.
		return nil, fault.Credentials.Configf("the talosconfig is not valid YAML%s", linesOf(err.Error()))
	}
	name := cmp.Or(o.Context, parsed.Context)
	found, ok := parsed.Contexts[name]
	if !ok || found == nil {
		return nil, fault.WithHint(fault.Credentials.Configf("the talosconfig has no context %q", name), "talosctl config contexts lists them")
	}
	own := *found
	crt, err := checkContext(name, own)
	if err != nil {
		return nil, err
	}
	c := &Client{endpoints: own.Endpoints, dial: o.Dial, grpc: o.GRPC, timeout: cmp.Or(o.Timeout, defaultTimeout), expires: expiry(crt)}
	if c.dial == nil {
		dial := dialer.DynamicProxyDialer
		if own.ProxyURL != "" {
			dial = dialer.ForProxyURL(own.ProxyURL)
		}
		c.dial = func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) }
	}
	own.ProxyURL = ""
	c.config = &clientconfig.Config{Context: name, Contexts: map[string]*clientconfig.Context{name: &own}}
	c.as, err = c.withCredentials(own, crt)
	return c, err
}

// identity says with which credentials recast opens a connection.
type identity struct {
	as    client.OptionFunc
	blank bool // no credentials
}

// keptSessions bounds the kept TLS sessions. The bound exceeds the number of machines in a cluster.
const keptSessions = 1024

// withCredentials reads a context's credentials once, if they consist only of a certificate. Every call opens a new
// connection, which resumes the machine's TLS session; a machine that has rebooted does not know the session and
// makes a full handshake.
func (c *Client) withCredentials(own clientconfig.Context, pair *tls.Certificate) (identity, error) {
	if own.Crt == "" || own.Cluster != "" || own.Auth.Basic != nil || own.Auth.SideroV1 != nil {
		return identity{as: client.WithConfig(c.config)}, nil
	}
	roots := x509.NewCertPool()
	ca, err := base64.StdEncoding.DecodeString(own.CA)
	switch {
	case own.CA == "":
		roots = nil // the roots of this machine's system
	case err != nil || !roots.AppendCertsFromPEM(ca):
		return identity{}, fault.Credentials.Configf("context %q of the talosconfig: its CA can't be read", c.config.Context)
	}
	known := &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{*pair}, ClientSessionCache: tls.NewLRUClientSessionCache(keptSessions),
	}
	return identity{as: client.WithTLSConfig(known)}, nil
}

// checkContext finds what would make every call fail. It returns the context's certificate; nil if there is none.
func checkContext(name string, c clientconfig.Context) (*tls.Certificate, error) {
	crt, err := client.CertificateFromConfigContext(&c)
	switch {
	case err != nil:
		return nil, fault.Credentials.Configf("context %q of the talosconfig: its certificate and key can't be read or don't fit together", name)
	case len(c.Endpoints) == 0:
		return nil, fault.WithHint(fault.Credentials.Configf("context %q of the talosconfig has no endpoints", name),
			"talosctl config endpoint sets them: the control planes' addresses")
	}
	return crt, checkExpiry(name, expiry(crt))
}

// expiry returns when a certificate expires; zero without one.
func expiry(crt *tls.Certificate) time.Time {
	if crt == nil || crt.Leaf == nil {
		return time.Time{}
	}
	return crt.Leaf.NotAfter
}

// checkExpiry also runs before every call: a roll may outlast a certificate.
func checkExpiry(name string, expires time.Time) error {
	if expires.IsZero() || !time.Now().After(expires) {
		return nil
	}
	return fault.WithHint(fault.Credentials.Configf("context %q of the talosconfig: its certificate expired on %s", name, expires.Format(time.DateOnly)),
		"an admin of the cluster makes a new one with talosctl config new; then run the same command again")
}

// Close does nothing: every call closes its own connection.
func (*Client) Close() error      { return nil }
func (c *Client) Context() string { return c.config.Context }

// Addrs returns the endpoints and nodes of the talosconfig that are addresses.
func (c *Client) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, s := range append(c.endpoints, c.config.Contexts[c.config.Context].Nodes...) {
		if addr, err := netip.ParseAddr(s); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// Endpoints returns the addresses of the talosconfig's endpoints, in its order: the
// control planes, if it names each of them.
func (c *Client) Endpoints(ctx context.Context) ([]netip.Addr, error) {
	var out []netip.Addr
	var problems []error
	for _, e := range c.endpoints {
		addr, err := resolve(ctx, e)
		if err != nil {
			problems = append(problems, fmt.Errorf("endpoint %s of the talosconfig: %w", e, err))
			continue
		}
		out = append(out, addr)
	}
	if len(out) == 0 {
		return nil, errors.Join(problems...)
	}
	return out, nil
}

// resolve returns the address of an endpoint. It accepts all forms of an endpoint that talosctl accepts, if the
// endpoint is a machine's own apid.
func resolve(ctx context.Context, endpoint string) (netip.Addr, error) {
	host := hostOf(endpoint)
	if _, port, err := net.SplitHostPort(endpoint); err == nil && port != strconv.Itoa(constants.ApidPort) {
		return netip.Addr{}, fault.WithHint(fault.Configf("port %s is not Talos' own", port),
			"recast asks each machine directly, at port %d: name the control planes' own addresses", constants.ApidPort)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// Expires returns when the certificate of a talosconfig's current context expires; zero if no certificate can be read.
func Expires(talosconfig []byte) time.Time {
	parsed, err := clientconfig.FromBytes(talosconfig)
	if err != nil || parsed.Contexts[parsed.Context] == nil {
		return time.Time{}
	}
	crt, err := client.CertificateFromConfigContext(parsed.Contexts[parsed.Context])
	if err != nil {
		return time.Time{}
	}
	return expiry(crt)
}

// errConnectionLost says that a call's connection broke. A new connection could reach another machine, or another
// boot of the same machine.
var errConnectionLost = errors.New("the connection broke")

// silentError ends a call whose machine has been silent for that long.
type silentError struct{ after time.Duration }

func (e silentError) Error() string {
	return fmt.Sprintf("gave up: the machine was silent for too long (%s)", e.after)
}

func (e silentError) Is(target error) bool { return target == cluster.ErrNotNow }

// call talks to the machine at addr with the cluster's credentials.
func (c *Client) call(ctx context.Context, addr string, do func(context.Context, session) error) error {
	return c.with(ctx, addr, c.timeout, do, c.as)
}

// ask reads something from the machine at addr with the cluster's credentials.
func ask[T any](ctx context.Context, c *Client, addr netip.Addr, read func(context.Context, session) (T, error)) (found T, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) (err error) {
		found, err = read(ctx, s)
		return err
	})
	return found, err
}

// patience sets how long the machine may take to send the next message; 0 is for ever.
type patience func(time.Duration)

// callPatient is call without a deadline for the whole call: the machine may take any time while it keeps sending.
// The first message has the usual timeout.
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

// patiently is callPatient for the machine with that UUID; untouched says what was not done on another.
func (c *Client) patiently(ctx context.Context, addr netip.Addr, uuid, untouched string, do func(context.Context, session, patience) error) error {
	return c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, untouched); err != nil {
			return err
		}
		return do(ctx, s, wait)
	})
}

// callBlank talks to the machine at addr, without credentials on either side: the certificate of a machine in
// maintenance mode cannot be verified.
//
// callBlank records the certificate's fingerprint but does not check it: Talos makes a new certificate, with a new
// key, whenever its addresses or its name change within a boot (controllers/secrets/api.go,
// maintenance_cert_sans.go). Callers read the UUID over this connection before they change anything over it.
func (c *Client) callBlank(ctx context.Context, addr netip.Addr, do func(context.Context, session) error) error {
	var asked atomic.Bool
	var shown atomic.Pointer[string]
	insecure := &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // see above; the UUID is checked instead
		VerifyConnection: func(state tls.ConnectionState) error {
			shown.Store(new(talosx509.SPKIFingerprint(state.PeerCertificates[0]).String()))
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
	}, identity{as: client.WithTLSConfig(insecure), blank: true})
	if answeredWith(codes.Unavailable, err) && asked.Load() {
		// The error varies: TLS 1.3 has no reply for a missing certificate.
		err = fault.WithHint(fmt.Errorf("%w (it asked for a certificate)", err), "it is not in maintenance mode: a machine that asks for a certificate has been configured already")
	}
	return err
}

// with opens a connection and calls do. If limit is 0, with adds no deadline.
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
		grpc.WithReadBufferSize(4 << 10), // a connection carries few, short answers; long answers need no buffer
	}, c.grpc)
	tc, err := client.New(ctx, who.as, client.WithEndpoints(addr), client.WithGRPCDialOptions(options...))
	if err != nil {
		return fault.Configf("connect to %s: %w", addr, err)
	}
	err = do(ctx, session{Client: tc, blank: who.blank})
	_ = tc.Close() // its answers have all been read
	e, answered := errors.AsType[*answerError](err)
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		err = fmt.Errorf("%s: %w: %w", addr, err, context.Cause(parent))
		if _, silent := errors.AsType[silentError](err); silent {
			err = explainSilence(err, addr)
		}
		return err
	case ctx.Err() != nil, answered && e.unconnected(), limit > 0 && time.Since(start) >= limit: // the machine knows the deadline as well, and may be the first to end the call
		return explainSilence(fmt.Errorf("%s: gave up after %s: %w", addr, time.Since(start).Round(time.Second), err), addr)
	}
	return hinted(fmt.Errorf("%s: %w", addr, err))
}

func explainSilence(err error, addr string) error {
	if _, ofEtcd := errors.AsType[*etcdError](err); ofEtcd {
		return fault.WithHint(fault.EtcdUnhealthy.Of(err), "the machine answers, but its etcd does not: it needs a majority of its members. talosctl -n %s etcd status and talosctl -n %s logs etcd say more", addr, addr)
	}
	return fault.WithHint(fault.Unreachable.Of(err), "the console of its VM and talosctl -n %s dmesg say more; a machine that stays silent has to be restarted", addr)
}

// once returns a dial function that connects a single time.
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

// answerError is the error of a machine, or of the way to the machine, without gRPC's wrapping.
type answerError struct {
	code codes.Code
	text string
	err  error
}

func (e *answerError) Error() string { return foreign.Line(e.text) }

// Is matches cluster.ErrNotNow if the machine, or something on the way to it, could not answer for now. A failed
// identity check is a definite answer. Is matches syscall.EMFILE by its text: gRPC keeps only the text of what this
// machine lacks to connect.
func (e *answerError) Is(target error) bool {
	if target == syscall.EMFILE {
		return e.code == codes.Unavailable && strings.HasSuffix(e.text, ": "+syscall.EMFILE.Error())
	}
	if r := e.reason(); target != cluster.ErrNotNow || r != nil && r.identity {
		return false
	}
	return slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted}, e.code)
}
func (e *answerError) Unwrap() error { return e.err }

// answer returns err without gRPC's wrapping. answer(nil) is nil.
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
	if r := e.reason(); r != nil {
		e.text = r.says + e.text
	}
	return e
}

// reason is a kind of failure that recast explains.
type reason struct {
	is       func(*answerError) bool
	says     string // before the answer's own text
	identity bool   // one side does not trust the other's certificate
	kind     func(error) error
	hint     string
}

// reasons are tried in this order. A machine's certificate lasts a day, and the machine dates it by its own clock
// (controllers/secrets/api.go). gRPC gives up connecting after 20 s.
var reasons = []reason{
	{
		is:   func(e *answerError) bool { return e.errorHas("remote error: tls: expired certificate") },
		says: "our certificate is expired or not yet valid by its clock: ", identity: true, kind: fault.Credentials.Of,
		hint: "talosctl config info says how long the talosconfig's certificate is valid; if it is still valid, the machine's clock is wrong: Talos needs a time server (machine.time)",
	},
	{
		is:   func(e *answerError) bool { return e.code == codes.Unauthenticated || e.errorHas("remote error: tls:") },
		says: "it refuses our certificate: ", identity: true, kind: fault.Credentials.Of,
		hint: "the talosconfig is of another cluster or its certificate has expired: check talos.config, talosctl config info",
	},
	{
		is: func(e *answerError) bool {
			return e.code == codes.Unavailable && e.errorHas("x509: certificate has expired or is not yet valid")
		},
		says:     "its certificate is not valid at this time, so its clock or ours is wrong: ",
		identity: true, kind: fault.TLS.Of,
		hint: "compare the machine's clock with this computer's: talosctl time, once it is reached; Talos needs a time server (machine.time), and makes a new certificate when its clock is right",
	},
	{
		is:   func(e *answerError) bool { return e.code == codes.Unavailable && e.errorHas("x509: ") },
		says: "its certificate is not of the talosconfig's cluster: ", identity: true, kind: fault.TLS.Of,
		hint: "the machine was reset and has no configuration (talosctl apply-config --insecure gives it one), or it belongs to another cluster, or the talosconfig does (talos.config)",
	},
	{
		is:   func(e *answerError) bool { return e.code == codes.PermissionDenied },
		says: "our talosconfig may not: ", kind: fault.Credentials.Of,
		hint: "recast needs a talosconfig with the role os:admin (recast drift: os:reader, recast backup: os:etcd:backup): talosctl config info shows the roles",
	},
	{is: (*answerError).unconnected, says: "cannot connect: ", kind: fault.Unreachable.Of},
	{
		is:   func(e *answerError) bool { return e.code == codes.Unavailable },
		says: "no answer: ", kind: fault.Unreachable.Of,
	},
}

// reason returns the explanation of an error; nil for an error that explains itself.
func (e *answerError) reason() *reason {
	i := slices.IndexFunc(reasons, func(r reason) bool { return r.is(e) })
	if i < 0 {
		return nil
	}
	return &reasons[i]
}

func (e *answerError) errorHas(text string) bool { return strings.Contains(e.err.Error(), text) }

// unwrapped returns a status message without the layers of gRPC's transport.
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

// unconnected reports whether gRPC gave up connecting.
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

// hinted adds the remedy of an error if it is known.
func hinted(err error) error {
	e, ok := errors.AsType[*answerError](err)
	if !ok || errors.Is(err, context.Canceled) {
		return err
	}
	switch r := e.reason(); {
	case r == nil:
		return err
	case r.hint == "":
		return r.kind(err)
	default:
		return fault.WithHint(r.kind(err), "%s", r.hint)
	}
}

func answeredWith(code codes.Code, err error) bool {
	e, ok := errors.AsType[*answerError](err)
	return ok && e.code == code
}

const (
	// connectPause is the pause between two attempts to connect to an unreachable machine, which send nothing;
	// connectTimeout bounds one attempt.
	connectPause   = 100 * time.Millisecond
	connectTimeout = time.Second
	// retryPause is the pause between two attempts on a machine that accepts the connection and nothing more.
	retryPause = time.Second
	// followTime bounds one stream: after a power failure nothing else ends it.
	followTime = time.Minute
)

// Standings of a machine other than the stages in which a machine stays.
const (
	unreachable = "away"
	changing    = "busy" // between stages
)

func (c *Client) WatchMachine(ctx context.Context, addr netip.Addr, tell func(look bool)) error {
	last := ""
	become := func(status string) {
		// The standing changing is news only for a machine that was unreachable.
		tell(status != last && (status != changing || last == unreachable))
		last = status
	}
	for ctx.Err() == nil {
		pause := connectPause
		if !c.canConnect(ctx, addr) {
			become(unreachable)
		} else {
			if last == "" || last == unreachable {
				become(changing)
			}
			accepted, broken := c.follow(ctx, addr, false, become)
			if !accepted { // with our credentials
				accepted, broken = c.follow(ctx, addr, true, become)
			}
			switch {
			case !accepted:
				pause = retryPause
			case broken:
				become(unreachable)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return ctx.Err()
}

// canConnect reports whether the machine's API accepts a connection.
func (c *Client) canConnect(ctx context.Context, addr netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := c.dial(ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(constants.ApidPort)))
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}

// follow reports the machine's status for as long as the machine does. accepted says whether the machine accepted us,
// and broken whether the machine ended the stream.
func (c *Client) follow(ctx context.Context, addr netip.Addr, blank bool, become func(string)) (accepted, broken bool) {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	watch := func(ctx context.Context, s session) error {
		events := make(chan state.Event)
		if err := s.COSI.Watch(ctx, runtime.NewMachineStatus().Metadata(), events); err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case e := <-events:
				if e.Type == state.Errored {
					broken = ctx.Err() == nil
					return e.Error
				}
				accepted = true
				become(statusOf(e))
			}
		}
	}
	if blank {
		_ = c.callBlank(ctx, addr, watch) // the stream ended, or never began
	} else {
		_ = c.with(ctx, addr.String(), 0, watch, c.as)
	}
	return accepted, broken
}

// statusOf returns the part of a machine's status that is worth reporting: not each step of a boot.
func statusOf(e state.Event) string {
	status, ok := e.Resource.(*runtime.MachineStatus)
	if !ok || e.Type == state.Destroyed {
		return changing
	}
	spec := status.TypedSpec()
	switch spec.Stage {
	case runtime.MachineStageBooting, runtime.MachineStageInstalling, runtime.MachineStageUpgrading:
		return changing
	case runtime.MachineStageRunning:
		if !spec.Status.Ready {
			return changing
		}
	}
	return fmt.Sprintf("%s %t", spec.Stage, spec.Status.Ready)
}

// get reads one resource; found is false if the machine does not have the resource, or if its Talos, older or newer,
// does not know the kind.
func get[T resource.Resource](ctx context.Context, s session, ptr resource.Pointer) (r T, found bool, err error) {
	r, err = safe.StateGet[T](ctx, s.COSI, ptr)
	switch {
	case state.IsNotFoundError(err), unknownKind(err):
		return r, false, nil
	case err != nil:
		return r, false, fmt.Errorf("read %s: %w", ptr.Type(), answer(err))
	}
	return r, true, nil
}

// list reads all resources of a kind; none if the machine does not know the kind.
func list[T resource.Resource](ctx context.Context, s session, kind resource.Pointer) ([]T, error) {
	rs, err := safe.StateList[T](ctx, s.COSI, kind)
	switch {
	case unknownKind(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", kind.Type(), answer(err))
	}
	return slices.Collect(rs.All()), nil
}

func byID[T resource.Resource](all []T, id resource.ID) (r T, found bool) {
	return cluster.Find(all, func(r T) bool { return r.Metadata().ID() == id })
}

// unknownKind reports whether the machine's Talos does not know the kind of resource. Talos then answers as for a
// missing permission (internal/app/resources/access.go).
func unknownKind(err error) bool {
	st := client.Status(err)
	return st != nil && st.Code() == codes.PermissionDenied &&
		strings.HasPrefix(st.Message(), `resource type "`) && strings.HasSuffix(st.Message(), `" is not supported`)
}

// wireSpec returns the specification of a resource that was not decoded.
func wireSpec(r resource.Resource) (*v1alpha1.Spec, error) {
	wire, ok := r.(*protobuf.Resource)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", r)
	}
	message, err := wire.Marshal()
	if err != nil {
		return nil, errors.New("the message can't be read")
	}
	return message.GetSpec(), nil
}

// maxFile exceeds any file that is read from a machine.
const maxFile = 1 << 20

func file(ctx context.Context, s session, path string) (content []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s: %w", path, answer(err))
		}
	}()
	r, err := s.Read(ctx, path)
	if err != nil {
		return nil, err
	}
	content, err = io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = errors.New("the file is too long")
	}
	_ = r.Close() // ending early is not an error
	return content, err
}

// session is a connection to one machine. recast never re-establishes a session: all reads through it come from the
// same boot of the same machine.
type session struct {
	*client.Client
	blank bool // in maintenance mode: no credentials, no secrets
	// fingerprint is the fingerprint of the machine's certificate; nil unless the machine is blank.
	fingerprint *atomic.Pointer[string]
}

// inParallel runs all reads and returns the first error in the order of the reads, because which read fails first is
// random.
func inParallel(reads ...func() error) error {
	errs := make([]error, len(reads))
	var all sync.WaitGroup
	for i, read := range reads {
		all.Go(func() { errs[i] = read() })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// getting is get for inParallel; use is called if the machine has the resource.
func getting[T resource.Resource](ctx context.Context, s session, ptr resource.Pointer, use func(T)) func() error {
	return func() error {
		r, found, err := get[T](ctx, s, ptr)
		if found {
			use(r)
		}
		return err
	}
}

// filling is a read of the fields of a value that come from one resource, if the machine has the resource.
func filling[M any, T resource.Resource](ptr resource.Pointer, use func(*M, T)) func(context.Context, session, *M) error {
	return func(ctx context.Context, s session, m *M) error {
		return getting(ctx, s, ptr, func(r T) { use(m, r) })()
	}
}

func listing[T resource.Resource](ctx context.Context, s session, kind resource.Pointer, into *[]T) func() error {
	return func() (err error) {
		*into, err = list[T](ctx, s, kind)
		return err
	}
}

// single returns the only answer, which comes from the machine that was asked. The text of asked begins the errors.
func single[R interface{ GetMessages() []T }, T any](asked string, answers R, err error) (one T, _ error) {
	if err != nil {
		return one, fmt.Errorf("%s: %w", asked, answer(err))
	}
	all := answers.GetMessages()
	if len(all) != 1 {
		return one, fmt.Errorf("%s: %d machines answered instead of one", asked, len(all))
	}
	return all[0], nil
}

// readSMBIOS reads the UUID, lower-case, and the SKU number.
func readSMBIOS(ctx context.Context, s session) (uuid, sku string, err error) {
	system, found, err := get[*hardware.SystemInformation](ctx, s, hardware.NewSystemInformation(hardware.SystemInformationID).Metadata())
	if err != nil || !found {
		return "", "", err
	}
	return strings.ToLower(system.TypedSpec().UUID), system.TypedSpec().SKUNumber, nil
}

// fileSilence is how long a machine may stay silent while it sends or lists files.
const fileSilence = 30 * time.Second

// Files opens the files of the machine at addr, over one connection.
func (c *Client) Files(
	ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, cluster.MachineFiles) error,
) error {
	return c.patiently(ctx, addr, uuid, "none of its files was read", func(ctx context.Context, s session, wait patience) error {
		wait(fileSilence)
		return look(ctx, machineFiles{s, wait})
	})
}

type machineFiles struct {
	session
	wait patience
}

var _ cluster.MachineFiles = machineFiles{}

// List lists the contents of a directory, without the directory itself.
func (m machineFiles) List(ctx context.Context, dir string, deep bool, each func(cluster.MachineFile) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that is not read to its end
	for f, err := range received(m.LS(ctx, &machineapi.ListRequest{Root: dir, Recurse: deep})) {
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, missing(err))
		}
		m.wait(fileSilence)
		if text := f.GetError(); text != "" {
			return fmt.Errorf("list %s: %s", dir, foreign.Line(text))
		}
		if f.GetRelativeName() == "." {
			continue
		}
		if err := each(cluster.MachineFile{
			// The full name has the links in dir resolved.
			Path: path.Join(dir, f.GetRelativeName()), Mode: fs.FileMode(f.GetMode()), SizeBytes: f.GetSize(), Link: f.GetLink(),
		}); err != nil {
			return err
		}
	}
	return nil
}

// received yields the messages of a stream until its end, or its error.
func received[T any](stream grpc.ServerStreamingClient[T], err error) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		if err != nil {
			yield(nil, err)
			return
		}
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) || !yield(message, err) || err != nil {
				return
			}
		}
	}
}

// missing turns a machine's error about a missing directory into cluster.ErrNotFound. The error has no code of its
// own, only the kernel's message.
func missing(err error) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	if ok && e.code == codes.Unknown && strings.HasSuffix(e.text, ": no such file or directory") {
		return fmt.Errorf("%w: %w", cluster.ErrNotFound, err)
	}
	return err
}

// Read reads a file of a known size. A machine that fails to read on ends the stream as if the file had ended
// (pkg/chunker/stream of Talos). A machine that sends too much is cut off.
func (m machineFiles) Read(ctx context.Context, name string, sizeBytes int64, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := int64(0)
	for data, err := range received(m.MachineClient.Read(ctx, &machineapi.ReadRequest{Path: name})) {
		if err != nil {
			return fmt.Errorf("read %s: %w", name, unreadable(err))
		}
		m.wait(fileSilence)
		if read += int64(len(data.GetBytes())); read > sizeBytes {
			return fmt.Errorf("read %s: it is longer than the %d bytes listed", name, sizeBytes)
		}
		if _, err := w.Write(data.GetBytes()); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	if read < sizeBytes {
		return fmt.Errorf("read %s: it ended after %d of %d bytes", name, read, sizeBytes)
	}
	return nil
}

// unreadable names the role that reading files requires, if it is missing.
func unreadable(err error) error {
	err = answer(err)
	if answeredWith(codes.PermissionDenied, err) {
		return fmt.Errorf("it takes a talosconfig with the role os:admin to read a node's files: %w", err)
	}
	return err
}
