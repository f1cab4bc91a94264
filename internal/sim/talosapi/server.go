package talosapi

import (
	"bytes"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/crypto/x509"
	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

// certificateLife exceeds the life of any lab.
const certificateLife = 24 * 365 * time.Hour

type api struct {
	grpc  *grpc.Server
	proxy *proxy // nil in maintenance mode
	done  chan struct{}
}

// startAPI serves the machine's API until stopAPI. In maintenance mode nothing is forwarded to other
// machines; otherwise client is the machine's identity for connections to others.
func (b *boot) startAPI(ctx context.Context, conf, client *tls.Config, maintenance bool) error {
	l, err := b.listen(ctx)
	if err != nil {
		return fmt.Errorf("start apid: %w", err)
	}
	g := &gate{boot: b, maintenance: maintenance}
	if !maintenance {
		g.proxy = newProxy(b, client)
	}
	a := &api{proxy: g.proxy, done: make(chan struct{}), grpc: grpc.NewServer(
		grpc.Creds(credentials.NewTLS(conf)), grpc.WaitForHandlers(true), grpc.ForceServerCodecV2(newCodec()),
		grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream), grpc.UnknownServiceHandler(unknownService),
	)}
	machineapi.RegisterMachineServiceServer(a.grpc, &machineService{boot: b, maintenance: maintenance})
	if b.release().lifecycle {
		machineapi.RegisterImageServiceServer(a.grpc, &imageService{boot: b})
		machineapi.RegisterLifecycleServiceServer(a.grpc, &lifecycleService{boot: b})
	}
	if !maintenance {
		clusterapi.RegisterClusterServiceServer(a.grpc, &clusterService{machine: &machineService{boot: b}, proxy: g.proxy})
	}
	storageapi.RegisterStorageServiceServer(a.grpc, &storageService{boot: b})
	cosi.RegisterStateServer(a.grpc, cosiserver.NewState(served{state.Filter(b.store.st, b.rule)}))
	holding(&b.mu, func() { b.api = a })
	go func() {
		defer close(a.done)
		_ = a.grpc.Serve(&muteListener{Listener: l, m: b.m}) // its end by stopAPI is no error
	}()
	return nil
}

// listen waits while another machine has the same address: this machine is unreachable until the other machine is gone.
func (b *boot) listen(ctx context.Context) (net.Listener, error) {
	for {
		l, err := b.m.fw.o.Network.Listen(net.JoinHostPort(b.m.addr().String(), strconv.Itoa(apiPort)))
		if !errors.Is(err, syscall.EADDRINUSE) || !b.m.fw.sleep(ctx, time.Second) {
			return l, err
		}
	}
}

// stopAPI closes every connection and waits for the running calls to end.
func (b *boot) stopAPI() {
	var a *api
	if holding(&b.mu, func() { a, b.api = b.api, nil }); a == nil {
		return
	}
	if a.proxy != nil {
		a.proxy.close()
	}
	a.grpc.Stop()
	<-a.done
}

// unknownService answers a call of a service that this version does not have.
func unknownService(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return status.Errorf(codes.Unimplemented, "unknown service %s", strings.TrimPrefix(path.Dir(method), "/"))
}

// secureAPI serves the API of a configured machine as soon as it has a certificate: a
// worker gets its own from a control plane.
func (b *boot) secureAPI(ctx context.Context) {
	conf, client, err := b.clusterTLS(ctx)
	if err == nil && ctx.Err() == nil {
		err = b.startAPI(ctx, conf, client, false)
	}
	if err != nil && ctx.Err() == nil {
		b.m.console("apid: %v", err)
	}
}

