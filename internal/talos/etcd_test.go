package talos

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

var threeMembers = []*machineapi.EtcdMember{
	{Id: 0xc3, Hostname: "cp3", PeerUrls: []string{"https://127.42.7.13:2380"}, IsLearner: true},
	{Id: 0xc1, Hostname: "cp1", PeerUrls: []string{"https://127.42.7.11:2380"}},
	{Id: 0xc2, Hostname: "cp2"},
}

func TestEtcdMembers(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n := &fakeNode{members: threeMembers}
		got := must.Get(n.start(t).EtcdMembers(t.Context(), cpAddr))(t)
		want := []cluster.EtcdMember{
			{ID: 0xc1, Name: "cp1", Peers: []string{"https://127.42.7.11:2380"}},
			{ID: 0xc2, Name: "cp2"},
			{ID: 0xc3, Name: "cp3", Peers: []string{"https://127.42.7.13:2380"}, Learner: true},
		}
		must.Equal(t, "members", want, got)
	})
}

func TestEtcdStatus(t *testing.T) {
	alarms := []*machineapi.EtcdMemberAlarm{
		{MemberId: 0xc2, Alarm: machineapi.EtcdMemberAlarm_NOSPACE}, {MemberId: 0xdd, Alarm: machineapi.EtcdMemberAlarm_CORRUPT},
	}
	type row struct {
		node *fakeNode
		want cluster.EtcdStatus
		err  string
	}
	must.Bubbles(t, map[string]row{
		"leader, alarms": {
			&fakeNode{members: threeMembers, alarms: alarms, status: &machineapi.EtcdMemberStatus{
				MemberId: 0xc1, Leader: 0xc1, ProtocolVersion: "3.6.4", DbSize: 7 << 20, Errors: []string{"own"},
			}},
			cluster.EtcdStatus{
				MemberID: 0xc1, Leader: 0xc1, Version: "3.6.4", DBBytes: 7 << 20,
				Errors: []string{"own", "alarm NOSPACE on member cp2", "alarm CORRUPT on member dd"}, Corrupt: true,
			},
			"",
		},
		"no leader: etcd would not tell its alarms": {
			&fakeNode{hangs: "EtcdAlarmList", status: &machineapi.EtcdMemberStatus{MemberId: 0xc1, Errors: []string{"etcdserver: no leader"}}},
			cluster.EtcdStatus{MemberID: 0xc1, Errors: []string{"etcdserver: no leader"}},
			"",
		},
		"learner": {
			&fakeNode{hangs: "EtcdAlarmList", status: &machineapi.EtcdMemberStatus{MemberId: 0xc3, Leader: 0xc1, IsLearner: true}},
			cluster.EtcdStatus{MemberID: 0xc3, Leader: 0xc1, Learner: true},
			"",
		},
		"alarms that can't be read": {
			&fakeNode{hangs: "EtcdAlarmList", status: &machineapi.EtcdMemberStatus{MemberId: 0xc1, Leader: 0xc1}},
			cluster.EtcdStatus{MemberID: 0xc1, Leader: 0xc1},
			"gave up after 15s: list etcd's alarms",
		},
		"no status": {&fakeNode{}, cluster.EtcdStatus{}, "names no member"},
	}, func(t *testing.T, c row) {
		got, err := c.node.start(t).EtcdStatus(t.Context(), cpAddr)
		must.Equal(t, "status", c.want, got)
		must.Fail(t, err, c.err)
	})
}

// send sends pieces of a snapshot, with a pause before each.
func send(s grpc.ServerStreamingServer[common.Data], pause time.Duration, pieces ...string) error {
	for _, p := range pieces {
		time.Sleep(pause)
		if err := s.Send(&common.Data{Bytes: []byte(p)}); err != nil {
			return err
		}
	}
	return nil
}

// slowly takes time for each write.
type slowly struct {
	io.Writer
	pause time.Duration
	err   error
}

func (w slowly) Write(b []byte) (int, error) {
	time.Sleep(w.pause)
	if w.err != nil {
		return 0, w.err
	}
	return w.Writer.Write(b)
}

