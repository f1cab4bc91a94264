package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Held is a claim that is ours for as long as Check returns nil. Its heartbeat ends with
// Release, with the context given to Acquire, or when the claim is lost.
type Held struct {
	claim  Claim
	place  place
	others place // where another run's claim may be; nil: nowhere
	stop   context.CancelFunc
	beats  sync.WaitGroup

	gone  chan struct{} // closed once the claim is lost
	mu    sync.Mutex
	alive time.Time // when the last change that is known to have arrived was sent
	fault error     // why no heartbeat has arrived since
	lost  error     // permanent; nothing is written after it
	doubt bool      // no heartbeat arrived for so long that another run may have ignored the claim

	ends map[context.Context]context.CancelCauseFunc // of contexts that end when the claim is lost

	excluding chan struct{} // holds a token while a goroutine checks the other place
	unseen    bool          // the other place could not be read yet
}

func hold(ctx context.Context, c Claim, sent time.Time) *Held {
	ctx, cancel := context.WithCancel(ctx)
	h := &Held{
		claim: c, stop: cancel, gone: make(chan struct{}), alive: sent,
		ends: map[context.Context]context.CancelCauseFunc{}, excluding: make(chan struct{}, 1),
	}
	h.place, h.others = h.claim.places()
	h.beats.Go(func() { h.beatOn(ctx) })
	return h
}

// Check reads the claim afresh and fails with fault.Claimed when it is no longer ours. If no
// heartbeat has arrived for half of Watch, it waits up to Watch for the next one, so that a
// short outage of Proxmox does not end a run; then it refuses.
func (h *Held) Check(ctx context.Context) error {
	start := time.Now()
	for {
		_, err := h.current(ctx)
		if err == nil {
			err = h.silence()
		} else if !h.claim.InLease || h.isLost() != nil || fault.KindOf(err) == fault.Refused {
			return &cluster.UnprovenError{Err: err} // the Proxmox client itself retries
		}
		if err == nil {
			break
		}
		if time.Since(start) >= h.claim.watch() {
			return &cluster.UnprovenError{Err: err}
		}
		select {
		case <-ctx.Done():
			return &cluster.UnprovenError{Err: err}
		case <-time.After(h.claim.heartbeat() / 3):
		}
	}
	if err := errors.Join(h.stillAlone(ctx), h.afterSilence(ctx)); err != nil {
		return &cluster.UnprovenError{Err: err}
	}
	return nil
}

// Cover adds these VMs to the claim as its nodes, and looks again for rivals that name one of them. It does nothing
// if the claim already names them.
func (h *Held) Cover(ctx context.Context, nodes []cluster.VMID) error {
	if !slices.ContainsFunc(nodes, func(id cluster.VMID) bool { return !slices.Contains(h.claim.Nodes, id) }) {
		return nil
	}
	err := h.change(ctx, func(s State) error {
		next := s
		next.Nodes, next.Beat = nodes, s.Beat+1
		return h.place.write(ctx, s, next)
	})
	if err != nil {
		return fmt.Errorf("claim the nodes of cluster %s: %w", h.claim.Cluster, err)
	}
	h.mu.Lock()
	h.claim.Nodes = nodes
	h.mu.Unlock()
	err = h.claim.lookAround(ctx, !h.claim.InLease, nil)
	if errors.Is(err, errYield) {
		err = fault.WithHint(fault.ClaimHeld.Of(fault.As(fault.Claimed, err)), "run the same command again")
	}
	return err
}

// Within returns ctx for as long as the claim is ours: losing the claim cancels ctx, with the loss as the cause.
func (h *Held) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.gone:
		end(h.lost)
	default:
		h.ends[ctx] = end
	}
	return ctx, func() {
		h.mu.Lock()
		delete(h.ends, ctx)
		h.mu.Unlock()
		end(nil)
	}
}

// Judge returns the error of a run that ended with err, which may be nil. A run that lost its claim reports the
// loss first, before any server's error.
func (h *Held) Judge(err error) error {
	if lost := h.Lost(); lost != nil {
		return fault.As(fault.Claimed, errors.Join(lost, err))
	}
	return err
}

// Lost says how the claim was lost; nil while the claim is ours, and after its release.
func (h *Held) Lost() error {
	select {
	case <-h.gone:
		return h.isLost()
	default:
		return nil
	}
}

