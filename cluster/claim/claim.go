// Package claim keeps a cluster for one run at a time. [Claim] takes the mark, a VM that is never started or a
// Lease; [Held] is the mark once taken, which beats, and whose guards let no change through once it is lost.
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

// Claim is the cluster-wide mark that a run holds, so that there is one run per cluster: a VM that never starts, with
// a fixed VMID. Its creation is atomic in the whole Proxmox cluster, and its description is changed by
// compare-and-swap. A token that may not create VMs uses a Kubernetes Lease instead; a run that takes one of the two
// checks the other first, so that they exclude each other. A recast.yaml with other proxmox.vmids gives the claim
// another VMID: a run that takes a claim looks for all others in the whole Proxmox cluster (see surroundings).
type Claim struct {
	Proxmox interface {
		cluster.Inventory
		cluster.Editor
	}
	Cluster string
	VMID    cluster.VMID
	VMIDs   cluster.VMIDRange // of the recast.yaml; VMID is the first of them
	Nodes   []cluster.VMID    // the VMs of the cluster's nodes, as far as known
	Parked  bool              // disks that another recast.yaml has parked are no reason to refuse
	Host    string            // the Proxmox node on which the claim is created
	Leases  cluster.Leases    // nil: no Lease is looked for
	InLease bool              // the claim is kept as a Lease, not as a VM
	Holder  Holder
	Run     string

	// Dead says whether a holder is a process of this machine that has ended; nil: never known.
	Dead func(Holder) bool
	// Suspended says whether a holder is a process of this machine that is stopped (Ctrl-Z, SIGSTOP); nil: never known.
	Suspended func(Holder) bool
	// Say receives what the claim waits for, and, from another goroutine, what fails while the claim is held; may be nil.
	Say func(string)

	Heartbeat time.Duration // 0: Heartbeat
	Watch     time.Duration // how long a claim must be unchanged before it is taken over; 0: Watch
}

const (
	// Heartbeat is how often a live run renews its claim.
	Heartbeat = 15 * time.Second
	// Watch is how long a claim must be unchanged before another run takes it over.
	Watch = 90 * time.Second
)

func (c *Claim) heartbeat() time.Duration { return cmp.Or(c.Heartbeat, Heartbeat) }
func (c *Claim) watch() time.Duration     { return cmp.Or(c.Watch, Watch) }

func (c *Claim) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}

// waiting says what it waits for, and in which steps.
func (c *Claim) waiting(what string, atMost time.Duration) wait.For {
	return wait.For{
		Name: what + " of cluster " + c.Cluster, Every: c.heartbeat() / 3, Timeout: atMost,
		Seen: func(seen string) { c.say("claim of cluster %s: %s", c.Cluster, seen) },
	}
}

// places returns where our claim is kept and where another run's may be; nil: nowhere.
func (c *Claim) places() (ours, others place) {
	switch {
	case c.Leases == nil:
		return vmPlace{c}, nil
	case c.InLease:
		return leasePlace{c}, vmPlace{c}
	}
	return vmPlace{c}, leasePlace{c}
}

// releaseOthers limits the release of our claim when another run's claim excludes it.
const releaseOthers = time.Minute

// Acquire takes the claim, or fails with fault.Claimed and names its holder. It takes over a claim that is
// unchanged for Watch, and at once one whose holder is dead. The claim is kept alive until Release, or until ctx ends.
func (c *Claim) Acquire(ctx context.Context) (*Held, error) {
	for {
		if err := c.lookAround(ctx, false, nil); err != nil {
			return nil, err
		}
		ours, _ := c.places()
		a := acquisition{Claim: c, place: ours}
		if err := a.until(ctx); err != nil {
			return nil, err
		}
		held := hold(ctx, *c, a.sent)
		err := held.exclude(ctx)
		if err == nil {
			err = c.lookAround(ctx, !c.InLease, nil)
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

// acquisition is one attempt to take a claim, or to remove an orphaned one.
type acquisition struct {
	*Claim
	place    place
	clearing bool      // place is the other place, where our claim is not kept
	muted    bool      // place could not be read
	sent     time.Time // when the change that made the claim ours was sent

	watching bool // the claim is another run's
	seen     State
	since    time.Time // when seen was first read

	formingSince time.Time // when the claim was first seen as still being created; zero: it is complete
}

func (a *acquisition) until(ctx context.Context) error {
	return wait.Until(ctx, a.waiting("take the claim", 4*a.watch()), a.look)
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
		return false, "", err // a counter with the same value after the error is still unchanged
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
		a.say("claim of cluster %s: it has stood still for %s; taking it over from %s%s", a.Cluster, a.watch(), found, a.suspended(found, ", which is suspended: continued, it ends"))
		return a.take(ctx, found)
	}
	return false, "held by " + a.watched(found, a.since), nil
}

// watched says who holds a claim that is watched since then and, from time to time, for how long the claim has not
// changed.
func (c *Claim) watched(s State, since time.Time) string {
	text := fmt.Sprintf("%s; watching for up to %s whether that run is alive", s, c.watch())
	if c.suspended(s, " ") != "" {
		text = fmt.Sprintf("%s, which is suspended: %s; watching for up to %s whether it does", s, s.Holder.GoesOn(), c.watch())
	}
	if still := time.Since(since).Truncate(c.heartbeat()); still > c.heartbeat() {
		text += fmt.Sprintf("; its heartbeat has stood still for %s", still)
	}
	return text
}

// suspended returns text if the holder is a stopped process of this machine, else "".
func (c *Claim) suspended(s State, text string) string {
	if c.Suspended == nil || !c.Suspended(s.Holder) {
		return ""
	}
	return text
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

// take takes over another run's claim, or renews our own.
func (a *acquisition) take(ctx context.Context, from State) (done bool, seen string, err error) {
	a.watching = false
	sent := time.Now()
	switch {
	case !a.clearing:
		err = a.place.write(ctx, from, a.mine(from.Beat+1))
	case a.InLease:
		return false, "", wait.Stop(fault.WithHint(
			fault.ClaimHeld.Refusedf("%s is the claim of %s, which has ended, and this token may not change VMs", from.VM, from),
			"run recast with the token that made it, or, since that run has ended, %s", deletion(from.VM)))
	default:
		err = a.place.remove(ctx, from)
	}
	return a.took(sent, err)
}

// took reports the result of a change. If another run was faster, or no answer came, the place is read again.
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
