package talos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

var threeMembers = []*machineapi.EtcdMember{
	{Id: 0xc3, Hostname: "cp3", PeerUrls: []string{"https://127.42.7.13:2380"}, IsLearner: true},
	{Id: 0xc1, Hostname: "cp1", PeerUrls: []string{"https://127.42.7.11:2380"}},
	{Id: 0xc2, Hostname: "cp2"},
}

func TestEtcdMembers(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
	each(t, map[string]row{
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
	}, func(t *testing.T, _ string, c row) {
		got, err := c.node.start(t).EtcdStatus(t.Context(), cpAddr)
		must.Equal(t, "status", c.want, got)
		wantError(t, err, c.err)
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
	each(t, map[string]row{
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
	}, func(t *testing.T, _ string, c row) {
		var b bytes.Buffer
		c.write.Writer = &b
		wantError(t, (&fakeNode{snapshot: c.send}).start(t).EtcdSnapshot(t.Context(), cpAddr, 0, c.write), c.err)
		must.Not(t, b.String() != c.want, "%d bytes, want %d", b.Len(), len(c.want))
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
	each(t, changes, func(t *testing.T, _ string, change func(context.Context, *Client, string) error) {
		for _, uuid := range []string{"", workerUUID} {
			n := &fakeNode{version: "v1.13.9"}
			err := change(t.Context(), n.start(t), uuid)
			must.Not(t, fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), cpUUID) || n.done() != nil,
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
	each(t, map[string]row{
		"forfeit":   {"forfeit", etcdForfeitTimeout},
		"leave":     {"leave", etcdLeaveTimeout},
		"bootstrap": {"bootstrap false false", bootstrapTimeout},
		"reboot":    {"reboot DEFAULT", rebootTimeout},
		"rollback":  {"rollback", rebootTimeout},
		"apply":     {"apply NO_REBOOT machine: {}", defaultTimeout},
		"upgrade":   {"upgrade CRI/NS_SYSTEM installer", installSilence},
	}, func(t *testing.T, name string, c row) {
		ctx, n := t.Context(), &fakeNode{version: "v1.13.9", install: exits(0)}
		client := n.start(t)
		must.Do(t, changes[name](ctx, client, strings.ToUpper(cpUUID)))
		n.answer = status.Error(codes.Unavailable, "error reading from server: EOF")
		must.FailIs(t, changes[name](ctx, client, cpUUID), cluster.ErrLostAnswer)
		n.answer = status.Error(codes.FailedPrecondition, "not now")
		if err := changes[name](ctx, client, cpUUID); err == nil || errors.Is(err, cluster.ErrLostAnswer) || !strings.Contains(err.Error(), "not now") {
			t.Errorf("refused: err = %v", err)
		}
		n.hangs = name
		start := time.Now()
		err := changes[name](ctx, client, cpUUID)
		took := time.Since(start)
		must.Not(t, !errors.Is(err, cluster.ErrLostAnswer) || took != c.limit, "hung: err = %v after %s", err, took)
		changed := slices.DeleteFunc(n.done(), func(what string) bool { return strings.HasPrefix(what, "pull ") })
		must.Equal(t, "done", []string{c.want, c.want, c.want, c.want}, changed)
	})
}

// TestEtcdThatDoesNotRun: calls about it would hang until their deadline; the list of services answers at once.
func TestEtcdThatDoesNotRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, state := range []string{"Preparing", "Finished", "Failed", "Waiting"} {
			n := &fakeNode{hangs: "EtcdMemberList", services: []*machineapi.ServiceInfo{{Id: "etcd", State: state}}}
			c, start := n.start(t), time.Now()
			_, errMembers := c.EtcdMembers(t.Context(), cpAddr)
			_, errStatus := c.EtcdStatus(t.Context(), cpAddr)
			must.Pass(t, c.EtcdForfeit(t.Context(), cpAddr, cpUUID))
			did := n.done()
			must.Not(t, len(did) > 0, "it was asked for %q", did)
			errSnapshot := c.EtcdSnapshot(t.Context(), cpAddr, 0, io.Discard)
			must.Take(t, start, 0, time.Second)
			for _, err := range []error{errMembers, errStatus, errSnapshot} {
				hints := strings.Join(fault.Hints(err), "\n")
				must.Not(t, err == nil || !strings.Contains(err.Error(), "etcd does not run on it: the service is "+state) || !strings.Contains(hints, "service etcd") || strings.Contains(hints, "restarted"),
					"err = %v; hints: %s", err, hints)
			}
		}
	})
}

// TestEtcdThatHangs: the call ends by its deadline, and if only etcd is silent, the hint is about etcd.
func TestEtcdThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := &fakeNode{hangs: "EtcdMemberList", services: []*machineapi.ServiceInfo{{Id: "etcd", State: "Running"}}}
		c, start := n.start(t), time.Now()
		_, err := c.EtcdMembers(t.Context(), cpAddr)
		if took := time.Since(start); err == nil || took != etcdReadTimeout || !strings.Contains(err.Error(), "gave up after 15s: list etcd's members") {
			t.Errorf("err = %v after %s", err, took)
		}
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, "its etcd does not") || strings.Contains(hints, "restarted") {
			t.Errorf("err = %v; hints: %s", err, hints)
		}
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
	each(t, map[string]row{
		"every byte":                {&fakeNode{}, strings.NewReader(strings.Repeat("x", 100_000)), "recover 100000", nil, ""},
		"in small pieces":           {&fakeNode{}, iotest.OneByteReader(strings.NewReader("snapshot")), "recover 8", nil, ""},
		"too early":                 {&fakeNode{answer: early}, strings.NewReader("x"), "recover 1", cluster.ErrNotYet, "not ready for recovery yet"},
		"a file that can't be read": {&fakeNode{}, iotest.ErrReader(errors.New("input/output error")), "", nil, "read the snapshot: input/output error"},
		"silence":                   {&fakeNode{hangs: "recover"}, strings.NewReader("x"), "recover 1", nil, "silent for too long"},
	}, func(t *testing.T, _ string, c row) {
		start := time.Now()
		err := c.node.start(t).EtcdRecover(t.Context(), cpAddr, cpUUID, c.file)
		wantError(t, err, c.err)
		must.Not(t, !errors.Is(err, c.is) && c.is != nil, "err = %v, want %v", err, c.is)
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
	each(t, map[string]row{
		"it has data":        {status.Error(codes.AlreadyExists, "etcd data directory is not empty"), fault.Refused, nil},
		"too early":          {status.Error(codes.FailedPrecondition, "bootstrap is not available yet"), fault.Failed, cluster.ErrNotYet},
		"the answer is lost": {status.Error(codes.Unavailable, "error reading from server: EOF"), fault.Failed, cluster.ErrLostAnswer},
	}, func(t *testing.T, _ string, c row) {
		n := &fakeNode{answer: c.answer}
		err := n.start(t).EtcdBootstrap(t.Context(), cpAddr, cpUUID, cluster.EtcdCopy)
		must.Not(t, fault.KindOf(err) != c.kind || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), status.Convert(c.answer).Message()),
			"err = %v", err)
		must.Equal(t, "done", []string{"bootstrap true true"}, n.done())
	})
}

func TestEtcdService(t *testing.T) {
	bubble(t, func(t *testing.T) {
		event := func(text string) *machineapi.ServiceEvent { return &machineapi.ServiceEvent{Msg: text} }
		n := &fakeNode{services: []*machineapi.ServiceInfo{
			{Id: "cri", State: "Running"},
			{Id: "etcd", State: "Failed", Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{event("Running pre state"), event("it is too late")}}},
		}}
		c := n.start(t)
		if state, last, err := c.EtcdService(t.Context(), cpAddr); err != nil || state != "Failed" || last != "it is too late" {
			t.Errorf("%q %q %v", state, last, err)
		}
		n.services = n.services[:1]
		if _, _, err := c.EtcdService(t.Context(), cpAddr); err == nil {
			t.Error("no error without etcd")
		}
	})
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	c := &Client{endpoints: []string{"127.42.7.12", "localhost", "fd00::1", "127.42.7.11:50000", "[fd00::2]", "127.42.7.11:6443"}}
	got, err := c.Endpoints(t.Context())
	must.Not(t, err != nil || len(got) != 5 || got[0] != netip.MustParseAddr("127.42.7.12") || !got[1].IsLoopback() || got[2] != netip.MustParseAddr("fd00::1") || got[3] != netip.MustParseAddr("127.42.7.11") || got[4] != netip.MustParseAddr("fd00::2"),
		"%v, %v", got, err)
	c.endpoints = c.endpoints[5:]
	if got, err := c.Endpoints(t.Context()); err == nil || !strings.Contains(err.Error(), "endpoint 127.42.7.11:6443 of the talosconfig: port 6443") {
		t.Errorf("%v, %v", got, err)
	}
}
