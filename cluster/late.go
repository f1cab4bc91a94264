package cluster

import (
	"context"
	"sync/atomic"
	"time"
)

// What is sent without a digest.
const (
	SentShutdown = "shutdown"
	SentStop     = "stop"
	SentRemoveHA = "remove-ha"
	SentAddHA    = "add-ha"
	SentFirewall = "firewall"
)

// TakesDown are those that switch a node off.
var TakesDown = []string{SentShutdown, SentStop}

// NoteUnanswered is called by an adapter that has sent such a request.
func NoteUnanswered(ctx context.Context) {
	if noted, is := ctx.Value(unansweredKey{}).(*atomic.Bool); is {
		noted.Store(true)
	}
}

// WithUnanswered gives a context for one call of an adapter that changes something,
// and a function that says afterwards whether it has sent a request which may still
// be carried out, with whatever result it has returned (as net/http/httptrace does).
func WithUnanswered(ctx context.Context) (context.Context, func() bool) {
	var noted atomic.Bool
	return context.WithValue(ctx, unansweredKey{}, &noted), noted.Load
}

type unansweredKey struct{}

// Elapsed is the time since then by whichever clock says more: a monotonic
// clock stands still while a machine sleeps, a wall clock can be set back.
func Elapsed(then time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}
