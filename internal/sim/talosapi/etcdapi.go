package talosapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/manifests"
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

// reach returns a client of the control planes' etcd.
func (s *machineService) reach(ctx context.Context, api string) (*etcd.Cluster, error) {
	if err := s.checkControlPlane(api); err != nil {
		return nil, err
	}
	return s.boot.reachEtcd(ctx)
}

// local returns a client of the machine's own etcd. If etcd does not run, calls hang until the caller gives up: Talos
// creates the client without a connection (NewClient in internal/pkg/etcd/etcd.go), and the client then waits for a
// connection.
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
	version := strings.TrimPrefix(tagOf(s.boot.config().Cluster().Etcd().Image()), "v")
	answer := &machineapi.EtcdMemberStatus{
		MemberId: id, Leader: now.Leader, RaftTerm: now.Term, RaftIndex: now.Index, RaftAppliedIndex: now.Index, IsLearner: now.Learner,
		DbSize: 32 << 10, DbSizeInUse: 24 << 10, ProtocolVersion: cmp.Or(s.boot.m.etcdFault().Version, version),
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
	if err := sendFile(srv, b, snapshotChunk); err != nil {
		return err
	}
	if fault == SnapshotBroken {
		return status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	return nil
}

// EtcdForfeitLeadership implements the API: it moves leadership to the next other member in the list, running or not.
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

// localMember returns the member that last ran on this machine in this boot.
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

// EtcdLeaveCluster implements the API: it removes the member, stops the server and deletes the server's data. The
// next boot joins again.
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

// bootstrap holds the parameters of a bootstrap.
type bootstrap struct {
	recover, skipHash bool
}

// Bootstrap implements the API. It returns as soon as the service has the request.
func (s *machineService) Bootstrap(ctx context.Context, req *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	cfg := s.boot.config()
	install, err := s.boot.store.st.Get(ctx, runtime.NewUnattendedInstallStatus().Metadata())
	if err != nil && !state.IsNotFoundError(err) {
		return nil, err
	}
	unattended, _ := install.(*runtime.UnattendedInstallStatus)
	if cfg == nil || unattended != nil && unattended.TypedSpec().Phase != runtime.UnattendedInstallPhaseInstalled {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	switch {
	case s.boot.release().lifecycle:
		if err := s.checkControlPlane("bootstrap"); err != nil {
			return nil, err
		}
	case !cfg.Machine().Type().IsControlPlane():
		return nil, status.Error(codes.FailedPrecondition, "bootstrap can only be performed on a control plane node")
	}
	e := s.boot.etcdService()
	if e == nil {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	if s.boot.m.etcdData() != nil {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	e.request(bootstrap{recover: req.GetRecoverEtcd(), skipHash: req.GetRecoverSkipHashCheck()})
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, nil
}

// EtcdRecover implements the API: it uploads a snapshot to EPHEMERAL, from which the next bootstrap may recover.
func (s *machineService) EtcdRecover(srv grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error {
	m := s.boot.m
	if _, mounted := locate(m.devices(), labelEphemeral); !mounted {
		return status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	}
	if err := s.checkControlPlane("etcd recover"); err != nil {
		return err
	}
	var b bytes.Buffer
	for {
		piece, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		b.Write(piece.GetBytes())
	}
	m.fw.hub.change(func() { m.fw.hub.recovery[m.hw.VMID] = b.Bytes() })
	return srv.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
}

// request makes the service form a new cluster as soon as it can.
func (e *etcdService) request(how bootstrap) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bootstrap = &how
	close(e.wake)
	e.wake = make(chan struct{})
}

func (e *etcdService) ordered() *bootstrap { return guarded(&e.mu, &e.bootstrap) }

// form finds or makes the cluster that this machine will be a member of.
func (e *etcdService) form(ctx context.Context, how *bootstrap) (*etcd.Cluster, EtcdData, error) {
	switch {
	case e.b.begins():
		return e.found(ctx, nil)
	case how == nil:
		return e.join(ctx)
	case how.recover:
		data, err := e.uploaded(how.skipHash)
		if err != nil {
			return nil, EtcdData{}, err
		}
		c, d, err := e.found(ctx, data)
		if err == nil {
			h := e.b.m.fw.hub
			h.change(func() { delete(h.recovery, e.b.m.hw.VMID) })
		}
		return c, d, err
	}
	return e.found(ctx, nil)
}

// begins reports whether etcd begins alone when its directory is empty: on a control plane of type init, unless the
// system was just upgraded. Neither a bootstrap request nor an uploaded snapshot changes that (argsForInit in
// services/etcd.go).
func (b *boot) begins() bool {
	d, installed := systemDisk(b.m.devices())
	return b.config().Machine().Type() == machineconf.TypeInit && !(installed && readMeta(d).Upgrade != "")
}

// found makes a new etcd with this member alone and with data; nil stands for the data of a new cluster. The lab has
// one Kubernetes: it stays with the etcd that runs, if an etcd runs.
func (e *etcdService) found(ctx context.Context, data []etcd.KeyValue) (*etcd.Cluster, EtcdData, error) {
	fw, id := e.b.m.fw, clusterID(e.b.config())
	if fw.o.Data != nil && fw.hub.takeKubernetes(id) {
		if err := e.fill(ctx, data); err != nil {
			return nil, EtcdData{}, err
		}
	}
	fw.hub.noteBootstrap(id, e.b.hostname(), data == nil)
	c := fw.newEtcd(id, EtcdPeer{Name: e.b.hostname(), Addr: e.b.m.addr()})
	return c, dataOf(c, c.List()[0]), nil
}

// fill makes data, or the objects of a new cluster, the content of the lab's Kubernetes.
func (e *etcdService) fill(ctx context.Context, data []etcd.KeyValue) error {
	if data != nil {
		return e.b.m.fw.o.Data.Load(ctx, data)
	}
	planted, err := manifests.Render(manifestsOf(e.b.config()))
	if err != nil {
		return err
	}
	return e.b.m.fw.o.Data.Renew(ctx, manifests.Objects(planted, !e.b.release().bareMaintenance))
}

// takeKubernetes gives the lab's Kubernetes to a cluster, unless an etcd of the cluster that has Kubernetes runs.
func (h *hub) takeKubernetes(clusterID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.etcds[h.kubernetesOf], (*etcd.Cluster).Runs) {
		return false
	}
	h.served = h.served && h.kubernetesOf == clusterID
	h.kubernetesOf = clusterID
	return true
}

// noteBootstrap records a second etcd of a Talos cluster: the members of one etcd don't know the members of the
// other. To restore a snapshot after the loss of the first etcd is no violation.
func (h *hub) noteBootstrap(clusterID, node string, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	earlier := h.etcds[clusterID]
	if len(earlier) > 0 && fresh || slices.ContainsFunc(earlier, (*etcd.Cluster).Runs) {
		h.bootstrapped = append(h.bootstrapped, fmt.Sprintf("Talos cluster %s: %s formed etcd number %d of that cluster", clusterID, node, len(earlier)+1))
	}
}

// uploaded reads the latest uploaded snapshot.
func (e *etcdService) uploaded(skipHash bool) ([]etcd.KeyValue, error) {
	h := e.b.m.fw.hub
	h.mu.Lock()
	b, there := h.recovery[e.b.m.hw.VMID]
	h.mu.Unlock()
	if !there {
		return nil, errors.New("error verifying snapshot: stat " + constants.EtcdRecoverySnapshotPath + ": no such file or directory")
	}
	return etcd.ReadSnapshot(b, skipHash)
}

// fail ends the service until the next bootstrap request, as Talos does after a failure before the server's start.
func (e *etcdService) fail(ctx context.Context, how *bootstrap, err error) {
	e.show(ctx, service{state: stateFailed, message: "Failed to run pre stage: " + err.Error(), unknown: true})
	e.mu.Lock()
	wake := e.wake
	again := e.bootstrap != how
	e.mu.Unlock()
	if again {
		return
	}
	select {
	case <-ctx.Done():
	case <-wake:
	}
}

// snapshot returns the cluster's database with its clients' data.
func (fw *Firmware) snapshot(ctx context.Context, c *etcd.Cluster) ([]byte, error) {
	var data []etcd.KeyValue
	if fw.o.Data != nil {
		var err error
		if data, err = fw.o.Data.Dump(ctx); err != nil {
			return nil, err
		}
	}
	return c.Snapshot(data)
}

// EtcdAlarmDisarm implements the API: it disarms all alarms of all members.
func (s *machineService) EtcdAlarmDisarm(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdAlarmDisarmResponse, error) {
	all, err := s.alarms(ctx, "etcd alarm disarm", "disarm etcd alarm", func(c *etcd.Cluster, a etcd.Alarm) { c.Alarm(a, false) })
	if err != nil {
		return nil, err
	}
	return &machineapi.EtcdAlarmDisarmResponse{Messages: []*machineapi.EtcdAlarmDisarm{{MemberAlarms: all}}}, nil
}

// alarms returns the alarms of all members, as one member lists them; it calls each with every alarm.
func (s *machineService) alarms(ctx context.Context, api, verb string, each func(*etcd.Cluster, etcd.Alarm)) ([]*machineapi.EtcdMemberAlarm, error) {
	c, id, err := s.local(ctx, api)
	if err != nil {
		return nil, err
	}
	err = etcd.ErrNotForLearner
	if !c.Status(id).Learner {
		err = c.Linearizable(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to %s: %w", verb, err)
	}
	var all []*machineapi.EtcdMemberAlarm
	for _, a := range c.Status(id).Alarms {
		each(c, a)
		all = append(all, &machineapi.EtcdMemberAlarm{MemberId: a.Member, Alarm: machineapi.EtcdMemberAlarm_AlarmType(a.Kind)})
	}
	return all, nil
}

// EtcdDefragment implements the API. The lab's databases are never fragmented.
func (s *machineService) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdDefragmentResponse, error) {
	if _, _, err := s.local(ctx, "etcd defragment"); err != nil {
		return nil, err
	}
	return &machineapi.EtcdDefragmentResponse{Messages: []*machineapi.EtcdDefragment{{}}}, nil
}