// clusterTLS waits for an issuer of the machine's certificate, and requires client certificates of the same CA. A
// control plane also has a client certificate. A machine with a wrong clock verifies others by its own clock, and a
// control plane dates its certificate by its own clock.
func (b *boot) clusterTLS(ctx context.Context) (server, client *tls.Config, err error) {
	cfg := b.config()
	security := cfg.Machine().Security()
	ca := security.IssuingCA()
	if ca == nil {
		return nil, nil, errors.New("no issuing CA is configured")
	}
	if cfg.Machine().Type().IsControlPlane() {
		h := b.m.fw.hub
		h.change(func() { h.issuers[b] = issuer{ca: ca, token: security.Token()} })
	} else {
		for {
			signer, changed := b.m.fw.hub.issuer(ca.Crt, security.Token())
			if signer != nil {
				ca = signer
				break
			}
			if !awaitChange(ctx, changed, time.Time{}) {
				return nil, nil, ctx.Err()
			}
		}
	}
	name := b.hostname()
	options := serverOptions(b.m.addr(), name, security.CertSANs()...)
	off := b.m.has().Clock
	if now := time.Now().Add(off); off != 0 && cfg.Machine().Type().IsControlPlane() { // a control plane signs its own certificate
		options = append(serverOptions(b.m.addr(), name), x509.NotBefore(now), x509.NotAfter(now.Add(certificateValidity)))
	}
	pair, pool, err := issue(ca, options...)
	if err != nil {
		return nil, nil, err
	}
	server = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair.Certificate},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}
	if off != 0 {
		server.Time = func() time.Time { return time.Now().Add(off) }
	}
	if !cfg.Machine().Type().IsControlPlane() {
		return server, nil, nil
	}
	if pair, pool, err = issue(ca, clientOptions(name, string(role.Impersonator), 0, certificateLife)...); err != nil {
		return nil, nil, err
	}
	client = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair.Certificate}, RootCAs: pool}
	return server, client, nil
}

