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

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// Deadlines of calls about etcd: without quorum it does not answer at all.
const (
	etcdReadTimeout    = 15 * time.Second
	etcdForfeitTimeout = 30 * time.Second
	etcdLeaveTimeout   = 6 * time.Minute // Talos itself tries for five while etcd is unhealthy, then empties the data directory
	snapshotSilence    = time.Minute     // for one piece of a snapshot; the whole has no limit
)

// EtcdMembers asks the machine's own member for the members, sorted by name. A
// learner and a member without a leader do not answer.
func (c *Client) EtcdMembers(ctx context.Context, addr netip.Addr) ([]cluster.EtcdMember, error) {
	return askEtcd(ctx, c, addr, etcdMembers)
}

func etcdMembers(ctx context.Context, s session) ([]cluster.EtcdMember, error) {
	answers, err := s.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: true})
	if err != nil {
		return nil, fmt.Errorf("list etcd's members: %w", answer(err))
	}
	list, err := single(answers.GetMessages())
	if err != nil {
		return nil, fmt.Errorf("list etcd's members: %w", err)
	}
	var out []cluster.EtcdMember
	for _, m := range list.GetMembers() {
		out = append(out, cluster.EtcdMember{ID: m.GetId(), Name: m.GetHostname(), Peers: m.GetPeerUrls(), Learner: m.GetIsLearner()})
	}
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
	if err != nil {
		return cluster.EtcdStatus{}, fmt.Errorf("read etcd's status: %w", answer(err))
	}
	one, err := single(answers.GetMessages())
	if err != nil {
		return cluster.EtcdStatus{}, fmt.Errorf("read etcd's status: %w", err)
	}
	m := one.GetMemberStatus()
	if m.GetMemberId() == 0 {
		return cluster.EtcdStatus{}, errors.New("read etcd's status: it names no member")
	}
	st := cluster.EtcdStatus{
		MemberID: m.GetMemberId(), Leader: m.GetLeader(), Learner: m.GetIsLearner(),
		Version: m.GetProtocolVersion(), DBBytes: m.GetDbSize(),
	}
	for _, text := range m.GetErrors() {
		st.Errors = append(st.Errors, foreign.Line(text))
	}
	// Alarms go through raft, and learners serve next to nothing (etcd
	// server/etcdserver/v3_server.go, api/v3rpc/interceptor.go).
	if st.Leader == 0 || st.Learner {
		return st, nil
	}
	alarms, corrupt, err := etcdAlarms(ctx, s)
	if err != nil {
		return st, err // that it has a leader is known all the same
	}
	st.Corrupt = corrupt
	// The status has them, too, but by number (etcd api/v3rpc/maintenance.go).
	st.Errors = append(slices.DeleteFunc(st.Errors, func(e string) bool { return strings.HasPrefix(e, "memberID:") }), alarms...)
	return st, nil
}

// etcdAlarms describes the alarms of all members; corrupt says whether one of them
// reports that the members do not hold the same data.
func etcdAlarms(ctx context.Context, s session) (out []string, corrupt bool, err error) {
	answers, err := s.EtcdAlarmList(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("list etcd's alarms: %w", answer(err))
	}
	one, err := single(answers.GetMessages())
	if err != nil {
		return nil, false, fmt.Errorf("list etcd's alarms: %w", err)
	}
	if len(one.GetMemberAlarms()) == 0 {
		return nil, false, nil
	}
	members, err := etcdMembers(ctx, s)
	if err != nil {
		return nil, false, err
	}
	for _, a := range one.GetMemberAlarms() {
		name := fmt.Sprintf("%x", a.GetMemberId())
		for _, m := range members {
			if m.ID == a.GetMemberId() && m.Name != "" {
				name = m.Name
			}
		}
		out = append(out, fmt.Sprintf("alarm %s on member %s", a.GetAlarm(), name))
		corrupt = corrupt || a.GetAlarm() == machineapi.EtcdMemberAlarm_CORRUPT
	}
	return out, corrupt, nil
}

// EtcdSnapshot copies every byte that the machine sends to w. A truncated snapshot
// is an error; w then has part of it.
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
		pieces, err := s.MachineClient.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
		if err != nil {
			return fmt.Errorf("read etcd's snapshot: %w", answer(err))
		}
		for {
			piece, err := pieces.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
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
	})
}

// EtcdForfeit makes the machine's member hand over leadership if it has it. An etcd
// that does not run is no leader, and a request to it would hang.
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