func TestEtcdSnapshot(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<14)
	errFull := errors.New("no space left on device")
	type row struct {
		send  func(grpc.ServerStreamingServer[common.Data]) error
		write slowly
		want  string // expected output
		err   string
	}
	must.Bubbles(t, map[string]row{
		"every byte": {
			send: func(s grpc.ServerStreamingServer[common.Data]) error {
				return send(s, time.Second, big, "", big, "sum")
			},
			want: big + big + "sum",
		},
		"longer than any deadline, slow on both sides": {
			send:  func(s grpc.ServerStreamingServer[common.Data]) error { return send(s, 50*time.Second, "a", "b", "c") },
			write: slowly{pause: time.Hour}, want: "abc",
		},
		"cut in the middle": {
			send: func(s grpc.ServerStreamingServer[common.Data]) error {
				return errors.Join(send(s, 0, "a"), status.Error(codes.Unavailable, "error reading from server: EOF"))
			},
			want: "a", err: "EOF",
		},
		"an error within the stream": {
			send: func(s grpc.ServerStreamingServer[common.Data]) error {
				//lint:ignore SA1019 what apid says
				return errors.Join(send(s, 0, "a"), s.Send(&common.Data{Metadata: &common.Metadata{Error: "context canceled"}}))
			},
			want: "a", err: "context canceled",
		},
		"silence": {
			send: func(s grpc.ServerStreamingServer[common.Data]) error {
				err := send(s, 0, "a")
				<-s.Context().Done()
				return err
			},
			want: "a", err: "silent for too long",
		},
		"nowhere to put it": {
			send:  func(s grpc.ServerStreamingServer[common.Data]) error { return send(s, 0, "a") },
			write: slowly{err: errFull}, err: "no space left",
		},
	}, func(t *testing.T, c row) {
		var b bytes.Buffer
		c.write.Writer = &b
		must.Fail(t, (&fakeNode{snapshot: c.send}).start(t).EtcdSnapshot(t.Context(), cpAddr, 0, c.write), c.err)
		must.Hold(t, b.String() == c.want, "%d bytes, want %d", b.Len(), len(c.want))
	})
}

// changes are all the calls that change a machine.
var changes = map[string]func(ctx context.Context, c *Client, uuid string) error{
	"forfeit":  func(ctx context.Context, c *Client, uuid string) error { return c.EtcdForfeit(ctx, cpAddr, uuid) },
	"leave":    func(ctx context.Context, c *Client, uuid string) error { return c.EtcdLeave(ctx, cpAddr, uuid) },
	"reboot":   func(ctx context.Context, c *Client, uuid string) error { return c.Reboot(ctx, cpAddr, uuid, "") },
	"rollback": func(ctx context.Context, c *Client, uuid string) error { return c.Rollback(ctx, cpAddr, uuid) },
	"bootstrap": func(ctx context.Context, c *Client, uuid string) error {
		return c.EtcdBootstrap(ctx, cpAddr, uuid, cluster.EtcdEmpty)
	},
	"recover": func(ctx context.Context, c *Client, uuid string) error {
		return c.EtcdRecover(ctx, cpAddr, uuid, strings.NewReader("snapshot"))
	},
	"apply": func(ctx context.Context, c *Client, uuid string) error {
		return c.ReplaceConfig(ctx, cpAddr, uuid, cluster.Secret("machine: {}"))
	},
	"upgrade": func(ctx context.Context, c *Client, uuid string) error {
		_, err := c.Install(ctx, cpAddr, uuid, "installer", "", func(string) {})
		return err
	},
	"pull": func(ctx context.Context, c *Client, uuid string) error {
		_, err := c.PullInstaller(ctx, cpAddr, uuid, "installer", func(string) {})
		return err
	},
}

// No change is made on another machine than the intended one.
func TestChangesWantTheMachine(t *testing.T) {
	must.Bubbles(t, changes, func(t *testing.T, change func(context.Context, *Client, string) error) {
		for _, uuid := range []string{"", workerUUID} {
			n := &fakeNode{version: "v1.13.9"}
			err := change(t.Context(), n.start(t), uuid)
			must.Hold(t, fault.KindOf(err) == fault.Refused && strings.Contains(err.Error(), cpUUID) && n.done() == nil,
				"of %q: err = %v, done: %q", uuid, err, n.done())
		}
	})
}