// issue makes a key with a certificate of a CA, and a pool of that CA alone.
func issue(ca *x509.PEMEncodedCertificateAndKey, options ...x509.Option) (*x509.KeyPair, *stdx509.CertPool, error) {
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, nil, fmt.Errorf("read the CA: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, options...)
	if err != nil {
		return nil, nil, fmt.Errorf("make the certificate: %w", err)
	}
	pool := stdx509.NewCertPool()
	pool.AddCert(authority.Crt)
	return pair, pool, nil
}

// clientOptions returns the options of a client's certificate; skew is how far a clock may be behind.
func clientOptions(name, organization string, skew, life time.Duration) []x509.Option {
	return []x509.Option{
		x509.CommonName(name), x509.Organization(organization),
		x509.NotBefore(time.Now().Add(-skew)), x509.NotAfter(time.Now().Add(life)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	}
}

// maintenanceTLS returns a TLS configuration with an unverifiable certificate; clients need no certificate.
func maintenanceTLS(addr netip.Addr) (*tls.Config, error) {
	authority, err := x509.NewSelfSignedCertificateAuthority(
		x509.Organization("talos"), x509.NotBefore(time.Now()), x509.NotAfter(time.Now().Add(certificateLife)))
	if err != nil {
		return nil, fmt.Errorf("make maintenance CA: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, serverOptions(addr, "maintenance-service.talos.dev")...)
	if err != nil {
		return nil, fmt.Errorf("make server certificate: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair.Certificate}}, nil
}

func serverOptions(addr netip.Addr, name string, sans ...string) []x509.Option {
	names, addrs := []string{name}, []net.IP{addr.AsSlice()}
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			addrs = append(addrs, ip)
		} else {
			names = append(names, san)
		}
	}
	return []x509.Option{
		x509.CommonName(name), x509.DNSNames(names), x509.IPAddresses(addrs),
		x509.NotBefore(time.Now()), x509.NotAfter(time.Now().Add(certificateLife)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}),
	}
}

// gate intercepts every method: it forwards the call to its target machine, or records it
// and checks the caller's roles.
type gate struct {
	boot        *boot
	maintenance bool
	proxy       *proxy // nil in maintenance mode
}

func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	targets, many, err := g.proxy.route(ctx, info.FullMethod)
	switch {
	case err != nil:
		return nil, err
	case targets != nil:
		return g.proxy.unary(ctx, info.FullMethod, req, targets, many)
	}
	end, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer end()
	return next(ctx, req)
}

func (g *gate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	targets, many, err := g.proxy.route(ss.Context(), info.FullMethod)
	switch {
	case err != nil:
		return err
	case targets != nil:
		return g.proxy.stream(info.FullMethod, ss, targets, many)
	}
	end, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer end()
	return next(srv, ss)
}

// admit records a call of this machine and checks whether the caller may make it; end ends the record.
func (g *gate) admit(ctx context.Context, method string) (end func(), err error) {
	rec := g.boot.m.fw.o.Recorder
	if err := rec.Await(ctx, "talos"); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	call, err := rec.Begin(record.Call{
		Proto: "talos", Target: g.boot.m.addr().String(), Method: method,
		User: strings.Join(roles(ctx).Strings(), ","), Mutation: !slices.Contains(reads, path.Base(method)),
	})
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if err = errNoMachined; !g.boot.dying.Load() {
		err = g.authorize(ctx, method)
	}
	if err == nil && !strings.HasPrefix(method, stateService) { // rule knows the resource
		err = g.boot.m.hang(ctx, method, "")
	}
	if err != nil {
		rec.End(call)
		return nil, err
	}
	return func() { rec.End(call) }, nil
}

// reads are the read-only methods of all services; unlisted methods count as mutations.
var reads = []string{
	"Get", "List", "Watch",
	"Version", "Hostname", "Read", "Copy", "DiskUsage", "Dmesg", "Logs", "LogsContainers", "Events", "ServiceList", "Containers",
	"Memory", "Mounts", "Processes", "Stats", "SystemStat", "CPUInfo", "CPUFreqStats", "DiskStats", "LoadAvg", "NetworkDeviceStats",
	"Netstat", "PacketCapture", "ImageList", "Kubeconfig", "GenerateClientConfiguration",
	"EtcdMemberList", "EtcdStatus", "EtcdSnapshot", "EtcdAlarmList", "EtcdDowngradeValidate", "HealthCheck", "Disks",
}

// authorize lets readers read what is not secret, operators run the machine, and admins do everything (rules in
// internal/app/machined/pkg/system/services/machined.go).
func (g *gate) authorize(ctx context.Context, method string) error {
	base := path.Base(method)
	if g.maintenance {
		if err := g.boot.release().maintained(method); err != nil {
			return err
		}
	}
	if g.maintenance && base == "ApplyConfiguration" {
		return nil
	}
	allowed := []role.Role{role.Admin}
	switch base {
	case "Get", "List", "Watch", "Version", "Hostname", "ServiceList", "Memory", "Dmesg", "Logs", "LogsContainers", "Containers", "Mounts", "Processes", "ImageList", "Events", "DiskUsage", "HealthCheck", "Disks":
		allowed = append(allowed, role.Operator, role.Reader)
	case "EtcdMemberList", "EtcdStatus", "EtcdAlarmList":
		allowed = append(allowed, role.Operator, role.Reader, role.EtcdBackup)
	case "Reboot", "Shutdown", "Restart", "ServiceStart", "ServiceStop", "ServiceRestart", "Pull", "EtcdDefragment", "EtcdAlarmDisarm":
		allowed = append(allowed, role.Operator)
	case "EtcdSnapshot":
		allowed = append(allowed, role.Operator, role.EtcdBackup)
	}
	have := roles(ctx)
	if slices.ContainsFunc(allowed, have.Includes) {
		return nil
	}
	return status.Error(codes.PermissionDenied, "not authorized")
}

// roles returns the roles of the caller's certificate; an apid that forwards a call passes the caller's roles.
// Without a certificate (maintenance mode) every caller is a reader.
func roles(ctx context.Context) role.Set {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			set, _ := role.Parse(info.State.PeerCertificates[0].Subject.Organization)
			if md, _ := metadata.FromIncomingContext(ctx); set.Includes(role.Impersonator) && len(md[constants.APIAuthzRoleMetadataKey]) > 0 {
				set, _ = role.Parse(md[constants.APIAuthzRoleMetadataKey])
			}
			return set
		}
	}
	return role.MakeSet(role.Reader)
}

// verbs are the service's method names for reads of resources.
var verbs = map[state.Verb]string{state.Get: "Get", state.List: "List", state.Watch: "Watch"}