// afterSilence looks for rivals if no heartbeat arrived for a long time: a run may have begun without seeing our
// claim, because the claim's host was unreachable. Hosts that do not answer are judged as in lookAround.
func (h *Held) afterSilence(ctx context.Context) error {
	h.mu.Lock()
	doubt := h.doubt
	h.mu.Unlock()
	if !doubt {
		return nil
	}
	err := h.claim.lookAround(ctx, !h.claim.InLease, func(rival State) error {
		return h.lose(fmt.Errorf("to %s, which has begun meanwhile (%s)", rival, rival.where()))
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubt = false
	return nil
}

// silence returns an error if no heartbeat has arrived for more than half of Watch.
func (h *Held) silence() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	silent := wait.Elapsed(h.alive)
	if silent <= h.claim.watch()/2 {
		return nil
	}
	err := fault.ClaimLost.Refusedf("can't prove that we still hold the claim of cluster %s: no heartbeat has arrived for %s", h.claim.Cluster, silent.Round(time.Second))
	if h.fault != nil {
		err = fault.ClaimLost.Refusedf("%w: %w", err, h.fault)
	}
	return fault.WithHint(err, "run the same command again: it takes the claim back if nobody else has it")
}

// current reads the claim if it is ours. A lost claim stays lost.
func (h *Held) current(ctx context.Context) (State, error) {
	if err := h.isLost(); err != nil {
		return State{}, err
	}
	s, err := h.place.read(ctx)
	_, strange := errors.AsType[*strangeError](err)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return State{}, h.lose(fmt.Errorf("%s was deleted", h.place))
	case strange:
		return State{}, h.lose(err)
	case err != nil:
		return State{}, fmt.Errorf("read the claim of cluster %s: %w", h.claim.Cluster, err)
	case !s.heldBy(h.claim.Run, h.claim.Holder):
		return State{}, h.lose(fmt.Errorf("to %s", s))
	}
	return s, nil
}

func (h *Held) isLost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *Held) lose(how error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil {
		err := fault.As(fault.Claimed, fmt.Errorf("lost the claim of cluster %s: %w", h.claim.Cluster, how))
		h.lost = fault.WithHint(fault.ClaimLost.Of(err), "this run must stop; recast status shows what it left")
		close(h.gone)
		for _, end := range h.ends {
			end(h.lost)
		}
	}
	return h.lost
}

// beatOn keeps the claim alive until ctx ends or the claim is lost.
func (h *Held) beatOn(ctx context.Context) {
	pause, failing := h.claim.heartbeat(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		err := h.beat(ctx)
		pause = h.claim.heartbeat()
		switch {
		case ctx.Err() != nil:
			return
		case h.isLost() != nil:
			h.claim.say("%v", h.isLost())
			return
		case err != nil:
			pause /= 3
			if !failing {
				h.claim.say("heartbeat of the claim of cluster %s: %v; trying again", h.claim.Cluster, err)
			}
		}
		failing = err != nil
	}
}

func (h *Held) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.claim.heartbeat())
	defer cancel()
	s, err := h.current(ctx)
	if err == nil {
		next := s
		next.Beat++
		sent := time.Now()
		if err = h.place.write(ctx, s, next); err == nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.doubt = h.doubt || wait.Elapsed(h.alive) > h.claim.watch()/2
			h.alive, h.fault = sent, nil
			return nil
		}
	}
	if errors.Is(err, cluster.ErrChanged) {
		if _, lost := h.current(ctx); lost != nil {
			err = lost
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = err
	return err
}

// Release stops the heartbeat and deletes the claim if it is still ours. It may be called again
// after an error, and does nothing after a success.
func (h *Held) Release(ctx context.Context) error {
	h.stop()
	h.beats.Wait()
	if h.isLost() != nil {
		return nil
	}
	err := h.giveBack(ctx)
	if h.isLost() != nil {
		return nil // the claim is another run's now, or deleted
	}
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.lost = fault.ClaimLost.Refusedf("the claim of cluster %s was given back", h.claim.Cluster)
		return nil
	}
	return fault.WithHint(fault.ClaimLost.Of(fmt.Errorf("give the claim of cluster %s back: %w", h.claim.Cluster, err)),
		"nothing needs to be done: the next run takes it over once it has stood still for %s", h.claim.watch())
}

func (h *Held) giveBack(ctx context.Context) error {
	return h.change(ctx, func(s State) error { return h.place.remove(ctx, s) })
}

// change changes our claim as read. It does so again if a heartbeat was faster, or if an answer was lost: a heartbeat
// that was cancelled before its answer came may still have arrived.
func (h *Held) change(ctx context.Context, do func(State) error) (err error) {
	for range 3 {
		var s State
		if s, err = h.current(ctx); err == nil {
			err = do(s)
		}
		if !errors.Is(err, cluster.ErrChanged) && !errors.Is(err, cluster.ErrLostAnswer) {
			return err
		}
	}
	return err
}
