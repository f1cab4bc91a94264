package etcd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Members lists the members. It needs a quorum: clientv3 asks for a linearizable list.
func (c *Cluster) Members(ctx context.Context) (list []Member, err error) {
	err = c.propose(ctx, func() error {
		list = slices.Clone(c.members)
		return nil
	})
	return list, err
}

// Add adds a learner that has not started yet. Every voting member must have been
// connected for a while (mayAddMember with StrictReconfigCheck).
func (c *Cluster) Add(ctx context.Context, peerURL string) (m Member, err error) {
	err = c.propose(ctx, func() error {
		all, _ := c.voters()
		if c.connected() < len(all) {
			return ErrUnhealthy
		}
		for _, o := range c.members {
			if o.PeerURL == peerURL {
				return ErrPeerURLExists
			}
		}
		if slices.ContainsFunc(c.members, func(o Member) bool { return o.Learner }) {
			return ErrTooManyLearners
		}
		m = Member{ID: newID(), PeerURL: peerURL, Learner: true}
		c.members = append(c.members, m)
		c.sort()
		c.index++
		c.update()
		return nil
	})
	return m, err
}

// Remove removes a member unless that would cost the quorum (mayRemoveMember).
func (c *Cluster) Remove(ctx context.Context, id uint64) error {
	return c.propose(ctx, func() error {
		i := c.find(id)
		if i < 0 {
			return ErrMemberNotFound
		}
		if err := c.mayRemove(c.members[i]); err != nil {
			return err
		}
		c.members = slices.Delete(c.members, i, i+1)
		maps.DeleteFunc(c.alarms, func(a Alarm, _ bool) bool { return a.Member == id })
		c.index++
		if c.leader == id {
			c.leader = 0
		}
		c.update()
		return nil
	})
}

func (c *Cluster) mayRemove(m Member) error {
	if m.Learner {
		return nil
	}
	all, _ := c.voters()
	others, started := 0, 0
	for _, o := range all {
		if o.ID == m.ID {
			continue
		}
		others++
		if o.Name != "" {
			started++
		}
	}
	if started < others/2+1 {
		return ErrNotEnoughStarted
	}
	if _, running := c.running[m.ID]; !running {
		return nil // not part of the active quorum
	}
	if c.connected()-1 < 1+(len(all)-1)/2 {
		return ErrUnhealthy
	}
	return nil
}

// connected counts the voting members that the leader has been connected to for a while, itself included.
func (c *Cluster) connected() int {
	_, running := c.voters()
	long := time.Now().Add(-c.scale(healthInterval))
	n := 0
	for _, m := range running {
		if m.ID == c.leader || !c.running[m.ID].After(long) && !c.running[c.leader].After(long) {
			n++
		}
	}
	return n
}

// Promote makes a learner that has caught up a voter.
func (c *Cluster) Promote(ctx context.Context, id uint64) error {
	return c.propose(ctx, func() error {
		i := c.find(id)
		if i < 0 {
			return ErrMemberNotFound
		}
		if !c.members[i].Learner {
			return ErrNotLearner
		}
		since, running := c.running[id]
		if !running || time.Since(since) < c.scale(catchUpTime) {
			return ErrLearnerNotReady
		}
		c.members[i].Learner = false
		c.index++
		c.update()
		return nil
	})
}

// MoveLeader hands leadership from one member to another. If the target does not run, the call ends with ctx.
func (c *Cluster) MoveLeader(ctx context.Context, from, to uint64) error {
	for {
		var changed <-chan struct{}
		err := c.propose(ctx, func() error {
			if c.leader != from {
				return ErrNotLeader
			}
			i := c.find(to)
			if i < 0 || c.members[i].Learner {
				return ErrBadTransferee
			}
			if _, ok := c.running[to]; ok {
				c.lead(to)
				return nil
			}
			changed = c.changed
			return nil
		})
		if err != nil || changed == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// watch records a loss of quorum; c.mu must be held.
func (c *Cluster) watch() {
	all, running := c.voters()
	if len(all) > 0 && len(running) == len(all) {
		c.complete = true
	}
	below := c.complete && len(running) <= len(all)/2
	if below && !c.broken {
		c.violations = append(c.violations, fmt.Sprintf("%s: etcd has lost its quorum: of the voting members %s only %s run",
			time.Now().UTC().Format(time.RFC3339), names(all), names(running)))
	}
	c.broken = below
}

// Violations lists each loss of quorum after all voting members had run.
func (c *Cluster) Violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

func names(members []Member) string {
	var out []string
	for _, m := range members {
		out = append(out, m.Name)
	}
	slices.Sort(out)
	return "[" + strings.Join(out, " ") + "]"
}