// rule guards the resources: nobody can write them, only admins read sensitive ones, and kinds and namespaces that
// the release lacks are denied (AccessPolicy in internal/app/resources). Disks are probed again before they are read.
func (b *boot) rule(ctx context.Context, access state.Access) error {
	if !access.Verb.Readonly() {
		return status.Error(codes.PermissionDenied, "write access is not allowed")
	}
	known := func(kind resource.Type, id resource.ID, what, name string) (resource.Resource, error) {
		r, err := b.store.st.Get(ctx, resource.NewMetadata(meta.NamespaceName, kind, id, resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			err = status.Errorf(codes.PermissionDenied, "%s %q is not supported", what, name)
		}
		return r, err
	}
	kind, err := known(meta.ResourceDefinitionType, strings.ToLower(access.ResourceType), "resource type", access.ResourceType)
	switch {
	case err != nil:
		return err
	case kind.(*meta.ResourceDefinition).TypedSpec().Sensitivity == meta.Sensitive && !roles(ctx).Includes(role.Admin):
		return status.Error(codes.PermissionDenied, "not authorized")
	}
	if _, err = known(meta.NamespaceType, access.ResourceNamespace, "namespace", access.ResourceNamespace); err != nil {
		return err
	}
	if err := b.m.hang(ctx, stateService+verbs[access.Verb], access.ResourceType); err != nil {
		return err
	}
	switch access.ResourceType {
	case block.DiskType, block.DiscoveredVolumeType, block.SystemDiskType, block.VolumeStatusType, runtime.MetaKeyType, runtime.MountStatusType, storage.LVMPhysicalVolumeStatusType:
		return b.publishBlock(ctx)
	}
	return nil
}

// proxy is the part of apid that forwards calls to other machines (internal/app/apid/pkg/{director,backend}).
type proxy struct {
	boot   *boot
	client *tls.Config // nil on a worker, which has no client certificate and forwards nothing
	dialer *network.Dialer

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // by target
}

func newProxy(b *boot, client *tls.Config) *proxy {
	return &proxy{boot: b, client: client, dialer: b.m.fw.o.Network.Dialer(), conns: map[string]*grpc.ClientConn{}}
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close() // its calls fail
	}
}

// route returns the targets of a call: none (this machine), one machine, or several machines whose answers are
// joined. A nil proxy forwards nothing.
func (p *proxy) route(ctx context.Context, method string) (targets []string, many bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if p == nil || len(md["proxyfrom"]) > 0 {
		return nil, false, nil
	}
	one, several := md["node"], md["nodes"]
	if one != nil && len(one) != 1 {
		return nil, false, status.Error(codes.InvalidArgument, "node metadata must be single-valued")
	}
	if p.client == nil {
		if one != nil && p.local(one[0]) {
			one = nil
		}
		if len(several) == 1 && p.local(several[0]) {
			several = nil
		}
	}
	switch {
	case several == nil && one == nil:
		return nil, false, nil
	case several != nil && !slices.ContainsFunc(joinable, func(s string) bool { return strings.HasPrefix(method, s) }):
		return nil, false, status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", method)
	case p.client == nil:
		return nil, false, status.Error(codes.PermissionDenied, "no request forwarding")
	case several != nil:
		return several, true, nil
	}
	return one, false, nil
}

// joinable are the services whose answers can be joined.
var joinable = []string{
	"/machine.MachineService/", "/cluster.ClusterService/", "/inspect.InspectService/", "/storage.StorageService/", "/time.TimeService/",
}

func (p *proxy) local(target string) bool {
	return target == p.boot.m.addr().String() || p.boot.config() != nil && target == p.boot.hostname()
}

