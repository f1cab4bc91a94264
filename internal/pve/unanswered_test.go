package pve

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// TestUnansweredIsReported: the caller of a power change learns whether an unanswered
// request may still be carried out, although the VM is as wanted.
func TestUnansweredIsReported(t *testing.T) {
	t.Parallel()
	start := func(ctx context.Context, t *testing.T, l lab) error { return l.Start(ctx, l.read(t, 9011)) }
	for name, c := range map[string]struct {
		loss  loss
		on    bool
		do    func(context.Context, *testing.T, lab) error
		noted bool
	}{
		"its task was found":         {do: start},
		"it was sent twice":          {loss: loss{before: true}, do: start, noted: true},
		"it is unknown who did it":   {loss: loss{before: true}, on: true, noted: true, do: shutdownMeanwhile},
		"its task was found, it ran": {on: true, do: shutdownMeanwhile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLosing(t, c.loss)
				if c.on {
					must(t, l.lab.Start(t.Context(), l.lab.read(t, 9011)))
				}
				l.arm()
				ctx, unanswered := cluster.WithUnanswered(t.Context())
				if err := c.do(ctx, t, l.lab); err != nil || unanswered() != c.noted {
					t.Errorf("error %v; noted: %t, want %t", err, unanswered(), c.noted)
				}
			})
		})
	}
}

// shutdownMeanwhile shuts down a VM that switches itself off at the same time.
func shutdownMeanwhile(ctx context.Context, t *testing.T, l lab) error {
	time.AfterFunc(2*time.Second, func() { _ = l.world.PowerOff(9011) })
	return l.Shutdown(ctx, l.read(t, 9011), time.Minute)
}
