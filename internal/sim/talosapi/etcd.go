package talosapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/manifests"
)

// Talos' durations around etcd, at speed 1 (services/etcd.go and runner/restart).
const (
	etcdRestart     = 5 * time.Second
	etcdJoinRetry   = 3 * time.Second
	etcdJoinTimeout = 30 * time.Second // of one attempt
	promoteRetry    = 2 * time.Second
	promoteTimeout  = 10 * time.Minute
	healthDelay     = 5 * time.Second
	healthPeriod    = 20 * time.Second
	healthTimeout   = 15 * time.Second
)

// errOrderly ends a server that is shut down, not cut off.
var errOrderly = errors.New("stopped in order")

// etcdService is machined's etcd service in one boot of a control plane.
type etcdService struct {
	b      *boot
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the service has ended for this boot
	up     chan struct{} // closed by becomeUp, when the service was healthy once

	mu        sync.Mutex
	status    service
	cluster   *etcd.Cluster // set while the server runs
	member    uint64
	joined    bool                         // by this start of the service: Talos promotes the learner only then
	bootstrap *machineapi.BootstrapRequest // nil: the service joins a cluster
	wake      chan struct{}                // closed when bootstrap is set

	becomeUp func()
}

// startEtcd starts the service if the machine is a control plane; the service ends with ctx.
func (b *boot) startEtcd(ctx context.Context) {
	if !b.config().Machine().Type().IsControlPlane() || !b.m.addr().IsValid() {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e := &etcdService{
		b: b, cancel: cancel, done: make(chan struct{}), up: make(chan struct{}), wake: make(chan struct{}),
		status: service{id: "etcd", state: statePreparing, unknown: true, at: time.Now()},
	}
	e.becomeUp = sync.OnceFunc(func() { close(e.up) })
	holding(&b.mu, func() { b.etcd = e })
	b.tasks.Go(func() {
		defer close(e.done)
		defer cancel(nil)
		e.run(ctx)
	})
}

// stop ends the service for this boot; cause is errOrderly, or nil for a power loss.
func (e *etcdService) stop(cause error) {
	if e == nil {
		return
	}
	e.cancel(cause)
	<-e.done
}

// etcdService returns the machine's etcd service; nil on a worker, and on a control plane until the service starts.
func (b *boot) etcdService() *etcdService { return guarded(&b.mu, &b.etcd) }

// run prepares the member and runs its server repeatedly until ctx ends. The image is the image in the configuration at
// this moment: Talos fetches the image before the service's first start, and never again (PreFunc in services/etcd.go).
func (e *etcdService) run(ctx context.Context) {
	image := e.b.config().Cluster().Etcd().Image()
	defect := e.b.m.defectOf(image)
	if defect == Unpullable {
		e.show(ctx, service{state: stateFailed, message: fmt.Sprintf("Failed to run pre stage: failed to pull image %q: not found", image), unknown: true})
		<-ctx.Done()
		return
	}
	cluster, data, err := e.prepare(ctx)
	for err == nil {
		how := etcdFailed
		if defect != Loops {
			how = e.serve(ctx, cluster, data)
		}
		if ctx.Err() != nil {
			break
		}
		e.show(ctx, service{state: stateWaiting, message: how, unknown: true})
		e.b.m.spend(ctx, "etcd", etcdRestart)
		if ctx.Err() != nil {
			break
		}
	}
	if errors.Is(context.Cause(ctx), errOrderly) {
		finished := service{id: "etcd", state: stateFinished, message: "Service finished successfully", unknown: true, at: time.Now()}
		holding(&e.mu, func() { e.status = finished })
	}
}

// prepare determines the member: from its data, from a new cluster if a bootstrap was requested, or as a new member
// that prepare adds to the running cluster.
func (e *etcdService) prepare(ctx context.Context) (*etcd.Cluster, EtcdData, error) {
	e.show(ctx, service{state: statePreparing, message: "Running pre state", unknown: true})
	b, last := e.b, ""
	for {
		if d := b.m.etcdData(); d != nil {
			return b.m.fw.hub.etcdOf(clusterID(b.config()), d.Cluster), *d, nil
		}
		order := guarded(&e.mu, &e.bootstrap)
		cluster, data, err := e.form(ctx, order)
		if err == nil {
			err = b.m.writeEtcdData(&data)
		}
		if ctx.Err() != nil {
			return nil, data, ctx.Err()
		}
		if err == nil {
			return cluster, data, nil
		}
		if order.GetRecoverEtcd() {
			e.fail(ctx, order, err)
			e.show(ctx, service{state: statePreparing, message: "Running pre state", unknown: true})
			continue
		}
		if text := err.Error(); text != last {
			b.m.console("service[etcd](Preparing): failed to build initial etcd cluster: %s", text)
			last = text
		}
		e.pause(ctx)
	}
}

// pause waits for the next attempt to join; a bootstrap request ends it early.
func (e *etcdService) pause(ctx context.Context) {
	defer e.b.m.account("etcd")()
	awaitChange(ctx, guarded(&e.mu, &e.wake), time.Now().Add(e.b.m.fw.scaled(etcdJoinRetry)))
}

func (b *boot) hostname() string {
	return look(&b.mu, func() string { return hostnameOf(b.cfg, b.nodeID) })
}

func (m *machine) etcdURL(port int) string { return fmt.Sprintf("https://%s:%d", m.addr(), port) }

// join adds this machine to the running cluster as a learner. First it removes a member of the same name, which Talos
// takes for the machine's own stale member (addMember).
func (e *etcdService) join(ctx context.Context) (*etcd.Cluster, EtcdData, error) {
	b := e.b
	ctx, cancel := context.WithTimeout(ctx, b.m.fw.scaled(etcdJoinTimeout))
	defer cancel()
	c, err := b.reachEtcd(ctx)
	if err != nil {
		return nil, EtcdData{}, fmt.Errorf("error getting etcd member list: %w", err)
	}
	name, url := b.hostname(), b.m.etcdURL(peerPort)
	list, err := c.Members(ctx)
	if err != nil {
		return nil, EtcdData{}, fmt.Errorf("error getting etcd member list: %w", err)
	}
	for _, m := range list {
		if m.Name == name {
			if err := c.Remove(ctx, m.ID); err != nil {
				return nil, EtcdData{}, fmt.Errorf("error removing self from the member list: %w", err)
			}
		}
	}
	added, err := c.Add(ctx, url)
	if errors.Is(err, etcd.ErrPeerURLExists) {
		i := slices.IndexFunc(list, func(m etcd.Member) bool { return m.PeerURL == url && m.Learner && m.Name == "" })
		if i < 0 {
			return nil, EtcdData{}, fmt.Errorf("member already exists with the same peer URLs [%q], but is not a learner: %w", url, err)
		}
		added, err = list[i], nil // added by an earlier, failed attempt
	}
	if err != nil {
		return nil, EtcdData{}, fmt.Errorf("error adding member: %w", err)
	}
	added.Name = name
	holding(&e.mu, func() { e.joined = true })
	return c, dataOf(c, added), nil
}

func dataOf(c *etcd.Cluster, m etcd.Member) EtcdData {
	return EtcdData{Cluster: hexID(c.ID()), Member: hexID(m.ID), Name: m.Name, Learner: m.Learner}
}

func hexID(id uint64) string { return fmt.Sprintf("%016x", id) }

func (e *etcdService) show(ctx context.Context, s service) {
	s.id = "etcd"
	e.mu.Lock()
	s.at = e.status.at
	changed := e.status != s
	if changed {
		s.at = time.Now()
	}
	e.status = s
	e.mu.Unlock()
	if changed {
		e.b.refresh(ctx)
	}
}

func (e *etcdService) server() (*etcd.Cluster, uint64, bool) {
	if e == nil {
		return nil, 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cluster, e.member, e.cluster != nil
}

// Talos' messages about the end of etcd's process.
const (
	etcdExited = "Runner Containerd(etcd) exited without error, going to restart it"
	etcdFailed = `Error running Containerd(etcd), going to restart forever: task "etcd" failed: exit code 1`
)

const memberRemoved = "the member has been permanently removed from the cluster"

// serve runs the member's server until ctx ends, the member is removed from the cluster or the server is broken. It
// returns Talos' message.
func (e *etcdService) serve(ctx context.Context, c *etcd.Cluster, d EtcdData) string {
	b := e.b
	id, _ := strconv.ParseUint(d.Member, 16, 64) // an invalid ID is no member's
	if c == nil || b.m.etcdFault().Down {
		return etcdFailed
	}
	stop := c.Start(id, d.Name, b.m.etcdURL(clientPort))
	holding(&e.mu, func() { e.cluster, e.member = c, id })
	serving, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { e.check(serving, c, id) })
	tasks.Go(func() { e.promote(serving, c, id) })
	how := e.follow(ctx, c, id, d)
	cancel()
	holding(&e.mu, func() { e.cluster = nil })
	stop(errors.Is(context.Cause(ctx), errOrderly))
	tasks.Wait()
	b.m.fw.hub.change(func() {})
	return how
}

// follow stores the cluster's state of the member on disk until its server has to end.
func (e *etcdService) follow(ctx context.Context, c *etcd.Cluster, id uint64, d EtcdData) string {
	m := e.b.m
	e.show(ctx, service{state: stateRunning, message: "Started task etcd for container etcd", unknown: true})
	m.etcdSays("info", "embed/serve.go:139", "ready to serve client requests", "")
	own := etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID)
	own.TypedSpec().MemberID = etcdres.FormatMemberID(id)
	if err := e.b.store.set(ctx, own); err != nil && ctx.Err() == nil {
		m.console("service[etcd]: %v", err)
	}
	m.fw.hub.change(func() {})
	alarmed := EtcdFault{}
	for {
		changed, faults := c.Changed(), m.fw.hub.changes()
		if c.Removed(id) {
			m.console("etcd: %s", memberRemoved)
			m.etcdSays("warn", "etcdserver/server.go:849", "server error", memberRemoved)
			m.etcdSays("warn", "etcdserver/server.go:850", "data-dir used by this member must be removed", "")
			return etcdExited
		}
		fault := m.etcdFault()
		if fault.Down {
			return etcdFailed
		}
		if fault.NoSpace != alarmed.NoSpace {
			c.Alarm(etcd.Alarm{Member: id, Kind: etcd.NoSpace}, fault.NoSpace)
		}
		if fault.Corrupt != alarmed.Corrupt {
			c.Alarm(etcd.Alarm{Member: id, Kind: etcd.Corrupt}, fault.Corrupt)
		}
		alarmed = fault
		if now, ok := c.Lookup(id); ok && dataOf(c, now) != d {
			d = dataOf(c, now)
			if err := m.writeEtcdData(&d); err != nil {
				m.console("etcd: %v", err)
			}
		}
		select {
		case <-ctx.Done():
			return ""
		case <-changed:
		case <-faults:
		}
	}
}