// connect returns a connection to a machine's apid, and a context with the caller's identity.
func (p *proxy) connect(ctx context.Context, target string) (context.Context, *grpc.ClientConn, error) {
	md := metadata.MD{}
	if rs := roles(ctx).Strings(); len(rs) > 0 {
		md.Set(constants.APIAuthzRoleMetadataKey, rs...)
	}
	md.Set("proxyfrom", p.boot.m.addr().String())
	ctx = metadata.NewOutgoingContext(ctx, md)
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.conns[target]; ok {
		return ctx, c, nil
	}
	addr, err := p.resolve(target)
	if err != nil {
		return nil, nil, status.Error(codes.Internal, err.Error())
	}
	conf := p.client.Clone()
	conf.ServerName = addr.String()
	c, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(addr.String(), strconv.Itoa(apiPort)),
		grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return p.dialer.DialContext(ctx, "tcp", at) }),
		grpc.WithTransportCredentials(credentials.NewTLS(conf)), grpc.WithConnectParams(p.patience()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize)))
	if err != nil {
		return nil, nil, status.Error(codes.Internal, err.Error())
	}
	p.conns[target] = c
	return ctx, c, nil
}

// patience returns the parameters of apid's backoff after a failed connection to a machine.
func (p *proxy) patience() grpc.ConnectParams {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: p.boot.m.fw.scaled(20 * time.Second)}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = p.boot.m.fw.scaled(params.Backoff.BaseDelay), p.boot.m.fw.scaled(15*time.Second)
	return params
}

// resolve finds a machine by its address, or by its name among the cluster's members.
func (p *proxy) resolve(target string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(target); err == nil {
		return addr, nil
	}
	specs, _, _ := p.boot.m.fw.hub.members(discoveryOf(p.boot.config()))
	for _, spec := range specs {
		if len(spec.Addresses) > 0 && (target == spec.Hostname || target == spec.Nodename) {
			return spec.Addresses[0], nil
		}
	}
	return netip.Addr{}, fmt.Errorf("invalid target %q", target)
}

// unary forwards a call and returns the answer unchanged, or all answers joined.
func (p *proxy) unary(ctx context.Context, method string, req any, targets []string, many bool) (*frame, error) {
	if !many {
		return p.invoke(ctx, method, req, targets[0])
	}
	answers := make([]*frame, len(targets))
	var calls sync.WaitGroup
	for i, target := range targets {
		calls.Go(func() {
			answer, err := p.invoke(ctx, method, req, target)
			if err == nil {
				answer, err = answer.from(target)
			}
			if err != nil {
				answer = failed(target, err, false)
			}
			answers[i] = answer
		})
	}
	calls.Wait()
	joined := &frame{}
	for _, a := range answers {
		joined.raw = append(joined.raw, a.raw...)
	}
	return joined, nil
}

func (p *proxy) invoke(ctx context.Context, method string, req any, target string) (*frame, error) {
	ctx, conn, err := p.connect(ctx, target)
	if err != nil {
		return nil, err
	}
	answer := &frame{}
	return answer, conn.Invoke(ctx, method, req, answer)
}

// stream forwards a streaming call. Answers of several machines are sent as they come.
func (p *proxy) stream(method string, ss grpc.ServerStream, targets []string, many bool) error {
	if !many {
		return p.pump(method, ss, targets[0], ss.SendMsg)
	}
	var first frame
	if err := ss.RecvMsg(&first); err != nil {
		return err
	}
	var sending sync.Mutex
	send := func(f *frame) error {
		sending.Lock()
		defer sending.Unlock()
		return ss.SendMsg(f)
	}
	var calls sync.WaitGroup
	for _, target := range targets {
		calls.Go(func() {
			err := p.pump(method, &replay{ServerStream: ss, first: &first}, target, func(m any) error {
				f, _ := m.(*frame)
				return send(f.named(target))
			})
			if err != nil {
				_ = send(failed(target, err, true)) // the caller may be gone
			}
		})
	}
	calls.Wait()
	return nil
}

// replay is a server stream whose single message is sent to several machines.
type replay struct {
	grpc.ServerStream
	first *frame
	done  bool
}

func (r *replay) RecvMsg(m any) error {
	f, ok := m.(*frame)
	if !ok || r.done {
		return io.EOF
	}
	f.raw, r.done = r.first.raw, true
	return nil
}

