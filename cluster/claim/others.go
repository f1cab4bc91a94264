package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// exclude makes sure that no run holds the claim in the other of its two places. Each run
// writes its own place before it reads the other: of two runs, at least one sees the other.
//
// A Lease can't be read while the Kubernetes API is unavailable, and the API may be what this
// run has to repair. The run then continues: a run that holds the Lease can't prove it either,
// and changes nothing. Once the API is back, this run checks again before its next change, and
// it is the one that yields.
func (h *Held) exclude(ctx context.Context) error {
	if h.others == nil {
		return nil
	}
	clear := acquisition{Claim: &h.claim, place: h.others, clearing: true}
	err := clear.until(ctx)
	if clear.muted && !h.unseen {
		h.claim.say("claim of cluster %s: whether someone holds it as a Lease can't be determined: Kubernetes does not answer; looking again later", h.claim.Cluster)
	}
	h.unseen = clear.muted
	return err
}

// stillAlone checks the other place again, if a claim may have been created there.
func (h *Held) stillAlone(ctx context.Context) error {
	select {
	case h.excluding <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-h.excluding }()
	if h.claim.InLease {
		return h.awaitNoVM(ctx)
	}
	if !h.unseen {
		return nil
	}
	err := h.exclude(ctx)
	if fault.KindOf(err) == fault.Claimed { // the other run waits until our claim is deleted
		return errors.Join(h.giveBack(ctx), h.lose(err))
	}
	return err
}

// awaitNoVM waits until there is no claim in Proxmox: a run that made one after ours either
// sees the Lease and yields, or only prunes, which does not use Kubernetes.
func (h *Held) awaitNoVM(ctx context.Context) error {
	return wait.Until(ctx, wait.For{
		Name: "nobody else holds the claim of cluster " + h.claim.Cluster, Every: h.claim.heartbeat() / 3, Timeout: h.claim.watch(),
		Seen: func(seen string) { h.claim.say("claim of cluster %s: %s", h.claim.Cluster, seen) },
	}, func(ctx context.Context) (bool, string, error) {
		s, err := h.others.read(ctx)
		switch f, forming := errors.AsType[*formingError](err); {
		case errors.Is(err, cluster.ErrNotFound):
			return true, "", nil
		case forming:
			return false, f.Error(), nil
		case err != nil:
			return false, "", err
		}
		return false, fmt.Sprintf("%s holds it too (%s)", s, s.where()), nil
	})
}