// Each change arrives as sent, distinguishes a lost answer from a refusal, and ends by its deadline.
func TestChanges(t *testing.T) {
	type row struct {
		want  string
		limit time.Duration
	}
	must.Bubbles(t, map[string]row{
		"forfeit":   {"forfeit", etcdForfeitTimeout},
		"leave":     {"leave", etcdLeaveTimeout},
		"bootstrap": {"bootstrap false false", bootstrapTimeout},
		"reboot":    {"reboot DEFAULT", rebootTimeout},
		"rollback":  {"rollback", rebootTimeout},
		"apply":     {"apply NO_REBOOT machine: {}", defaultTimeout},
		"upgrade":   {"upgrade CRI/NS_SYSTEM installer", installSilence},
	}, func(t *testing.T, c row) {
		ctx, n := t.Context(), &fakeNode{version: "v1.13.9", install: exits(0)}
		client := n.start(t)
		name, _, _ := strings.Cut(c.want, " ")
		must.Do(t, changes[name](ctx, client, strings.ToUpper(cpUUID)))
		n.answer = status.Error(codes.Unavailable, "error reading from server: EOF")
		must.FailIs(t, changes[name](ctx, client, cpUUID), cluster.ErrLostAnswer)
		n.answer = status.Error(codes.FailedPrecondition, "not now")
		err := changes[name](ctx, client, cpUUID)
		must.Fail(t, err, "not now")
		must.Hold(t, !errors.Is(err, cluster.ErrLostAnswer), "a refusal counts as lost: %v", err)
		n.hangs = name
		start := time.Now()
		must.FailIs(t, changes[name](ctx, client, cpUUID), cluster.ErrLostAnswer)
		must.Equal(t, "took", c.limit, time.Since(start))
		changed := slices.DeleteFunc(n.done(), func(what string) bool { return strings.HasPrefix(what, "pull ") })
		must.Equal(t, "done", []string{c.want, c.want, c.want, c.want}, changed)
	})
}

// TestEtcdThatDoesNotRun: calls about it would hang until their deadline; the list of services answers at once.
func TestEtcdThatDoesNotRun(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		for _, state := range []string{"Preparing", "Finished", "Failed", "Waiting"} {
			n := &fakeNode{hangs: "EtcdMemberList", services: []*machineapi.ServiceInfo{{Id: "etcd", State: state}}}
			c, start := n.start(t), time.Now()
			_, errMembers := c.EtcdMembers(t.Context(), cpAddr)
			_, errStatus := c.EtcdStatus(t.Context(), cpAddr)
			must.Pass(t, c.EtcdForfeit(t.Context(), cpAddr, cpUUID))
			did := n.done()
			must.Hold(t, len(did) == 0, "it was asked for %q", did)
			errSnapshot := c.EtcdSnapshot(t.Context(), cpAddr, 0, io.Discard)
			must.Take(t, start, 0, time.Second)
			for _, err := range []error{errMembers, errStatus, errSnapshot} {
				hints := strings.Join(fault.Hints(err), "\n")
				must.Hold(t, err != nil && strings.Contains(err.Error(), "etcd does not run on it: the service is "+state) && strings.Contains(hints, "service etcd") && !strings.Contains(hints, "restarted"),
					"err = %v; hints: %s", err, hints)
			}
		}
	})
}

// TestEtcdThatHangs: the call ends by its deadline, and if only etcd is silent, the hint is about etcd.
func TestEtcdThatHangs(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		n := &fakeNode{hangs: "EtcdMemberList", services: []*machineapi.ServiceInfo{{Id: "etcd", State: "Running"}}}
		c, start := n.start(t), time.Now()
		_, err := c.EtcdMembers(t.Context(), cpAddr)
		must.Fail(t, err, "gave up after 15s: list etcd's members")
		must.Equal(t, "took", etcdReadTimeout, time.Since(start))
		hints := strings.Join(fault.Hints(err), "\n")
		must.Hold(t, strings.Contains(hints, "its etcd does not") && !strings.Contains(hints, "restarted"), "hints: %s", hints)
	})
}