// pump copies messages in both directions until the other machine has answered.
func (p *proxy) pump(method string, ss grpc.ServerStream, target string, send func(any) error) error {
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	ctx, conn, err := p.connect(ctx, target)
	if err != nil {
		return err
	}
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // ends with the call, whose handler's return ends RecvMsg
		for {
			var f frame
			switch err := ss.RecvMsg(&f); {
			case errors.Is(err, io.EOF):
				_ = cs.CloseSend()
				return
			case err != nil:
				cancel()
				return
			}
			if cs.SendMsg(&f) != nil {
				return // the answer has the reason
			}
		}
	}()
	for {
		var f frame
		switch err := cs.RecvMsg(&f); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := send(&f); err != nil {
			return err
		}
	}
}

// frame is a message that is forwarded unchanged.
type frame struct{ raw []byte }

// codec is gRPC's codec, but passes frames through.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// from adds the machine's name to the one message of an answer: every response of the API
// that can be joined has messages as field 1, whose field 1 is the metadata.
func (f *frame) from(target string) (*frame, error) {
	field, kind, n := protowire.ConsumeTag(f.raw)
	if n < 0 || field != 1 || kind != protowire.BytesType {
		return nil, fmt.Errorf("unexpected message format: %d", field)
	}
	_, m := protowire.ConsumeVarint(f.raw[n:]) // its length
	if m < 0 {
		return nil, protowire.ParseError(m)
	}
	message := (&frame{raw: f.raw[n+m:]}).named(target)
	return &frame{raw: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message.raw)}, nil
}

// named returns a message of a stream with its machine's name.
func (f *frame) named(target string) *frame {
	//lint:ignore SA1019 answers are joined by it
	return &frame{raw: append(f.raw[:len(f.raw):len(f.raw)], marshal(&common.Empty{Metadata: &common.Metadata{Hostname: target}})...)}
}

// failed returns the answer that stands for a machine that did not answer.
func failed(target string, err error, stream bool) *frame {
	//lint:ignore SA1019 answers are joined by it
	e := &common.Empty{Metadata: &common.Metadata{Hostname: target, Error: err.Error(), Status: status.Convert(err).Proto()}}
	if stream {
		return &frame{raw: marshal(e)}
	}
	return &frame{raw: marshal(&common.EmptyResponse{Messages: []*common.Empty{e}})}
}

func marshal(m proto.Message) []byte {
	b, _ := proto.Marshal(m) // our strings are valid
	return b
}

// release holds the visible differences between minor releases of Talos.
type release struct {
	contract *config.VersionContract
	// bareMaintenance: maintenance mode is a separate service with few methods (internal/app/maintenance), and not apid.
	bareMaintenance bool
	lifecycle       bool // has LifecycleService and ImageService
	rebootApplies   bool // a configured machine accepts a configuration with mode REBOOT
	patientPull     bool // its image API retries like Talos' own pulls, unless the image does not exist
	keepsDefault    bool // its installer keeps the default boot entry instead of the running one
	// lacks are the kinds of resources, documents the kinds of documents of a machine configuration, and volumes the
	// names in a VolumeConfig that came with a later release.
	lacks     []resource.Type
	documents [][]string
	fields    [][]string // of documents that it knows
	volumes   []string
	// unprobed are the filesystems that the release's probes don't detect (go-blockdevice, blkid/internal/chain:
	// btrfs since 2.0.30 of Talos 1.13.5, md since 2.0.32 of 1.14).
	unprobed []string
}

// releases are the releases that the lab simulates, in order.
var releases = []release{
	{
		contract: config.TalosVersion1_12, bareMaintenance: true, rebootApplies: true, patientPull: true, keepsDefault: true,
		lacks: sinceFourteen, documents: documentsSince, fields: fieldsSince, volumes: volumesSinceFourteen, unprobed: []string{"btrfs", "linux_raid_member"},
	},
	{
		contract: config.TalosVersion1_13, lifecycle: true, rebootApplies: true, patientPull: true, keepsDefault: true,
		lacks: sinceFourteen, documents: documentsSince[1:], fields: fieldsSince[1:], volumes: volumesSinceFourteen, unprobed: []string{"linux_raid_member"},
	},
	{contract: config.TalosVersion1_14, lifecycle: true},
}

