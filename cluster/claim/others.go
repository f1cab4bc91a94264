package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// exclude makes sure that nobody holds the claim in the other of its two places.
// Each run writes into its own before it reads the other: of two, one at least
// sees the other.
//
// A Lease can't be read while the API is away, and that may be what is to be put
// right. The run goes on then: whoever holds the Lease can't prove it either, and
// changes nothing. Once the API is back, this run looks again before it changes
// anything more, and it is the one that yields.
func (h *Held) exclude(ctx context.Context) error {
	if h.others == nil {
		return nil
	}
	clear := acquisition{Claim: &h.claim, place: h.others, clearing: true}
	err := clear.until(ctx)
	if clear.muted && !h.unseen {
		h.claim.say("claim of cluster %s: whether somebody holds it as a Lease can't be told: Kubernetes does not answer; looking again later", h.claim.Cluster)
	}
	h.unseen = clear.muted
	return err
}

// stillAlone looks at the other place again, as far as somebody may have come there.
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
	if fault.KindOf(err) == fault.Claimed { // theirs waits for ours to go
		return errors.Join(h.giveBack(ctx), h.lose(err))
	}
	return err
}

// awaitNoVM waits until there is no claim in Proxmox: whoever made it after ours
// either sees the Lease and yields, or only prunes, which asks Kubernetes nothing.
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
