package talosapi

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
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

	"github.com/recast-sh/recast/internal/sim/record"
)

// gate intercepts every method: it forwards the call to its target machine, or records it
// and checks the caller's roles.
type gate struct {
	boot        *boot
	maintenance bool
	proxy       *proxy // nil in maintenance mode
}

func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if g.proxy != nil {
		targets, many, err := g.proxy.route(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		if targets != nil {
			return g.proxy.unary(ctx, info.FullMethod, req, targets, many)
		}
	}
	call, err := g.begin(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer g.boot.m.fw.o.Recorder.End(call)
	if err := g.authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if err := g.hang(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (g *gate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if g.proxy != nil {
		targets, many, err := g.proxy.route(ss.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		if targets != nil {
			return g.proxy.stream(info.FullMethod, ss, targets, many)
		}
	}
	call, err := g.begin(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer g.boot.m.fw.o.Recorder.End(call)
	if err := g.authorize(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	if err := g.hang(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, ss)
}

// hang leaves reads of resources to rule, which knows the resource.
func (g *gate) hang(ctx context.Context, method string) error {
	if strings.HasPrefix(method, stateService) {
		return nil
	}
	return g.boot.m.hang(ctx, method, "")
}

func (g *gate) begin(ctx context.Context, method string) (record.Call, error) {
	if err := g.boot.m.fw.o.Recorder.Await(ctx, "talos"); err != nil {
		return record.Call{}, status.FromContextError(err).Err()
	}
	call, err := g.boot.m.fw.o.Recorder.Begin(record.Call{
		Proto: "talos", Target: g.boot.m.addr().String(), Method: method,
		User: strings.Join(roles(ctx).Strings(), ","), Mutation: !slices.Contains(reads, path.Base(method)),
	})
	switch {
	case err != nil:
		return call, status.Error(codes.Unavailable, err.Error())
	case g.boot.dying.Load():
		g.boot.m.fw.o.Recorder.End(call)
		return call, errNoMachined
	}
	return call, nil
}

// reads are the read-only methods of all services; unlisted methods count as mutations.
var reads = []string{
	"Get", "List", "Watch",
	"Version", "Hostname", "Read", "Copy", "DiskUsage", "Dmesg", "Logs", "LogsContainers", "Events", "ServiceList", "Containers",
	"Memory", "Mounts", "Processes", "Stats", "SystemStat", "CPUInfo", "CPUFreqStats", "DiskStats", "LoadAvg", "NetworkDeviceStats",
	"Netstat", "PacketCapture", "ImageList", "Kubeconfig", "GenerateClientConfiguration",
	"EtcdMemberList", "EtcdStatus", "EtcdSnapshot", "EtcdAlarmList", "EtcdDowngradeValidate", "HealthCheck", "Disks",
}

// authorize lets readers read what is not secret, operators run the machine, admins do
// everything (rules in internal/app/machined/pkg/system/services/machined.go).
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

// roles are those of the caller's certificate; an apid that forwards a call passes the
// caller's roles. Without a certificate (maintenance mode) every caller is a reader.
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

// rule guards the resources: they can't be written, only admins read sensitive ones, and
// kinds and namespaces that the release lacks are denied (AccessPolicy in
// internal/app/resources). Disks are probed again before they are read.
func (b *boot) rule(ctx context.Context, access state.Access) error {
	if !access.Verb.Readonly() {
		return status.Error(codes.PermissionDenied, "write access is not allowed")
	}
	kind, err := b.store.st.Get(ctx, resource.NewMetadata(
		meta.NamespaceName, meta.ResourceDefinitionType, strings.ToLower(access.ResourceType), resource.VersionUndefined))
	switch {
	case state.IsNotFoundError(err):
		return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
	case err != nil:
		return err
	}
	rd, ok := kind.(*meta.ResourceDefinition)
	if !ok {
		return status.Error(codes.Internal, fmt.Sprintf("unexpected definition of %s", access.ResourceType))
	}
	if rd.TypedSpec().Sensitivity == meta.Sensitive && !roles(ctx).Includes(role.Admin) {
		return status.Error(codes.PermissionDenied, "not authorized")
	}
	_, err = b.store.st.Get(ctx, resource.NewMetadata(meta.NamespaceName, meta.NamespaceType, access.ResourceNamespace, resource.VersionUndefined))
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