// promote promotes the learner that this machine has added as soon as the cluster allows the promotion, unless it
// times out. A learner from an earlier boot stays a learner (learnerMemberID and promoteMember in services/etcd.go).
func (e *etcdService) promote(ctx context.Context, c *etcd.Cluster, id uint64) {
	ctx, cancel := context.WithTimeout(ctx, e.b.m.fw.scaled(promoteTimeout))
	defer cancel()
	joined := guarded(&e.mu, &e.joined)
	for joined {
		if !e.b.m.etcdFault().Learner {
			if err := c.Promote(ctx, id); err == nil || errors.Is(err, etcd.ErrNotLearner) {
				return
			}
		}
		if !e.b.m.spend(ctx, "etcd", promoteRetry) {
			return
		}
	}
}

// check makes the service's periodic health checks. Each check is one read that needs a quorum.
func (e *etcdService) check(ctx context.Context, c *etcd.Cluster, id uint64) {
	var once sync.Once
	began := e.b.m.account("etcd")
	for pause := healthDelay; e.b.m.fw.sleep(ctx, pause); pause = healthPeriod {
		err := e.read(ctx, c, id)
		if ctx.Err() != nil {
			return
		}
		s := service{state: stateRunning, message: "Health check successful", healthy: err == nil}
		if err != nil {
			s.message, s.problem = "Health check failed: "+err.Error(), err.Error()
		}
		e.show(ctx, s)
		if err == nil {
			once.Do(began)
			e.becomeUp()
		}
	}
}