// The simulated additions of 1.14 (CHANGELOG.md, 1.14.0-alpha.2 and beta.0; volume_config.go of 1.13 and 1.14).
var (
	sinceFourteen        = []resource.Type{runtime.BootIDType, runtime.ImageFactorySchematicType, runtime.UnattendedInstallStatusType, storage.LVMPhysicalVolumeStatusType}
	volumesSinceFourteen = []string{labelEtcd, "CRI", "KUBELET", "LOG"}
)

// releaseOf returns the release of a version: the first release for older versions, the last release for newer or
// invalid versions.
func releaseOf(version string) release {
	c, err := config.ParseContractFromVersion(version)
	if err != nil {
		return releases[len(releases)-1]
	}
	for _, r := range releases {
		if !c.Greater(r.contract) {
			return r
		}
	}
	return releases[len(releases)-1]
}

func (b *boot) release() release { return releaseOf(b.med.image.TalosVersion) }

func (r release) kinds(all []*meta.ResourceDefinition) []*meta.ResourceDefinition {
	return slices.DeleteFunc(slices.Clone(all), func(rd *meta.ResourceDefinition) bool {
		return slices.Contains(r.lacks, rd.TypedSpec().Type)
	})
}

// maintained returns the answer of a separate maintenance service to methods that the service lacks, or refuses to
// callers from the network (assertAdminRole in its server.go).
func (r release) maintained(method string) error {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	switch {
	case !r.bareMaintenance, service == "cosi.resource.State/", service == "storage.StorageService/", name == "ApplyConfiguration":
		return nil
	case service != "machine.MachineService/":
		return status.Errorf(codes.Unimplemented, "unknown service %s", path.Clean(service))
	case slices.Contains([]string{"Version", "Upgrade", "Reset", "MetaWrite", "MetaDelete"}, name):
		return status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")
	case name == "GenerateClientConfiguration":
		return status.Error(codes.Unimplemented, "client configuration (talosconfig) can't be generated in the maintenance mode")
	}
	return status.Errorf(codes.Unimplemented, "method %s not implemented", name)
}

// badMode returns the error for a mode of ApplyConfiguration that the release refuses, nil if the release accepts the
// mode. A separate maintenance service checks the mode first; apid checks the mode after the configuration.
func (r release) badMode(mode machineapi.ApplyConfigurationRequest_Mode, maintenance bool) error {
	//lint:ignore SA1019 REBOOT is the zero value, and what Talos knew before 1.14
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	const auto, try = machineapi.ApplyConfigurationRequest_AUTO, machineapi.ApplyConfigurationRequest_TRY
	_, known := machineapi.ApplyConfigurationRequest_Mode_name[int32(mode)]
	const incorrect = "incorrect mode '%s' specified for the apply config call"
	switch {
	case maintenance && r.bareMaintenance && mode != reboot && mode != auto && mode != try:
		return status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode", strings.ReplaceAll(strings.ToLower(mode.String()), "_", "-"))
	case mode == reboot && !maintenance && !r.rebootApplies:
		return status.Error(codes.Unimplemented, "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead")
	case !known && r.rebootApplies:
		return fmt.Errorf(incorrect, mode)
	case !known:
		return status.Errorf(codes.InvalidArgument, incorrect, mode)
	}
	return nil
}

// fourteen reports whether the release is 1.14 or later.
func (r release) fourteen() bool { return len(r.lacks) == 0 }

