package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Claim is the cluster-wide mark that a run holds, so that there is one run per
// cluster: a never-started VM with a fixed VMID, whose creation is atomic in the
// whole Proxmox cluster and whose description is changed by compare-and-swap.
type Claim struct {
	Proxmox interface {
		Inventory
		Editor
	}
	Cluster string
	VMID    VMID
	Host    string // the Proxmox node to make it on
	Holder  Holder
	Run     string

	// Dead says whether a holder is a process of this machine that has ended; nil: never known.
	Dead func(Holder) bool
	// Say is told what is waited for, and what goes wrong while the claim is
	// held, from another goroutine then; may be nil.
	Say func(string)

	Heartbeat time.Duration // 0: ClaimHeartbeat
	Watch     time.Duration // how long a claim must stand still to be taken over; 0: ClaimWatch
}

const (
	// ClaimHeartbeat is how often a living run shows that it still holds the claim.
	ClaimHeartbeat = 15 * time.Second
	// ClaimWatch is how long a claim must stand still before another run takes it over.
	ClaimWatch = 90 * time.Second
)

func (c *Claim) heartbeat() time.Duration { return cmp.Or(c.Heartbeat, ClaimHeartbeat) }
func (c *Claim) watch() time.Duration     { return cmp.Or(c.Watch, ClaimWatch) }

func (c *Claim) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}

// Acquire takes the claim, or fails with fault.Claimed and says who holds it.
// One that stands still is taken over after Watch, a dead one's at once. The
// claim is kept alive until Release, or until ctx ends.
func (c *Claim) Acquire(ctx context.Context) (*Held, error) {
	a := acquisition{Claim: c}
	err := wait.Until(ctx, wait.For{
		Name: "take the claim of cluster " + c.Cluster, Every: c.heartbeat() / 3, Timeout: 4 * c.watch(),
		Seen: func(seen string) { c.say("claim of cluster %s: %s", c.Cluster, seen) },
	}, a.look)
	if err != nil {
		return nil, err
	}
	return hold(ctx, *c, a.sent), nil
}

// acquisition is one attempt to take a claim.
type acquisition struct {
	*Claim
	sent time.Time // when the change that made it ours was sent

	watching bool // somebody else's claim
	seen     ClaimState
	since    time.Time // when it was first seen like this

	formingSince time.Time // when it was first seen to be no more than that; zero: it is more
}

func (a *acquisition) look(ctx context.Context) (done bool, seen string, err error) {
	asked := time.Now()
	vm, err := a.Proxmox.VM(ctx, a.VMID)
	switch {
	case errors.Is(err, ErrNotFound):
		return a.create(ctx)
	case err != nil && a.watching:
		return false, "", err // a counter that is the same afterwards has stood still all the same
	case err != nil:
		return false, "", wait.Stop(fmt.Errorf("look up VM %d: %w", a.VMID, err))
	case forming(vm):
		if a.formingSince.IsZero() {
			a.formingSince = asked
		}
		if asked.Sub(a.formingSince) >= a.watch() {
			return false, "", wait.Stop(halfMade(vm))
		}
		return false, fmt.Sprintf("%s is being created by somebody", vm), nil
	}
	a.formingSince = time.Time{}
	found, err := claimOf(vm, a.Cluster)
	switch {
	case err != nil:
		return false, "", wait.Stop(err)
	case found.heldBy(a.Run, a.Holder):
		return a.take(ctx, found)
	case a.Dead != nil && a.Dead(found.Holder):
		a.say("claim of cluster %s: %s has ended without giving it back; taking it over", a.Cluster, found)
		return a.take(ctx, found)
	case !a.watching || !found.heldBy(a.seen.Run, a.seen.Holder):
		a.watching, a.seen, a.since = true, found, time.Now()
	case found.Beat != a.seen.Beat:
		return false, "", wait.Stop(a.claimedBy(found))
	case asked.Sub(a.since) >= a.watch():
		a.say("claim of cluster %s: it has stood still for %s; taking it over from %s", a.Cluster, a.watch(), found)
		return a.take(ctx, found)
	}
	return false, fmt.Sprintf("held by %s; watching for up to %s whether that run is alive", found, a.watch()), nil
}

func (a *acquisition) claimedBy(s ClaimState) error {
	err := fault.As(fault.Claimed, fmt.Errorf("held by %s, which is alive (%s)", s, s.VM))
	return fault.WithHint(err, "wait until that run has ended; recast status shows how far it is")
}

func (a *acquisition) create(ctx context.Context) (done bool, seen string, err error) {
	a.watching = false
	description, err := a.mine(0).description()
	if err != nil {
		return false, "", wait.Stop(err)
	}
	sent := time.Now()
	err = a.Proxmox.CreateVM(ctx, a.Host, a.VMID, map[string]string{
		"name": claimName, "memory": "16", "onboot": "0", "protection": "0", "description": description,
	})
	return a.took(sent, prefix(fmt.Sprintf("create the claim, VM %d on %s", a.VMID, a.Host), err))
}

// take makes somebody's claim ours, or a claim of ours alive again.
func (a *acquisition) take(ctx context.Context, from ClaimState) (done bool, seen string, err error) {
	a.watching = false
	sent := time.Now()
	err = writeClaim(ctx, a.Proxmox, from.VM, a.mine(from.Beat+1))
	return a.took(sent, err)
}

// took tells what a change has come to. Where somebody was faster or no answer
// came, the world is looked at again.
func (a *acquisition) took(sent time.Time, err error) (done bool, seen string, _ error) {
	switch {
	case err == nil:
		a.sent = sent
		return true, "", nil
	case errors.Is(err, ErrExists), errors.Is(err, ErrChanged), errors.Is(err, ErrNotFound), errors.Is(err, ErrLostAnswer):
		return false, "looking again: " + err.Error(), nil
	}
	return false, "", wait.Stop(err)
}

func (c *Claim) mine(beat int) ClaimState {
	return ClaimState{Cluster: c.Cluster, Run: c.Run, Holder: c.Holder, Since: time.Now().UTC().Truncate(time.Second), Beat: beat}
}

// writeClaim changes the claim if it still is as vm was read.
func writeClaim(ctx context.Context, px Editor, vm VM, s ClaimState) error {
	description, err := s.description()
	if err != nil {
		return err
	}
	return prefix(fmt.Sprintf("write the claim into %s", vm), px.SetConfig(ctx, vm, map[string]string{"description": description}, nil))
}