func TestEtcdRecover(t *testing.T) {
	early := status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	type row struct {
		node *fakeNode
		file io.Reader
		want string // what is done
		is   error
		err  string
	}
	must.Bubbles(t, map[string]row{
		"every byte":                {&fakeNode{}, strings.NewReader(strings.Repeat("x", 100_000)), "recover 100000", nil, ""},
		"in small pieces":           {&fakeNode{}, iotest.OneByteReader(strings.NewReader("snapshot")), "recover 8", nil, ""},
		"too early":                 {&fakeNode{answer: early}, strings.NewReader("x"), "recover 1", cluster.ErrNotYet, "not ready for recovery yet"},
		"a file that can't be read": {&fakeNode{}, iotest.ErrReader(errors.New("input/output error")), "", nil, "read the snapshot: input/output error"},
		"silence":                   {&fakeNode{hangs: "recover"}, strings.NewReader("x"), "recover 1", nil, "silent for too long"},
	}, func(t *testing.T, c row) {
		start := time.Now()
		err := c.node.start(t).EtcdRecover(t.Context(), cpAddr, cpUUID, c.file)
		must.Fail(t, err, c.err)
		must.Hold(t, errors.Is(err, c.is) || c.is == nil, "err = %v, want %v", err, c.is)
		must.Take(t, start, 0, snapshotSilence)
		must.Equal(t, "done", c.want, strings.Join(c.node.done(), " "))
	})
}

func TestEtcdBootstrapTellsWhyNot(t *testing.T) {
	type row struct {
		answer error
		kind   fault.Kind
		is     error
	}
	must.Bubbles(t, map[string]row{
		"it has data":        {status.Error(codes.AlreadyExists, "etcd data directory is not empty"), fault.Refused, nil},
		"too early":          {status.Error(codes.FailedPrecondition, "bootstrap is not available yet"), fault.Failed, cluster.ErrNotYet},
		"the answer is lost": {status.Error(codes.Unavailable, "error reading from server: EOF"), fault.Failed, cluster.ErrLostAnswer},
	}, func(t *testing.T, c row) {
		n := &fakeNode{answer: c.answer}
		err := n.start(t).EtcdBootstrap(t.Context(), cpAddr, cpUUID, cluster.EtcdCopy)
		must.Hold(t, fault.KindOf(err) == c.kind && (c.is == nil || errors.Is(err, c.is)) && strings.Contains(err.Error(), status.Convert(c.answer).Message()),
			"err = %v", err)
		must.Equal(t, "done", []string{"bootstrap true true"}, n.done())
	})
}

func TestEtcdService(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		event := func(text string) *machineapi.ServiceEvent { return &machineapi.ServiceEvent{Msg: text} }
		n := &fakeNode{services: []*machineapi.ServiceInfo{
			{Id: "cri", State: "Running"},
			{Id: "etcd", State: "Failed", Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{event("Running pre state"), event("it is too late")}}},
		}}
		c := n.start(t)
		state, last, err := c.EtcdService(t.Context(), cpAddr)
		must.Equal(t, "state, last event, error", []any{"Failed", "it is too late", nil}, []any{state, last, err})
		n.services = n.services[:1]
		_, _, err = c.EtcdService(t.Context(), cpAddr)
		must.Hold(t, err != nil, "no error without etcd")
	})
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	c := &Client{endpoints: []string{"127.42.7.12", "localhost", "fd00::1", "127.42.7.11:50000", "[fd00::2]", "127.42.7.11:6443"}}
	got, err := c.Endpoints(t.Context())
	must.Hold(t, err == nil && len(got) == 5 && got[0] == netip.MustParseAddr("127.42.7.12") && got[1].IsLoopback() && got[2] == netip.MustParseAddr("fd00::1") && got[3] == netip.MustParseAddr("127.42.7.11") && got[4] == netip.MustParseAddr("fd00::2"),
		"%v, %v", got, err)
	c.endpoints = c.endpoints[5:]
	must.Fail(t, must.Err(c.Endpoints(t.Context())), "endpoint 127.42.7.11:6443 of the talosconfig: port 6443")
}

