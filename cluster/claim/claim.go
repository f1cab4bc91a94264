package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Claim is the cluster-wide mark that a run holds, so that there is one run per
// cluster: a never-started VM with a fixed VMID, whose creation is atomic in the
// whole Proxmox cluster and whose description is changed by compare-and-swap.
// For a token that may not make VMs, a Lease of Kubernetes serves; whoever takes
// the one looks for the other before anything is done, so that they exclude each other.
// A recast.yaml with other proxmox.vmids gives the claim another VMID: whoever takes
// one looks for all others in the whole Proxmox cluster (see surroundings).
type Claim struct {
	Proxmox interface {
		cluster.Inventory
		cluster.Editor
	}
	Cluster string
	VMID    cluster.VMID
	VMIDs   cluster.VMIDRange // of the recast.yaml: VMID is its first number
	Nodes   []cluster.VMID    // the VMs of its nodes, as far as they are known
	Parked  bool              // what another recast.yaml has parked is no reason to refuse
	Host    string            // the Proxmox node to make it on
	Leases  cluster.Leases    // nil: no Lease is looked for
	InLease bool              // it is kept as a Lease, not as a VM
	Holder  Holder
	Run     string

	// Dead says whether a holder is a process of this machine that has ended; nil: never known.
	Dead func(Holder) bool
	// Say is told what is waited for, and what goes wrong while the claim is
	// held, from another goroutine then; may be nil.
	Say func(string)

	Heartbeat time.Duration // 0: Heartbeat
	Watch     time.Duration // how long a claim must stand still to be taken over; 0: Watch
}

const (
	// Heartbeat is how often a living run shows that it still holds the claim.
	Heartbeat = 15 * time.Second
	// Watch is how long a claim must stand still before another run takes it over.
	Watch = 90 * time.Second
)

func (c *Claim) heartbeat() time.Duration { return cmp.Or(c.Heartbeat, Heartbeat) }
func (c *Claim) watch() time.Duration     { return cmp.Or(c.Watch, Watch) }

func (c *Claim) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}

// places are where our claim is kept, and where that of others may be, nil for nowhere.
func (c *Claim) places() (ours, others place) {
	vm := vmPlace{px: c.Proxmox, cluster: c.Cluster, id: c.VMID, host: c.Host}
	if c.Leases == nil {
		return vm, nil
	}
	lease := leasePlace{leases: c.Leases, cluster: c.Cluster, watch: c.watch()}
	if c.InLease {
		return lease, vm
	}
	return vm, lease
}

// releaseOthers bounds giving the claim back that somebody else's stands against.
const releaseOthers = time.Minute

// Acquire takes the claim, or fails with fault.Claimed and says who holds it.
// One that stands still is taken over after Watch, a dead one's at once. The
// claim is kept alive until Release, or until ctx ends.
func (c *Claim) Acquire(ctx context.Context) (*Held, error) {
	for {
		if err := c.lookAround(ctx, false); err != nil {
			return nil, err
		}
		ours, others := c.places()
		a := acquisition{Claim: c, place: ours}
		if err := a.until(ctx); err != nil {
			return nil, err
		}
		held := hold(ctx, *c, ours, others, a.sent)
		err := held.exclude(ctx)
		if err == nil {
			err = c.lookAround(ctx, !c.InLease)
		}
		if err == nil {
			return held, nil
		}
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseOthers)
		errRelease := held.Release(release)
		cancel()
		if !errors.Is(err, errYield) || errRelease != nil {
			return nil, errors.Join(err, errRelease)
		}
		c.say("claim of cluster %s: %v, with a lower number for its claim; ours is deleted again", c.Cluster, errYield)
	}
}

// acquisition is one attempt to take a claim, or to clear away one that nobody holds any more.
type acquisition struct {
	*Claim
	place    place
	clearing bool      // the place where ours is not
	muted    bool      // what is there could not be read
	sent     time.Time // when the change that made it ours was sent

	watching bool // somebody else's claim
	seen     State
	since    time.Time // when it was first seen like this

	formingSince time.Time // when it was first seen to be no more than that; zero: it is more
}

func (a *acquisition) until(ctx context.Context) error {
	return wait.Until(ctx, wait.For{
		Name: "take the claim of cluster " + a.Cluster, Every: a.heartbeat() / 3, Timeout: 4 * a.watch(),
		Seen: func(seen string) { a.say("claim of cluster %s: %s", a.Cluster, seen) },
	}, a.look)
}

func (a *acquisition) look(ctx context.Context) (done bool, seen string, err error) {
	asked := time.Now()
	found, err := a.place.read(ctx)
	if f, forming := errors.AsType[*formingError](err); forming {
		if a.formingSince.IsZero() {
			a.formingSince = asked
		}
		if asked.Sub(a.formingSince) >= a.watch() {
			return false, "", wait.Stop(cluster.HalfMade(f.vm))
		}
		return false, f.Error(), nil
	}
	_, strange := errors.AsType[*strangeError](err)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return a.create(ctx)
	case strange:
		return false, "", wait.Stop(err)
	case err != nil && a.watching:
		return false, "", err // a counter that is the same afterwards has stood still all the same
	case err != nil && a.clearing && errors.Is(err, cluster.ErrNoAnswer):
		a.muted = true
		return true, "", nil
	case err != nil:
		return false, "", wait.Stop(err)
	}
	a.formingSince = time.Time{}
	switch {
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

func (a *acquisition) claimedBy(s State) error {
	err := fault.As(fault.Claimed, fmt.Errorf("held by %s, which is alive (%s)", s, s.where()))
	return fault.WithHint(fault.ClaimHeld.Of(err), "wait until that run has ended; recast status shows how far it is")
}

func (a *acquisition) create(ctx context.Context) (done bool, seen string, err error) {
	a.watching = false
	if a.clearing {
		return true, "", nil
	}
	sent := time.Now()
	err = a.place.create(ctx, a.mine(0))
	return a.took(sent, err)
}

// take makes somebody's claim ours, or a claim of ours alive again.
func (a *acquisition) take(ctx context.Context, from State) (done bool, seen string, err error) {
	a.watching = false
	sent := time.Now()
	switch {
	case !a.clearing:
		err = a.place.write(ctx, from, a.mine(from.Beat+1))
	case a.InLease:
		return false, "", wait.Stop(fault.WithHint(
			fault.ClaimHeld.Refusedf("%s is the claim of %s, which has ended, and this token may not change VMs", from.VM, from),
			"run recast with the token that made it, or make sure that no run is at work and delete that VM: qm set %[1]d --protection 0 && qm destroy %[1]d", from.VM.ID))
	default:
		err = a.place.remove(ctx, from)
	}
	return a.took(sent, err)
}

// took tells what a change has come to. Where somebody was faster or no answer
// came, the world is looked at again.
func (a *acquisition) took(sent time.Time, err error) (done bool, seen string, _ error) {
	switch {
	case err == nil:
		a.sent = sent
		return true, "", nil
	case errors.Is(err, cluster.ErrExists), errors.Is(err, cluster.ErrChanged), errors.Is(err, cluster.ErrNotFound), errors.Is(err, cluster.ErrLostAnswer):
		return false, "looking again: " + err.Error(), nil
	}
	return false, "", wait.Stop(err)
}

func (c *Claim) mine(beat int) State {
	return State{
		Cluster: c.Cluster, Run: c.Run, Holder: c.Holder, Since: time.Now().UTC().Truncate(time.Second), Beat: beat,
		VMIDs: c.VMIDs.String(), Nodes: c.Nodes,
	}
}
