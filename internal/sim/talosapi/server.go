package talosapi

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/crypto/x509"
	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/directgrpc"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

// certificateLife exceeds the life of any lab.
const certificateLife = 24 * 365 * time.Hour

// api is a running apid.
type api struct {
	grpc  *grpc.Server
	proxy *proxy // nil in maintenance mode
	done  chan struct{}
	// direct is the same server for clients that bypass the wire.
	direct *directgrpc.Server
}

// RegisterService implements grpc.ServiceRegistrar.
func (a *api) RegisterService(desc *grpc.ServiceDesc, srv any) {
	a.grpc.RegisterService(desc, srv)
	a.direct.RegisterService(desc, srv)
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
	a.direct = directgrpc.NewServer(ctx, conf, g.unary, g.stream)
	machineapi.RegisterMachineServiceServer(a, &machineService{boot: b, maintenance: maintenance})
	if b.release().lifecycle {
		machineapi.RegisterImageServiceServer(a, &imageService{boot: b})
		machineapi.RegisterLifecycleServiceServer(a, &lifecycleService{boot: b})
	}
	if !maintenance {
		clusterapi.RegisterClusterServiceServer(a, &clusterService{machine: &machineService{boot: b}, proxy: g.proxy})
	}
	storageapi.RegisterStorageServiceServer(a, &storageService{boot: b})
	cosi.RegisterStateServer(a, cosiserver.NewState(served{state.Filter(b.store.st, b.rule)}))
	holding(&b.mu, func() { b.api = a })
	b.m.fw.o.Network.Open(ctx, l.Addr().String(), func() (network.Door, bool) { return a.direct.Door(), !b.m.silent("", "") })
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
	b.mu.Lock()
	a := b.api
	b.api = nil
	b.mu.Unlock()
	if a == nil {
		return
	}
	if a.proxy != nil {
		a.proxy.close()
	}
	a.direct.Stop()
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
	known := func(kind resource.Type, id resource.ID) (resource.Resource, error) {
		return b.store.st.Get(ctx, resource.NewMetadata(meta.NamespaceName, kind, id, resource.VersionUndefined))
	}
	kind, err := known(meta.ResourceDefinitionType, strings.ToLower(access.ResourceType))
	switch {
	case state.IsNotFoundError(err):
		return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
	case err != nil:
		return err
	case kind.(*meta.ResourceDefinition).TypedSpec().Sensitivity == meta.Sensitive && !roles(ctx).Includes(role.Admin):
		return status.Error(codes.PermissionDenied, "not authorized")
	}
	_, err = known(meta.NamespaceType, access.ResourceNamespace)
	switch {
	case state.IsNotFoundError(err):
		return status.Errorf(codes.PermissionDenied, "namespace %q is not supported", access.ResourceNamespace)
	case err != nil:
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