// fakeNode is a control plane that answers as configured.
type fakeNode struct {
	machineapi.UnimplementedMachineServiceServer
	version  string
	members  []*machineapi.EtcdMember
	status   *machineapi.EtcdMemberStatus
	alarms   []*machineapi.EtcdMemberAlarm
	snapshot func(grpc.ServerStreamingServer[common.Data]) error
	pull     func(grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]) error
	install  func(grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]) error
	services []*machineapi.ServiceInfo
	hangs    string       // the method that never answers
	busy     func() error // the answer to a configuration; nil: as to any other change
	answer   error        // to calls that change something, after the change

	mu  sync.Mutex
	did []string // what has changed it
}

// start serves the node until the test's bubble ends, and returns a client for it.
func (n *fakeNode) start(t *testing.T) *Client {
	t.Helper()
	c := must.Get(talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.13.9", "v1.35.4"))(t)
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	system.TypedSpec().UUID = strings.ToUpper(cpUUID)
	must.Do(t, st.Create(t.Context(), system))
	nw := network.Memory()
	t.Cleanup(serveAPI(t, nw, c, cpAddr.String(), func(s *grpc.Server) {
		machineapi.RegisterMachineServiceServer(s, n)
		machineapi.RegisterLifecycleServiceServer(s, &fakeLifecycle{node: n})
		machineapi.RegisterImageServiceServer(s, &fakeImages{node: n})
		cosi.RegisterStateServer(s, cosiserver.NewState(st))
	}))
	talosconfig := must.Get(c.Talosconfig(role.Admin, cpAddr.String()))(t)
	return must.Get(New(Options{Talosconfig: talosconfig, Dial: nw.Dialer().DialContext}))(t)
}

func (n *fakeNode) note(ctx context.Context, method, what string) error {
	n.mu.Lock()
	n.did = append(n.did, strings.TrimSpace(method+" "+what))
	n.mu.Unlock()
	return cmp.Or(n.hang(ctx, method), n.answer)
}

// done returns what has changed the node so far.
func (n *fakeNode) done() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.did)
}

func (n *fakeNode) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{Version: &machineapi.VersionInfo{Tag: n.version}}}}, nil
}

// hang never answers if the method is the one that hangs.
func (n *fakeNode) hang(ctx context.Context, method string) error {
	if n.hangs == method {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (n *fakeNode) EtcdMemberList(ctx context.Context, req *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	if !req.GetQueryLocal() {
		return nil, errors.New("it would ask a leader")
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Members: n.members}}}, n.hang(ctx, "EtcdMemberList")
}

func (n *fakeNode) EtcdStatus(context.Context, *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: n.status}}}, nil
}

func (n *fakeNode) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmListResponse, error) {
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{{MemberAlarms: n.alarms}}}, n.hang(ctx, "EtcdAlarmList")
}

func (n *fakeNode) EtcdSnapshot(_ *machineapi.EtcdSnapshotRequest, s grpc.ServerStreamingServer[common.Data]) error {
	return n.snapshot(s)
}

func (n *fakeNode) EtcdForfeitLeadership(ctx context.Context, _ *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{{}}}, n.note(ctx, "forfeit", "")
}

func (n *fakeNode) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, n.note(ctx, "leave", "")
}

func (n *fakeNode) Bootstrap(ctx context.Context, req *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	what := fmt.Sprint(req.GetRecoverEtcd(), " ", req.GetRecoverSkipHashCheck())
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, n.note(ctx, "bootstrap", what)
}

func (n *fakeNode) EtcdRecover(s grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error {
	size := 0
	for {
		piece, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		size += len(piece.GetBytes())
	}
	if err := n.note(s.Context(), "recover", strconv.Itoa(size)); err != nil {
		return err
	}
	return s.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
}

func (n *fakeNode) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: n.services}}}, nil
}

func (n *fakeNode) Reboot(ctx context.Context, req *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{}}}, n.note(ctx, "reboot", req.GetMode().String())
}

func (n *fakeNode) Rollback(ctx context.Context, _ *machineapi.RollbackRequest) (*machineapi.RollbackResponse, error) {
	return &machineapi.RollbackResponse{Messages: []*machineapi.Rollback{{}}}, n.note(ctx, "rollback", "")
}

func (n *fakeNode) ApplyConfiguration(ctx context.Context, req *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	err := n.note(ctx, "apply", req.GetMode().String()+" "+string(req.GetData()))
	if n.busy != nil {
		err = n.busy()
	}
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{}}}, err
}

