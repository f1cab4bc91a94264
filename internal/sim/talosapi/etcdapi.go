package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// Timeouts of Talos' own etcd clients, at speed 1 (internal/pkg/etcd).
const (
	leaveRetry   = 10 * time.Second
	leaveTimeout = 5 * time.Minute
)

// checkControlPlane refuses etcd calls on a worker.
func (s *machineService) checkControlPlane(api string) error {
	cfg := s.boot.config()
	if cfg == nil {
		return status.Errorf(codes.Unimplemented, "machine type is not set, cannot use %s API", api)
	}
	if !cfg.Machine().Type().IsControlPlane() {
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", api)
	}
	return nil
}

// reach is a client of the control planes' etcd.
func (s *machineService) reach(ctx context.Context, api string) (*etcd.Cluster, error) {
	if err := s.checkControlPlane(api); err != nil {
		return nil, err
	}
	return s.boot.reachEtcd(ctx)
}

// local is a client of the machine's own etcd. If that does not run, calls hang until the
// caller gives up: the client is created without a connection (NewClient in
// internal/pkg/etcd/etcd.go), and then waits for one.
func (s *machineService) local(ctx context.Context, api string) (*etcd.Cluster, uint64, error) {
	if err := s.checkControlPlane(api); err != nil {
		return nil, 0, err
	}
	for {
		changed := s.boot.m.fw.hub.changes()
		if s.boot.m.etcdFault().Hung {
			<-ctx.Done()
			return nil, 0, ctx.Err()
		}
		if c, id, ok := s.boot.etcdService().server(); ok {
			return c, id, nil
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return nil, 0, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// EtcdMemberList implements the API.
func (s *machineService) EtcdMemberList(ctx context.Context, req *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	var c *etcd.Cluster
	var err error
	if req.GetQueryLocal() {
		var id uint64
		if c, id, err = s.local(ctx, "member list"); err == nil && c.Status(id).Learner {
			err = etcd.ErrNotForLearner
		}
	} else {
		c, err = s.reach(ctx, "member list")
	}
	if err != nil {
		return nil, err
	}
	members, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	answer := &machineapi.EtcdMembers{}
	for _, m := range members {
		em := &machineapi.EtcdMember{Id: m.ID, Hostname: m.Name, PeerUrls: []string{m.PeerURL}, IsLearner: m.Learner}
		if m.ClientURL != "" {
			em.ClientUrls = []string{m.ClientURL}
		}
		answer.LegacyMembers, answer.Members = append(answer.LegacyMembers, m.Name), append(answer.Members, em)
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{answer}}, nil
}

// EtcdStatus implements the API; the member answers even without a quorum.
func (s *machineService) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	c, id, err := s.local(ctx, "etcd status")
	if err != nil {
		return nil, err
	}
	now := c.Status(id)
	if data := s.boot.m.fw.o.Data; data != nil {
		now.Index += data.Revision() // each write is an entry of raft's log
	}
	answer := &machineapi.EtcdMemberStatus{
		MemberId: id, Leader: now.Leader, RaftTerm: now.Term, RaftIndex: now.Index, RaftAppliedIndex: now.Index, IsLearner: now.Learner,
		DbSize: 32 << 10, DbSizeInUse: 24 << 10, ProtocolVersion: cmp.Or(s.boot.m.etcdFault().Version, s.boot.etcdVersion()),
	}
	if v := strings.Split(answer.ProtocolVersion, "."); len(v) > 1 {
		answer.StorageVersion = v[0] + "." + v[1] + ".0"
	}
	if now.Leader == 0 {
		answer.Errors = append(answer.Errors, "etcdserver: no leader")
	}
	for _, a := range now.Alarms {
		answer.Errors = append(answer.Errors, fmt.Sprintf("memberID:%d alarm:%s ", a.Member, a.Kind))
	}
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: answer}}}, nil
}

// etcdVersion is the version of the configured image.
func (b *boot) etcdVersion() string {
	image, _, _ := strings.Cut(b.config().Cluster().Etcd().Image(), "@")
	return strings.TrimPrefix(image[strings.LastIndexByte(image, ':')+1:], "v")
}

// EtcdAlarmList implements the API.
func (s *machineService) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmListResponse, error) {
	all, err := s.alarms(ctx, "etcd alarm list", "list etcd alarms", func(*etcd.Cluster, etcd.Alarm) {})
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{{MemberAlarms: all}}}, nil
}

