package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

const (
	// busyFor bounds how long do retries when a storage can't rename a volume. The node is down
	// meanwhile.
	busyFor = 5 * time.Minute
	// busyPause is the time between two attempts.
	busyPause = 10 * time.Second
)

// do hands a volume of one VM over to the other. While the storage is too busy to rename the
// volume, do retries for up to busyFor. Each attempt first checks the result of the one before,
// which may have succeeded despite its error. seen is as for once.
func (r handOver) do(ctx context.Context, in parking.Intent, seen *pair) error {
	err := r.once(ctx, in, seen)
	say, said := r.saying(r.stepID(in)), ""
	for begun := time.Now(); errors.Is(err, cluster.ErrStorageBusy) && time.Since(begun) < busyFor; {
		left := (busyFor - time.Since(begun)).Round(time.Minute)
		if text := fmt.Sprintf("its storage is busy: tried again for %s at most: %v", left, err); text != said {
			say(text)
			said = text
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyPause):
		}
		err = r.once(ctx, in, nil)
	}
	if errors.Is(err, cluster.ErrStorageBusy) {
		return fault.WithHint(fault.StorageBusy.Of(err),
			"something on %s uses the volume although VM %d is off: with ZFS, lsof /dev/zvol/POOL/VOLUME names it; with Ceph, rbd status POOL/VOLUME lists its watchers. "+
				"End that, then run the same command again", r.VM.Host, in.From)
	}
	return err
}

// stepID is the ID of the step that hands the disk over.
func (r handOver) stepID(in parking.Intent) string {
	switch {
	case in.To == r.Parking && r.Strategy.From() == cluster.Halfway:
		return "park-new"
	case in.To == r.Parking:
		return parkStep + in.Key
	case !r.System.isSystem(in.ToKey):
	case r.Strategy.System() == cluster.SystemKept:
		return "restore-disk"
	case r.Strategy.VM() == cluster.VMAgain:
		return "renew-disk"
	case r.Strategy.Replaces():
		return "blank-disk"
	}
	return "attach/" + in.ToKey
}