func (n *fakeNode) Upgrade(ctx context.Context, req *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	if !req.GetPreserve() || req.GetForce() || req.GetStage() {
		return nil, context.Canceled // these flags do not belong here
	}
	return &machineapi.UpgradeResponse{Messages: []*machineapi.Upgrade{{Ack: "Upgrade request received"}}}, n.note(ctx, "old upgrade", req.GetImage())
}

// fakeLifecycle is the node's service for upgrades since 1.13.
type fakeLifecycle struct {
	machineapi.UnimplementedLifecycleServiceServer
	node *fakeNode
}

func (l *fakeLifecycle) Upgrade(
	req *machineapi.LifecycleServiceUpgradeRequest, s grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse],
) error {
	if err := l.node.note(s.Context(), "upgrade", where(req.GetContainerd())+req.GetSource().GetImageName()); err != nil {
		return err
	}
	return l.node.install(s)
}

// fakeImages is the node's service for images since 1.13.
type fakeImages struct {
	machineapi.UnimplementedImageServiceServer
	node *fakeNode
}

func (i *fakeImages) Pull(req *machineapi.ImageServicePullRequest, s grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]) error {
	if err := i.node.note(s.Context(), "pull", where(req.GetContainerd())+req.GetImageRef()); i.node.hangs == "pull" {
		return err
	}
	if i.node.pull == nil { // it has the image
		return s.Send(&machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_Name{Name: req.GetImageRef()}})
	}
	return i.node.pull(s)
}

func where(c *common.ContainerdInstance) string {
	return c.GetDriver().String() + "/" + c.GetNamespace().String() + " "
}

// oldNode is a machine whose Talos lacks most of the requested kinds.
type oldNode struct {
	machineapi.UnimplementedMachineServiceServer
	unreadable resource.Type // answers with an error
}

func (*oldNode) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{Version: &machineapi.VersionInfo{Tag: "v1.9.0"}}}}, nil
}

func (*oldNode) Read(req *machineapi.ReadRequest, s grpc.ServerStreamingServer[common.Data]) error {
	content, ok := map[string]string{bootIDFile: "boot-1\n", cmdlineFile: "quiet talos.config=https://user:pass@seed.example/?t=secret\n"}[req.GetPath()]
	if !ok {
		return status.Error(codes.Unknown, "no such file")
	}
	return s.Send(&common.Data{Bytes: []byte(content)})
}

func (n *oldNode) access(_ context.Context, a state.Access) error {
	switch a.ResourceType {
	case runtime.MachineStatusType, config.MachineConfigType:
		return nil
	case n.unreadable:
		return status.Error(codes.Internal, "disk on fire")
	}
	return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", a.ResourceType)
}

// serve answers at addr:50000 until the returned function is called.
func (n *oldNode) serve(t *testing.T, nw *network.Network, c *talosapi.Cluster, addr string) (stop func()) {
	t.Helper()
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	ready := runtime.NewMachineStatus()
	ready.TypedSpec().Stage, ready.TypedSpec().Status.Ready = runtime.MachineStageRunning, true
	must.Do(t, st.Create(t.Context(), ready))
	return serveAPI(t, nw, c, addr, func(s *grpc.Server) {
		machineapi.RegisterMachineServiceServer(s, n)
		cosi.RegisterStateServer(s, cosiserver.NewState(state.Filter(st, n.access)))
	})
}

// serveAPI answers at addr:50000, with a certificate of the cluster, until the returned function is called.
func serveAPI(t *testing.T, nw *network.Network, c *talosapi.Cluster, addr string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	ca := must.Get(x509.NewCertificateAuthorityFromCertificateAndKey(c.Secrets.Certs.OS))(t)
	pair := must.Get(x509.NewKeyPair(ca, x509.IPAddresses([]net.IP{net.ParseIP(addr)}), x509.NotBefore(time.Now()), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth})))(t)
	l := must.Get(nw.Listen(addr + ":50000"))(t)
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair.Certificate}})))
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // ends with stop
	return func() { s.Stop(); <-done }
}

