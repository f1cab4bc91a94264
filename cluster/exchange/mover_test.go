package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

// busyStorage can't rename a volume until a time.
type busyStorage struct {
	*guarded
	until time.Time
}

func (b busyStorage) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	if time.Now().Before(b.until) {
		return fmt.Errorf("dataset is busy: %w", cluster.ErrStorageBusy)
	}
	return b.guarded.MoveDisk(ctx, vm, key, to, toKey)
}

// TestBusyStorage: a disk is handed over once its storage can rename the volume, if that is soon.
func TestBusyStorage(t *testing.T) {
	t.Parallel()
	type row struct {
		busy, took time.Duration
		moved      bool
		said       int
	}
	must.Bubbles(t, map[string]row{
		"it is free":     {0, 0, true, 0},
		"it is soon":     {15 * time.Second, 20 * time.Second, true, 1},
		"it stays busy":  {time.Hour, busyFor, false, 6},
		"it is too late": {busyFor + time.Second, busyFor, false, 6},
	}, func(t *testing.T, c row) {
		g := newGuarded()
		all(here, volumes("fast:vm-101-disk-0", "fast:vm-101-disk-1"))(g)
		g.recorded()
		began := time.Now()
		var said []string
		rec := newOpenRecord(busyStorage{g, began.Add(c.busy)}, 9900, "r1", "wk1", new(Late))
		m := newMover(rec, "pve1", nil, func(in parking.Intent, text string) { said = append(said, in.Key+": "+text) })
		err := m.do(t.Context(), intent, nil)
		if c.moved != (err == nil) || !c.moved && !errors.Is(err, cluster.ErrStorageBusy) {
			t.Errorf("err = %v", err)
		}
		moved, took := slices.Contains(g.Done, "move scsi1 of 101 to scsi1 of 9900"), time.Since(began)
		if moved != c.moved || took != c.took || len(said) != c.said {
			t.Errorf("moved %t after %s, said %q", moved, took, said)
		}
	})
}
