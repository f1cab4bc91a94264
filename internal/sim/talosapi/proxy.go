package talosapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/recast-sh/recast/internal/sim/network"
)

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

// close breaks every connection to other machines.
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
	p.boot.mu.Lock()
	defer p.boot.mu.Unlock()
	return target == p.boot.m.addr().String() || p.boot.cfg != nil && target == hostnameOf(p.boot.cfg, p.boot.nodeID)
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

// RecvMsg implements grpc.ServerStream.
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

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
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