// A kind that the machine does not have is an empty field; one that it fails to read is an error.
func TestOldNode(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		c := must.Get(talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.13.9", "v1.35.4"))(t)
		nw := network.Memory()
		defer (&oldNode{}).serve(t, nw, c, "127.42.7.31")()
		defer (&oldNode{unreadable: block.DiskType}).serve(t, nw, c, "127.42.7.32")()
		talosconfig := must.Get(c.Talosconfig(role.Admin, "127.42.7.31"))(t)
		client := must.Get(New(Options{Talosconfig: talosconfig, Dial: nw.Dialer().DialContext}))(t)
		defer client.Close()
		got := must.Get(cluster.ReadMachine(t.Context(), client, netip.MustParseAddr("127.42.7.31")))(t)
		must.Equal(t, "machine", cluster.Machine{
			MachineStanding: cluster.MachineStanding{Stage: "running", Ready: true},
			RunningSystem: cluster.RunningSystem{
				TalosVersion: "v1.9.0", ConfigArgs: []string{"talos.config=https://seed.example"},
				Cmdline: cluster.Secret("quiet talos.config=https://user:pass@seed.example/?t=secret"),
			},
			BootID: "boot-1",
		}, got)
		must.FailIs(t, must.Err(client.MachineConfig(t.Context(), netip.MustParseAddr("127.42.7.31"))), errNoConfig)
		got, err := cluster.ReadMachine(t.Context(), client, netip.MustParseAddr("127.42.7.32"))
		must.Equal(t, "error, version", []string{"127.42.7.32: list Disks.block.talos.dev: disk on fire", ""}, []string{fmt.Sprint(err), got.TalosVersion})
	})
}

func TestNewRefuses(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		c := must.Get(talosapi.NewCluster("lab", "https://127.42.7.10:6443", "v1.13.9", "v1.35.4"))(t)
		good := must.Get(c.Talosconfig(role.Admin, "127.42.7.31"))(t)
		none := must.Get(c.Talosconfig(role.Admin))(t)
		cases := map[string]struct {
			o    Options
			want string
		}{
			"fine":          {Options{Talosconfig: good}, ""},
			"no YAML":       {Options{Talosconfig: []byte("context: [secret-value")}, "not valid YAML"},
			"nothing":       {Options{}, "not valid YAML"},
			"other context": {Options{Talosconfig: good, Context: "prod"}, `no context "prod"`},
			"no endpoints":  {Options{Talosconfig: none}, "has no endpoints"},
			"broken key":    {Options{Talosconfig: []byte("context: a\ncontexts: {a: {endpoints: [b], crt: c2VjcmV0LXZhbHVl, key: eA==}}")}, "can't be read"},
		}
		check := func(name string, o Options, want string) {
			_, err := New(o)
			must.Fail(t, err, want)
			must.Hold(t, !strings.Contains(fmt.Sprint(err), "secret"), "%s: err = %v", name, err)
		}
		for name, c := range cases {
			check(name, c.o, c.want)
		}
		early := must.Get(New(Options{Talosconfig: good}))(t)
		time.Sleep(20 * 365 * 24 * time.Hour)
		check("expired", Options{Talosconfig: good}, "expired on 20")
		must.FailAs(t, must.Err(cluster.ReadMachine(t.Context(), early, netip.MustParseAddr("127.42.7.31"))), fault.Config, "expired on 20")
	})
}

// A session never moves to another connection.
func TestOnce(t *testing.T) {
	t.Parallel()
	dialed := 0
	dial := once(func(context.Context, string, string) (net.Conn, error) {
		dialed++
		if dialed == 1 {
			return nil, net.ErrClosed
		}
		client, _ := net.Pipe()
		return client, nil
	})
	must.FailIs(t, must.Err(dial(t.Context(), "a")), net.ErrClosed)
	must.Pass(t, must.Err(dial(t.Context(), "a")))
	_, err := dial(t.Context(), "a")
	must.Hold(t, errors.Is(err, errConnectionLost) && dialed == 2, "third: err = %v after %d attempts", err, dialed)
}

