package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// Deadlines of calls about etcd: etcd without quorum does not answer at all.
const (
	etcdReadTimeout    = 15 * time.Second
	etcdForfeitTimeout = 30 * time.Second
	etcdLeaveTimeout   = 6 * time.Minute // Talos tries for five minutes while etcd is unhealthy, then empties the data directory
	snapshotSilence    = time.Minute     // for one piece of a snapshot; the whole snapshot has no limit
)

// EtcdMembers asks the machine's own member for the members, sorted by name. A
// learner and a member without a leader do not answer.
func (c *Client) EtcdMembers(ctx context.Context, addr netip.Addr) ([]cluster.EtcdMember, error) {
	return askEtcd(ctx, c, addr, etcdMembers)
}

func etcdMembers(ctx context.Context, s session) ([]cluster.EtcdMember, error) {
	answers, err := s.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: true})
	list, err := single("list etcd's members", answers, err)
	if err != nil {
		return nil, err
	}
	out := cluster.Each(list.GetMembers(), func(m *machineapi.EtcdMember) cluster.EtcdMember {
		return cluster.EtcdMember{ID: m.GetId(), Name: m.GetHostname(), Peers: m.GetPeerUrls(), Learner: m.GetIsLearner()}
	})
	slices.SortFunc(out, func(a, b cluster.EtcdMember) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// EtcdStatus reads the status of the machine's own member. Alarms are missing if
// etcd cannot report them: on a learner, and without a leader.
func (c *Client) EtcdStatus(ctx context.Context, addr netip.Addr) (cluster.EtcdStatus, error) {
	return askEtcd(ctx, c, addr, etcdStatus)
}

func etcdStatus(ctx context.Context, s session) (cluster.EtcdStatus, error) {
	answers, err := s.EtcdStatus(ctx)
	one, err := single("read etcd's status", answers, err)
	if err != nil {
		return cluster.EtcdStatus{}, err
	}
	m := one.GetMemberStatus()
	if m.GetMemberId() == 0 {
		return cluster.EtcdStatus{}, errors.New("read etcd's status: it names no member")
	}
	st := cluster.EtcdStatus{
		MemberID: m.GetMemberId(), Leader: m.GetLeader(), Learner: m.GetIsLearner(),
		Version: m.GetProtocolVersion(), DBBytes: m.GetDbSize(), Errors: cluster.Each(m.GetErrors(), foreign.Line),
	}
	// Alarms go through raft, and learners serve next to nothing (etcd
	// server/etcdserver/v3_server.go, api/v3rpc/interceptor.go).
	if st.Leader == 0 || st.Learner {
		return st, nil
	}
	alarms, corrupt, err := etcdAlarms(ctx, s)
	if err != nil {
		return st, err // the rest of the status, with the leader, is known all the same
	}
	st.Corrupt = corrupt
	// The status has the alarms, too, but by number (etcd api/v3rpc/maintenance.go).
	st.Errors = append(slices.DeleteFunc(st.Errors, func(e string) bool { return strings.HasPrefix(e, "memberID:") }), alarms...)
	return st, nil
}

// etcdAlarms describes the alarms of all members; corrupt says whether an alarm reports that the members do not hold
// the same data.
func etcdAlarms(ctx context.Context, s session) (out []string, corrupt bool, err error) {
	answers, err := s.EtcdAlarmList(ctx)
	one, err := single("list etcd's alarms", answers, err)
	if err != nil || len(one.GetMemberAlarms()) == 0 {
		return nil, false, err
	}
	members, err := etcdMembers(ctx, s)
	if err != nil {
		return nil, false, err
	}
	for _, a := range one.GetMemberAlarms() {
		member, _ := cluster.Find(members, func(m cluster.EtcdMember) bool { return m.ID == a.GetMemberId() })
		out = append(out, fmt.Sprintf("alarm %s on member %s", a.GetAlarm(), cmp.Or(member.Name, fmt.Sprintf("%x", a.GetMemberId()))))
		corrupt = corrupt || a.GetAlarm() == machineapi.EtcdMemberAlarm_CORRUPT
	}
	return out, corrupt, nil
}

// EtcdSnapshot copies every byte that the machine sends to w. A truncated snapshot is an error; w then has received a
// part of the snapshot.
func (c *Client) EtcdSnapshot(ctx context.Context, addr netip.Addr, member uint64, w io.Writer) error {
	return c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := requireEtcdRuns(ctx, s, addr.String()); err != nil {
			return err
		}
		if member != 0 { // an address may move between machines: a virtual one, or a load balancer's
			switch own, err := etcdStatus(ctx, s); {
			case err != nil:
				return err
			case own.MemberID != member:
				return fmt.Errorf("etcd member %x answers there now, not %x", own.MemberID, member)
			}
		}
		wait(snapshotSilence)
		// The client library's own reader takes some errors within the stream for its end.
		for piece, err := range received(s.MachineClient.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})) {
			if err != nil {
				return fmt.Errorf("read etcd's snapshot: %w", answer(err))
			}
			//lint:ignore SA1019 how apid reports an error within a stream
			if text := piece.GetMetadata().GetError(); text != "" {
				return fmt.Errorf("read etcd's snapshot: %s", foreign.Line(text))
			}
			wait(0) // w's delay is not the machine's
			if _, err := w.Write(piece.GetBytes()); err != nil {
				return fmt.Errorf("write etcd's snapshot: %w", err)
			}
			wait(snapshotSilence)
		}
		return nil
	})
}

