package cluster

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// A server that is busy or restarts says nothing about a node. So the steps of a
// node are repeated for as long as what they read is left unanswered. A step asks
// its goal first each time, and may be run again after it was cut off anywhere.

// IsUnanswered says whether all that went wrong is that a server gave no clear
// answer to a read, or to a change that may be made twice. A refusal beside it is a clear answer.
func IsUnanswered(err error) bool {
	if _, isFinal := errors.AsType[*FinalError](err); isFinal || isClear(err) {
		return false
	}
	if _, may := errors.AsType[*RepeatableError](err); may {
		return true
	}
	_, away := errors.AsType[*HostsAway](err)
	return (away || errors.Is(err, ErrNotNow)) && !errors.Is(err, ErrLostAnswer)
}

// isClear says whether part of err is a refusal that does not come of a missing answer.
func isClear(err error) bool {
	if err == nil {
		return false
	}
	if _, silent := err.(*SilentError); silent { //nolint:errorlint // this very error, nothing below it
		return false
	}
	if _, away := errors.AsType[*HostsAway](err); fault.KindOf(err) != fault.Failed && !away && !errors.Is(err, ErrNotNow) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() error }:
		return isClear(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), isClear)
	}
	return false
}

// SilentError is a refusal for the sole reason that somebody gave no answer.
type SilentError struct{ Err error }

func (e *SilentError) Error() string        { return e.Err.Error() }
func (e *SilentError) Unwrap() error        { return e.Err }
func (e *SilentError) Is(target error) bool { return target == ErrNotNow }

// RepeatableError is a change whose answer was lost and that may be made again.
type RepeatableError struct{ Err error }

func (e *RepeatableError) Error() string { return e.Err.Error() }
func (e *RepeatableError) Unwrap() error { return e.Err }

// FinalError is one after which a step is not repeated: it was repeated for long
// enough, or the node was put back as it was.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }
func (e *FinalError) Unwrap() error { return e.Err }

// UnprovenError is why something was not done: it is not known that the claim is ours.
type UnprovenError struct{ Err error }

func (e *UnprovenError) Error() string { return e.Err.Error() }

func (e *UnprovenError) Unwrap() error { return e.Err }

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