func TestRedact(t *testing.T) {
	t.Parallel()
	config := []byte("machine:\n  type: worker\n  token: abcdef.0123456789\n  pin: '12'\n  disks: disk\n  port: 6443\n  secret: swordfish\n  text: |\n    first line\n    second line\n---\napiVersion: v1alpha1\nkind: VolumeConfig\n")
	cases := map[string]struct{ text, want string }{
		"nothing of it":   {"line 4: mapping expected", "line 4: mapping expected"},
		"a value":         {"bad token abcdef.0123456789!", "bad token [redacted]!"},
		"a word of it":    {"a worker has no disk, port 6443", "a worker has no disk, port 6443"},
		"a secret word":   {"the secret swordfish is short", "the secret [redacted] is short"},
		"a longer word":   {"no workers", "no workers"},
		"part of a value": {"cannot unmarshal !!str `abcdef....` into int", "cannot unmarshal !!str [redacted] into int"},
		"one of lines":    {"unexpected second line here", "unexpected [redacted] here"},
		"what it is":      {"document v1alpha1/VolumeConfig/ (line 8)", "document v1alpha1/VolumeConfig/ (line 8)"},
		"unknown keys":    {"x: unknown keys found during decoding:\nmachine:\n    pin: 12\n    more:\n        - a: 7\n", "x: unknown keys: machine.pin, machine.more.a"},
		"a list":          {"2 errors occurred:\n\t* one\n\t* two\n\n", "one; two"},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, withoutValues(c.text, config))
	}
	must.Equal(t, "no YAML", "not valid YAML, line 2", withoutValues("yaml: line 2: found abc", []byte("a: [abc")))
}

// Everything that a machine says in an answer becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	const evil = "bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"
	etcd := func(state, told string) []*machineapi.ServiceInfo {
		return []*machineapi.ServiceInfo{{Id: "etcd", State: state, Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{{Msg: told}}}}}
	}
	reboot := func(t *testing.T, c *Client) string { return said(c.Reboot(t.Context(), cpAddr, cpUUID, "")) }
	save := func(t *testing.T, c *Client) string {
		return said(c.EtcdSnapshot(t.Context(), cpAddr, 0, &strings.Builder{}))
	}
	install := func(t *testing.T, c *Client) string {
		var told []string
		_, err := c.Install(t.Context(), cpAddr, cpUUID, "installer", "", func(line string) { told = append(told, line) })
		return said(err) + " " + strings.Join(told, " ")
	}
	type row struct {
		node *fakeNode
		ask  func(*testing.T, *Client) string
	}
	must.Bubbles(t, map[string]row{
		"status":          {&fakeNode{answer: status.Error(codes.Unknown, evil)}, reboot},
		"status, no more": {&fakeNode{answer: status.Error(codes.PermissionDenied, evil)}, reboot},
		"installer":       {&fakeNode{version: "v1.13.9", install: exits(1, evil)}, install},
		"service":         {&fakeNode{services: etcd("Failed", evil)}, save},
		"state":           {&fakeNode{services: etcd(evil, "")}, save},
		"snapshot": {&fakeNode{services: etcd("Running", ""), snapshot: func(s grpc.ServerStreamingServer[common.Data]) error {
			//lint:ignore SA1019 how apid reports an error within a stream
			return s.Send(&common.Data{Metadata: &common.Metadata{Error: evil}})
		}}, save},
		"etcd": {&fakeNode{services: etcd("Running", ""), status: &machineapi.EtcdMemberStatus{MemberId: 1, Errors: []string{evil}}}, func(t *testing.T, c *Client) string {
			st, err := c.EtcdStatus(t.Context(), cpAddr)
			return said(err) + strings.Join(st.Errors, " ")
		}},
	}, func(t *testing.T, c row) {
		text := c.ask(t, c.node.start(t))
		must.Contain(t, "text", text, "bad", "fake line")
		must.Hold(t, !strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f"), "%q", text)
	})
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestExpires(t *testing.T) {
	t.Parallel()
	c := must.Get(talosapi.NewCluster("lab", "https://127.42.7.1:6443", "v1.13.9", "v1.35.4"))(t)
	left := time.Until(Expires(must.Get(c.Talosconfig(role.Admin, "127.42.7.31"))(t)))
	must.Hold(t, left >= time.Hour, "it ends in %s", left)
	for _, none := range []string{"][", "context: gone\n", "context: a\ncontexts: {a: {endpoints: [127.42.7.31]}}\n"} {
		must.Equal(t, none, time.Time{}, Expires([]byte(none)))
	}
}