// EtcdForfeit makes the machine's member hand over leadership if the member is the leader. An etcd that does not run
// is no leader, and a request to it would hang.
func (c *Client) EtcdForfeit(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, etcdForfeitTimeout, func(ctx context.Context, s session) error {
		switch state, _, err := etcdService(ctx, s); {
		case err != nil && !errors.Is(err, errNoEtcd):
			return err
		case err == nil && state != etcdServing:
			return nil
		}
		_, err := s.EtcdForfeitLeadership(ctx, &machineapi.EtcdForfeitLeadershipRequest{})
		return err
	})
}

// EtcdLeave makes the machine's member leave etcd; Talos stops etcd there and
// empties its data directory (internal/pkg/etcd/etcd.go, LeaveCluster).
func (c *Client) EtcdLeave(ctx context.Context, addr netip.Addr, uuid string) error {
	return c.change(ctx, addr, uuid, etcdLeaveTimeout, func(ctx context.Context, s session) error {
		return s.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
	})
}

// etcdServing is the state of the service etcd while its server runs.
const etcdServing = "Running"

// etcdError is a failed call about etcd on a machine that answers other calls.
type etcdError struct{ error }

func (e *etcdError) Unwrap() error { return e.error }

// askEtcd is ask for reads that the machine's own etcd answers.
func askEtcd[T any](ctx context.Context, c *Client, addr netip.Addr, read func(context.Context, session) (T, error)) (found T, err error) {
	err = c.with(ctx, addr.String(), etcdReadTimeout, func(ctx context.Context, s session) (err error) {
		if err := requireEtcdRuns(ctx, s, addr.String()); err != nil {
			return err
		}
		if found, err = read(ctx, s); err != nil {
			return &etcdError{err}
		}
		return nil
	}, c.as)
	return found, err
}

// requireEtcdRuns refuses calls about an etcd that does not run, or not yet: the calls would hang until the caller
// gives up, while the list of services answers at once.
func requireEtcdRuns(ctx context.Context, s session, addr string) error {
	state, last, err := etcdService(ctx, s)
	if answeredWith(codes.PermissionDenied, err) {
		return nil // the role os:etcd:backup may only read snapshots
	}
	switch {
	case errors.Is(err, errNoEtcd):
		return nil // the call itself reports that the machine is not a control plane
	case err != nil:
		return err
	case state == etcdServing:
		return nil
	}
	err = fmt.Errorf("etcd does not run on it: the service is %s", state)
	if last != "" {
		err = fmt.Errorf("%w (%s)", err, last)
	}
	return fault.WithHint(fault.EtcdUnhealthy.Of(err), "talosctl -n %s service etcd and talosctl -n %s logs etcd say why; a control plane that has left etcd joins again when it reboots, "+
		"and the first one of a new cluster begins with talosctl bootstrap", addr, addr)
}

var errNoEtcd = errors.New("list the services: there is no etcd")

func etcdService(ctx context.Context, s session) (state, last string, err error) {
	answers, err := s.ServiceList(ctx)
	one, err := single("list the services", answers, err)
	if err != nil {
		return "", "", err
	}
	svc, found := cluster.Find(one.GetServices(), func(svc *machineapi.ServiceInfo) bool { return svc.GetId() == "etcd" })
	if !found {
		return "", "", errNoEtcd
	}
	if events := svc.GetEvents().GetEvents(); len(events) > 0 {
		last = foreign.Line(events[len(events)-1].GetMsg())
	}
	return foreign.Line(svc.GetState()), last, nil
}

const (
	bootstrapTimeout = time.Minute // Talos stops its etcd first
	snapshotPiece    = 32 << 10
)

func (c *Client) EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		state, last, err = etcdService(ctx, s)
		return err
	})
	return state, last, err
}

// EtcdRecover uploads a snapshot with which EtcdBootstrap begins. Talos accepts any number of uploads. Before 1.14,
// Talos keeps a truncated upload; when a truncated upload ends, Talos may remove a later upload there
// (v1alpha1_server.go, EtcdRecover).
func (c *Client) EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error {
	return c.patiently(ctx, addr, uuid, "nothing was done", func(ctx context.Context, s session, wait patience) error {
		wait(snapshotSilence)
		stream, err := s.MachineClient.EtcdRecover(ctx)
		if err != nil {
			return fmt.Errorf("upload the snapshot: %w", notYet(err))
		}
		piece := make([]byte, snapshotPiece)
		for {
			wait(0) // the file's delay is not the machine's
			n, err := io.ReadFull(snapshot, piece)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("read the snapshot: %w", err)
			}
			wait(snapshotSilence)
			if n == 0 || stream.Send(&common.Data{Bytes: piece[:n]}) != nil {
				break // the answer says why the machine accepts no more
			}
		}
		if _, err := stream.CloseAndRecv(); err != nil {
			return fmt.Errorf("upload the snapshot: %w", notYet(err))
		}
		return nil
	})
}

// EtcdBootstrap makes the machine begin its own etcd. It returns when Talos has accepted the request.
func (c *Client) EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, content cluster.EtcdContent) error {
	return c.change(ctx, addr, uuid, bootstrapTimeout, func(ctx context.Context, s session) error {
		err := s.Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: content != cluster.EtcdEmpty, RecoverSkipHashCheck: content == cluster.EtcdCopy})
		if e, ok := errors.AsType[*answerError](answer(err)); ok && e.code == codes.AlreadyExists {
			return fault.WithHint(fault.Refusedf("%w", e), "another etcd was started there meanwhile: talosctl -n %s etcd members", addr)
		}
		return notYet(err)
	})
}

// notYet marks an answer that says that the request came too early.
func notYet(err error) error {
	err = answer(err)
	if answeredWith(codes.FailedPrecondition, err) {
		return fmt.Errorf("%w: %w", cluster.ErrNotYet, err)
	}
	return err
}
