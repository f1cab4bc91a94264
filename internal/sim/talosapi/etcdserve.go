package talosapi

import (
	"context"
	"errors"
	"sync"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// Talos' messages about the end of etcd's process.
const (
	etcdExited = "Runner Containerd(etcd) exited without error, going to restart it"
	etcdFailed = `Error running Containerd(etcd), going to restart forever: task "etcd" failed: exit code 1`
)

// memberRemoved is the error of a server whose member was removed by others.
const memberRemoved = "the member has been permanently removed from the cluster"

// serve runs the member's server until ctx ends, the member is removed from the cluster or
// the server is broken; it returns Talos' message.
func (e *etcdService) serve(ctx context.Context, c *etcd.Cluster, d EtcdData) string {
	b, id := e.b, parseID(d.Member)
	if c == nil || b.m.etcdFault().Down {
		return etcdFailed
	}
	stop := c.Start(id, d.Name, b.m.etcdURL(clientPort))
	e.mu.Lock()
	e.cluster, e.member = c, id
	e.mu.Unlock()
	serving, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { e.check(serving, c, id) })
	tasks.Go(func() { e.promote(serving, c, id) })
	how := e.follow(ctx, c, id, d)
	cancel()
	e.mu.Lock()
	e.cluster = nil
	e.mu.Unlock()
	stop(errors.Is(context.Cause(ctx), errOrderly))
	tasks.Wait()
	b.m.fw.hub.wake()
	return how
}

// follow stores the cluster's state of the member on disk until its server has to end.
func (e *etcdService) follow(ctx context.Context, c *etcd.Cluster, id uint64, d EtcdData) string {
	m := e.b.m
	e.show(ctx, service{state: stateRunning, message: "Started task etcd for container etcd", unknown: true})
	m.etcdSays("info", "embed/serve.go:139", "ready to serve client requests", "")
	if err := e.b.publishEtcdMember(ctx, id); err != nil && ctx.Err() == nil {
		m.console("service[etcd]: %v", err)
	}
	m.fw.hub.wake()
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

// promote promotes the learner that this machine has added as soon as the cluster allows
// it, unless it times out. A learner from an earlier boot stays one (learnerMemberID and
// promoteMember in services/etcd.go).
func (e *etcdService) promote(ctx context.Context, c *etcd.Cluster, id uint64) {
	ctx, cancel := context.WithTimeout(ctx, e.b.m.fw.scaled(promoteTimeout))
	defer cancel()
	e.mu.Lock()
	joined := e.joined
	e.mu.Unlock()
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

// check is the service's periodic health check: one read that needs a quorum.
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
			once.Do(func() { began(); e.becomeUp() })
		}
	}
}

func (e *etcdService) becomeUp() {
	select {
	case <-e.up: // by an earlier run of the server
	default:
		close(e.up)
	}
}

// read is ValidateQuorum: the client retries failures until its timeout.
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

// awaitEtcd waits until etcd was healthy once, as the boot sequence does, unless an order to end comes before.
func (b *boot) awaitEtcd(ctx context.Context) outcome {
	e := b.etcdService()
	if e == nil {
		return carryOn
	}
	return until(ctx, b, e.up)
}
