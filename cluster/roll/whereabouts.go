package roll

import (
	"context"

	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/internal/step"
)

// explained returns s with failures that say where the node's disks are.
func (n *node) explained(s step.Step) step.Step {
	return exchange.Explained(s, func(ctx context.Context, err error) error {
		mem, errMemory := n.Memory(ctx)
		if errMemory != nil {
			return err // nothing was started
		}
		park, errPark := n.Parking(ctx)
		rec := park.Record
		if errPark != nil {
			// Its record can't be read; the memory says as much.
			if rec, errMemory = n.record.opening().Opened(mem, nil); errMemory != nil {
				return err
			}
			park.VM.ID, _ = n.ParkingID(ctx) // 0: not known
		}
		if !rec.Open || rec.Run != n.Run {
			return err
		}
		return n.record.of(mem, rec, park.VM.ID).Located(ctx, err)
	})
}
