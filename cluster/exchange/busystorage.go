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
	// busyFor bounds how long a volume that its storage can't rename is tried again.
	// The node is out meanwhile.
	busyFor = 5 * time.Minute
	// busyPause is the time between an attempt and the next look.
	busyPause = 10 * time.Second
)

// do gives a volume of one VM to the other. A storage that can't rename the
// volume just now is asked again for some minutes. Each attempt looks first at
// what became of the one before: it may have been done all the same.
func (r handOver) do(ctx context.Context, in parking.Intent) error {
	err := r.once(ctx, in)
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
		err = r.once(ctx, in)
	}
	if errors.Is(err, cluster.ErrStorageBusy) {
		return fault.WithHint(fault.StorageBusy.Of(err),
			"something on %s uses the volume although VM %d is off: with ZFS, lsof /dev/zvol/POOL/VOLUME names it; with Ceph, rbd status POOL/VOLUME lists its watchers. "+
				"End that, then run the same command again", r.VM.Host, in.From)
	}
	return err
}

// stepID is the step in which a disk changes hands.
func (r handOver) stepID(in parking.Intent) string {
	switch {
	case in.To == r.Parking && r.Strategy == cluster.PutBack:
		return "park-new"
	case in.To == r.Parking:
		return parkStep + in.Key
	case r.Strategy == cluster.Rollback && r.System.isSystem(in.ToKey):
		return "restore-disk"
	}
	return "attach/" + in.ToKey
}
