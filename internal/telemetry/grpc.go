package telemetry

import (
	"context"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// GRPC returns the dial options for connections to one kind of server.
func (t *Telemetry) GRPC(server string) []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(&rpcs{t, server})}
}

// rpcs records every call of a gRPC connection.
type rpcs struct {
	t      *Telemetry
	server string
}

var _ stats.Handler = (*rpcs)(nil)

type callKey struct{}

func (r *rpcs) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	method := strings.TrimPrefix(info.FullMethodName, "/")
	c := &call{server: r.server, method: method, change: !reads(method)}
	ctx = r.t.begin(ctx, c, method, attrRPCSystem.String("grpc"), attrRPCMethod.String(method))
	return context.WithValue(ctx, callKey{}, c)
}

func (r *rpcs) HandleRPC(ctx context.Context, s stats.RPCStats) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.OutHeader:
		if s.RemoteAddr != nil {
			c.remote.Store(new(s.RemoteAddr.String()))
			c.span.SetAttributes(attrAddress.String(s.RemoteAddr.String()))
		}
	case *stats.End:
		code := status.FromContextError(s.Error).Code() // for errors not made by gRPC
		if st, made := status.FromError(s.Error); made {
			code = st.Code()
		}
		if remote := c.remote.Load(); remote != nil {
			c.host = *remote
		}
		res := result{code: code.String(), class: code.String()}
		if code != codes.OK {
			res.kind = code.String() // the message may quote the request
		}
		c.span.SetAttributes(attrRPCCode.String(res.code))
		r.t.answered(c, res)
		c.span.End()
	}
}

func (*rpcs) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (*rpcs) HandleConn(context.Context, stats.ConnStats) {}

// reads says whether a method of Talos' API is read-only; unknown methods are not.
func reads(method string) bool {
	return slices.Contains([]string{
		"Get", "List", "Watch", // cosi.resource.State, and files and images of a machine
		"Version", "Read", "Copy", "Hostname", "Memory", "SystemStat", "Mounts", "Containers", "Processes",
		"Dmesg", "Logs", "Events", "ServiceList", "DiskUsage", "ImageList",
		"EtcdStatus", "EtcdMemberList", "EtcdAlarmList", "EtcdSnapshot",
	}, path.Base(method))
}