// documentsSince are the kinds of configuration documents that 1.13 and 1.14 added: the kinds registered by their
// decoders (registry.Register in pkg/machinery/config/types) but not by the decoder of the previous minor release.
var documentsSince = [][]string{
	{
		"BlackholeRouteConfig", "EnvironmentConfig", "ExternalVolumeConfig", "ImageVerificationConfig", "KubeSpanConfig",
		"RoutingRuleConfig", "TCPProbeConfig", "VRFConfig",
	},
	{
		"BGPInstanceConfig", "CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ContainerConfig", "DiscoveryIdentityConfig",
		"DiscoveryServiceConfig", "EtcFileConfig", "FilesystemScrubConfig", "FilesystemTrimConfig", "HTTPProbeConfig", "ImageCacheConfig",
		"KernelModuleConfig", "KubeAPIServerCAConfig", "KubeAPIServerConfig", "KubeAdmissionControlConfig", "KubeAggregatorCAConfig",
		"KubeAuditPolicyConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeClusterConfig", "KubeControllerManagerConfig",
		"KubeCoreDNSConfig", "KubeCredentialProviderConfig", "KubeEtcdEncryptionConfig", "KubeExternalManifestConfig",
		"KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeNetworkConfig", "KubeNodeConfig", "KubePrismConfig", "KubeProxyConfig",
		"KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeStaticPodConfig", "KubeTalosAPIAccessConfig", "KubeletConfig",
		"LVMLogicalVolumeConfig", "LVMVolumeGroupConfig", "RAIDArrayConfig", "SecurityProfileConfig", "SysctlConfig", "SysfsConfig",
		"UdevRulesConfig", "UnattendedInstallConfig", "VethConfig",
	},
}

// fieldsSince are the fields that 1.13 and 1.14 added to existing kinds of documents, as the structs of these kinds
// have them (yaml tags in pkg/machinery/config/types).
var fieldsSince = [][]string{
	{" cluster.network.cni.flannel.kubeNetworkPoliciesEnabled", "ExistingVolumeConfig mount.secure", "UserVolumeConfig mount", "VolumeConfig mount"},
	{
		"DHCPv4Config ignoreRoutes", "ExistingVolumeConfig scrub", "ExistingVolumeConfig trim", "RawVolumeConfig encryption.allowDiscards", "ResolverConfig hostDNS",
		"SwapVolumeConfig encryption.allowDiscards", "TimeSyncConfig ntp.useNTS", "UserVolumeConfig encryption.allowDiscards", "UserVolumeConfig filesystem.xfs",
		"UserVolumeConfig scrub", "UserVolumeConfig trim", "VolumeConfig encryption.allowDiscards", "VolumeConfig filesystem", "VolumeConfig scrub", "VolumeConfig trim",
	},
}

// unknownField returns a field of a document that came with a later release; "" if the document has no such field.
func (r release) unknownField(kind string, node *yaml.Node) string {
	for _, field := range slices.Concat(r.fields...) {
		of, path, _ := strings.Cut(field, " ")
		at := node.Content[0]
		for key := range strings.SplitSeq(path, ".") {
			at = valueOf(at, key)
		}
		if of == kind && at != nil {
			return path
		}
	}
	return ""
}

// valueOf returns the value of a key; nil if the node is no mapping, or lacks the key.
func valueOf(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// takes refuses a configuration with kinds, fields or volumes of a later release, with the errors
// of the release's decoder and of its VolumeConfig.
func (r release) takes(raw []byte) error {
	for dec := yaml.NewDecoder(bytes.NewReader(raw)); ; {
		var node yaml.Node
		if err := dec.Decode(&node); errors.Is(err, io.EOF) || err != nil {
			return nil //nolint:nilerr // invalid YAML was refused before
		}
		var doc struct {
			APIVersion string `yaml:"apiVersion"`
			Kind, Name string
		}
		if len(node.Content) != 1 || node.Decode(&doc) != nil {
			continue
		}
		switch {
		case slices.ContainsFunc(r.documents, func(kinds []string) bool { return slices.Contains(kinds, doc.Kind) }):
			return fmt.Errorf("error decoding document %s/%s/%s (line %d): %q %q: not registered",
				doc.APIVersion, doc.Kind, doc.Name, node.Content[0].Line, doc.Kind, doc.APIVersion)
		case r.unknownField(doc.Kind, &node) != "":
			return fmt.Errorf("error decoding document %s/%s/%s (line %d): unknown keys: %s",
				doc.APIVersion, doc.Kind, doc.Name, node.Content[0].Line, r.unknownField(doc.Kind, &node))
		case doc.Kind == "VolumeConfig" && slices.Contains(r.volumes, doc.Name):
			return fmt.Errorf("only %q volumes are supported", []string{labelState, labelEphemeral, "IMAGECACHE"})
		}
	}
}