// read does the work of ValidateQuorum: the client retries failures until its timeout.
func (e *etcdService) read(ctx context.Context, c *etcd.Cluster, id uint64) error {
	if c.Status(id).Learner {
		return etcd.ErrNotForLearner
	}
	ctx, cancel := context.WithTimeout(ctx, e.b.m.fw.scaled(healthTimeout))
	defer cancel()
	err := etcd.ErrTimeout
	for errors.Is(err, etcd.ErrTimeout) {
		err = c.Linearizable(ctx)
	}
	return err
}

// labelEtcd is the label of the volume for etcd's data, if configured (Talos 1.14); else the data is in a directory
// on EPHEMERAL.
const labelEtcd = constants.EtcdDataVolumeID

var errNoEtcdVolume = errors.New("there is no volume for etcd's data yet")

// EtcdData is the content of a member's data directory.
type EtcdData struct {
	Cluster, Member string // IDs, hexadecimal
	Name            string
	Learner         bool
}

// etcdMark separates users' data and etcd's directory in a partition.
var etcdMark = []byte("\x00" + constants.EtcdDataPath + ":")

// splitEtcd splits a partition's data; d is nil if etcd's directory is empty.
func splitEtcd(data []byte) (users []byte, d *EtcdData) {
	i := bytes.LastIndex(data, etcdMark)
	if i < 0 || json.Unmarshal(data[i+len(etcdMark):], &d) != nil {
		return data, nil
	}
	return data[:i], d
}

