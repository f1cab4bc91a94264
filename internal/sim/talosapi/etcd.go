package talosapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

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
	done   chan struct{} // closed when it has ended for this boot
	up     chan struct{} // closed when it was healthy once

	mu        sync.Mutex
	status    service
	cluster   *etcd.Cluster // set while the server runs
	member    uint64
	joined    bool          // by this start of the service: Talos promotes the learner only then
	bootstrap *bootstrap    // nil: it joins
	wake      chan struct{} // closed when bootstrap is set
}

// startEtcd starts the service if this is a control plane; it ends with ctx.
func (b *boot) startEtcd(ctx context.Context) {
	if !b.config().Machine().Type().IsControlPlane() || !b.m.addr().IsValid() {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e := &etcdService{
		b: b, cancel: cancel, done: make(chan struct{}), up: make(chan struct{}), wake: make(chan struct{}),
		status: service{id: "etcd", state: statePreparing, unknown: true, at: time.Now()},
	}
	b.mu.Lock()
	b.etcd = e
	b.mu.Unlock()
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

// etcdService is nil on a worker, and on a control plane until it starts.
func (b *boot) etcdService() *etcdService {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.etcd
}

// run prepares the member and runs its server repeatedly until ctx ends. The image is that of the
// configuration of this moment: Talos fetches it before the service's first start, and never again
// (PreFunc in services/etcd.go).
func (e *etcdService) run(ctx context.Context) {
	image := e.b.config().Cluster().Etcd().Image()
	defect := e.b.m.fw.defects.ofRef(image, e.b.m.has())
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

// prepare determines the member: from its data, from a new cluster if a bootstrap was
// requested, or one that it adds to the running cluster.
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
	e.mu.Lock()
	wake := e.wake
	e.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-wake:
	}
}

func (b *boot) hostname() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return hostnameOf(b.cfg, b.nodeID)
}

func (m *machine) etcdURL(port int) string { return fmt.Sprintf("https://%s:%d", m.addr(), port) }

// join adds this machine to the running cluster as a learner. It first removes a member of
// the same name, which it takes for its own stale one (addMember).
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
	e.mu.Lock()
	e.joined = true
	e.mu.Unlock()
	return c, dataOf(c, added), nil
}

func dataOf(c *etcd.Cluster, m etcd.Member) EtcdData {
	return EtcdData{Cluster: hexID(c.ID()), Member: hexID(m.ID), Name: m.Name, Learner: m.Learner}
}

func hexID(id uint64) string { return fmt.Sprintf("%016x", id) }

func parseID(s string) uint64 {
	id, _ := strconv.ParseUint(s, 16, 64) // an invalid ID is no member's
	return id
}

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

// server is the running server's cluster and member; false if there is none.
func (e *etcdService) server() (*etcd.Cluster, uint64, bool) {
	if e == nil {
		return nil, 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cluster, e.member, e.cluster != nil
}
