package talosapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/etcd"
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
	joined    bool          // by this start of the service: Talos promotes the learner only then
	bootstrap *bootstrap    // nil: the service joins a cluster
	wake      chan struct{} // closed when bootstrap is set

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
		e.mu.Lock()
		e.status = service{id: "etcd", state: stateFinished, message: "Service finished successfully", unknown: true, at: time.Now()}
		e.mu.Unlock()
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
		order := e.ordered()
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
		if order != nil && order.recover {
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
	t := time.NewTimer(e.b.m.fw.scaled(etcdJoinRetry))
	defer t.Stop()
	wake := guarded(&e.mu, &e.wake)
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-wake:
	}
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

// show updates the visible state of the service.
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
	if !changed {
		return
	}
	if err := e.b.refresh(ctx); err != nil && ctx.Err() == nil {
		e.b.m.console("service[etcd]: %v", err)
	}
}

// server returns the running server's cluster and member; false if there is none.
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

// memberRemoved is the error of a server whose member was removed by others.
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

// joinEtcd returns the inverse of splitEtcd.
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

// etcdData reads the machine's data directory; nil if it is empty.
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