// EtcdSnapshot implements the API; the member answers even without a quorum.
func (s *machineService) EtcdSnapshot(_ *machineapi.EtcdSnapshotRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	c, _, err := s.local(srv.Context(), "etcd snapshot")
	if err != nil {
		return err
	}
	b, err := s.boot.m.fw.snapshot(srv.Context(), c)
	if err != nil {
		return fmt.Errorf("failed reading etcd snapshot: %w", err)
	}
	fault := s.boot.m.etcdFault().Snapshot
	switch fault {
	case SnapshotCut, SnapshotBroken:
		b = b[:len(b)/2]
	case SnapshotFlipped:
		b[len(b)/2] ^= 1
	}
	for chunk := range chunks(b) {
		if err := srv.Send(&common.Data{Bytes: chunk}); err != nil {
			return err
		}
	}
	if fault == SnapshotBroken {
		return status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	return nil
}

// EtcdForfeitLeadership implements the API: it moves leadership to the next other member
// in the list, running or not.
func (s *machineService) EtcdForfeitLeadership(ctx context.Context, _ *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	c, err := s.reach(ctx, "etcd forfeit leadership")
	if err != nil {
		return nil, err
	}
	id, err := s.boot.localMember()
	if err != nil {
		return nil, err
	}
	name, err := forfeit(ctx, c, id)
	if err != nil {
		return nil, fmt.Errorf("failed to forfeit leadership: %w", err)
	}
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{{Member: name}}}, nil
}

func forfeit(ctx context.Context, c *etcd.Cluster, id uint64) (string, error) {
	members, err := c.Members(ctx)
	if err != nil {
		return "", fmt.Errorf("failed to list etcd members: %w", err)
	}
	if len(members) == 1 {
		return "", errors.New("cannot forfeit leadership, only one member")
	}
	if _, ok := c.Lookup(id); !ok {
		return "", fmt.Errorf("failed to find %q in list of etcd members", hexID(id))
	}
	for _, m := range members {
		if m.ID == id {
			continue
		}
		err := c.MoveLeader(ctx, id, m.ID)
		if errors.Is(err, etcd.ErrNotLeader) {
			return "", nil
		}
		return m.Name, err
	}
	return "", nil
}

// localMember is the member that last ran on this machine in this boot.
func (b *boot) localMember() (uint64, error) {
	if e := b.etcdService(); e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.member != 0 {
			return e.member, nil
		}
	}
	return 0, errors.New("failed to get local etcd member ID: resource EtcdMembers.etcd.talos.dev(etcd/local@undefined) doesn't exist")
}

// EtcdRemoveMemberByID implements the API.
func (s *machineService) EtcdRemoveMemberByID(ctx context.Context, req *machineapi.EtcdRemoveMemberByIDRequest) (*machineapi.EtcdRemoveMemberByIDResponse, error) {
	c, err := s.reach(ctx, "etcd remove member")
	if err != nil {
		return nil, err
	}
	if err := removeMember(ctx, c, req.GetMemberId()); err != nil {
		if errors.Is(err, etcd.ErrMemberNotFound) {
			return nil, status.Error(codes.NotFound, err.Error())
		}
		return nil, fmt.Errorf("failed to remove member: %w", err)
	}
	return &machineapi.EtcdRemoveMemberByIDResponse{Messages: []*machineapi.EtcdRemoveMemberByID{{}}}, nil
}

func removeMember(ctx context.Context, c *etcd.Cluster, id uint64) error {
	if err := c.Remove(ctx, id); err != nil {
		return fmt.Errorf("failed to remove member %d: %w", id, err)
	}
	return nil
}

// EtcdLeaveCluster implements the API: it removes the member, stops the server and deletes
// its data. The next boot joins again.
func (s *machineService) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	c, err := s.reach(ctx, "etcd leave")
	if err != nil {
		return nil, err
	}
	if err := s.boot.leaveEtcd(ctx, c); err != nil {
		return nil, fmt.Errorf("failed to leave cluster: %w", err)
	}
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, nil
}

func (b *boot) leaveEtcd(ctx context.Context, c *etcd.Cluster) error {
	id, err := b.localMember()
	if err != nil {
		return err
	}
	retry, cancel := context.WithTimeout(ctx, b.m.fw.scaled(leaveTimeout))
	defer cancel()
	err = removeMember(retry, c, id)
	for errors.Is(err, etcd.ErrUnhealthy) && b.m.fw.sleep(retry, leaveRetry) {
		err = removeMember(retry, c, id)
	}
	if err != nil {
		return err
	}
	b.etcdService().stop(errOrderly)
	if err := ctx.Err(); err != nil { // the caller is gone
		return fmt.Errorf("failed to stop etcd: %w", err)
	}
	if err := b.m.writeEtcdData(nil); err != nil {
		return fmt.Errorf("failed to remove /var/lib/etcd: %w", err)
	}
	return b.refresh(ctx)
}