func joinEtcd(users []byte, d *EtcdData) []byte {
	if d == nil {
		return users
	}
	return slices.Concat(users, etcdMark, encoded(d))
}

// etcdVolume returns the partition for etcd's data directory. The configuration with which the machine booted decides
// which volume that is, whatever partition has the label.
func (m *machine) etcdVolume() (placed, bool) {
	if apart := m.etcdApart.Load(); apart != nil && *apart {
		return locate(m.devices(), labelEtcd)
	}
	return locate(m.devices(), labelEphemeral)
}

func (m *machine) etcdData() *EtcdData {
	p, ok := m.etcdVolume()
	if !ok {
		return nil
	}
	_, d := splitEtcd(p.part.Data)
	return d
}

// writeEtcdData replaces the machine's data directory; nil empties it.
func (m *machine) writeEtcdData(d *EtcdData) error {
	p, ok := m.etcdVolume()
	if !ok {
		return errNoEtcdVolume
	}
	return m.rewrite(p.dev.Key, func(disk artefact.Disk) artefact.Disk { return withEtcd(disk, p.part.Label, d) })
}

func withEtcd(disk artefact.Disk, label string, d *EtcdData) artefact.Disk {
	return edited(disk, label, func(data []byte) []byte {
		users, _ := splitEtcd(data)
		return joinEtcd(users, d)
	})
}

// WithEtcd adds a member's data to the partition that etcd has its directory on, in a disk's content: ETCD, else
// EPHEMERAL.
func WithEtcd(disk []byte, d EtcdData) ([]byte, error) {
	parsed, err := artefact.ReadDisk(disk)
	if err != nil {
		return nil, err
	}
	for _, label := range []string{labelEtcd, labelEphemeral} {
		if _, ok := partition(parsed, label); ok {
			return artefact.WriteDisk(withEtcd(parsed, label, &d)), nil
		}
	}
	return nil, fmt.Errorf("put etcd's data on the disk: it has no partition %s", labelEphemeral)
}

// Lasting returns the part of a disk's content that does not change while its data survives: partitions, filesystems,
// users' data, and the identity of etcd's data, without etcd's own writes.
func Lasting(content []byte) string {
	return eachPartition(content, "\n", func(p artefact.Partition) string {
		users, d := splitEtcd(p.Data)
		text := fmt.Sprintf("%s %s %s %s", p.Label, p.UUID, p.FilesystemUUID, digest(users))
		if d != nil {
			text += fmt.Sprintf(" etcd member %s of %s", d.Member, d.Cluster)
		}
		return text
	})
}

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
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{{MemberAlarms: all}}}, err
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
	b.refresh(ctx)
	return ctx.Err()
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
	holding(&e.mu, func() { // it forms a new cluster as soon as it can
		e.bootstrap = req
		close(e.wake)
		e.wake = make(chan struct{})
	})
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

func (e *etcdService) form(ctx context.Context, how *machineapi.BootstrapRequest) (*etcd.Cluster, EtcdData, error) {
	switch begins := e.b.begins(); {
	case begins, how != nil && !how.GetRecoverEtcd():
		return e.found(ctx, nil)
	case how == nil:
		return e.join(ctx)
	}
	data, err := e.uploaded(how.GetRecoverSkipHashCheck())
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
func (e *etcdService) fail(ctx context.Context, how *machineapi.BootstrapRequest, err error) {
	e.show(ctx, service{state: stateFailed, message: "Failed to run pre stage: " + err.Error(), unknown: true})
	e.mu.Lock()
	wake := e.wake
	again := e.bootstrap != how
	e.mu.Unlock()
	if again {
		return
	}
	awaitChange(ctx, wake, time.Time{})
}

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
	return &machineapi.EtcdAlarmDisarmResponse{Messages: []*machineapi.EtcdAlarmDisarm{{MemberAlarms: all}}}, err
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
