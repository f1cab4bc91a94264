package cluster

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/recast-sh/recast/internal/fault"
)

// A server that is busy or restarts says nothing about a node. So a node's step is retried while
// its reads get no answer. Each retry checks the step's goal first, and a step can be retried
// wherever it was interrupted.

// IsUnanswered says whether err is only that a server gave no clear answer to a read, or to a
// change that is safe to repeat. With a refusal beside that it is false.
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

// isClear says whether part of err is a refusal for another reason than a missing answer.
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

// SilentError is a refusal for the sole reason that a server gave no answer.
type SilentError struct{ Err error }

func (e *SilentError) Error() string        { return e.Err.Error() }
func (e *SilentError) Unwrap() error        { return e.Err }
func (e *SilentError) Is(target error) bool { return target == ErrNotNow }

// RepeatableError is a change whose answer was lost and that is safe to repeat.
type RepeatableError struct{ Err error }

func (e *RepeatableError) Error() string { return e.Err.Error() }
func (e *RepeatableError) Unwrap() error { return e.Err }

// FinalError is an error after which a step is not retried: it was retried for long enough, or the
// node was restored.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }
func (e *FinalError) Unwrap() error { return e.Err }

// UnprovenError says why something was not done: it is unknown whether the claim is ours.
type UnprovenError struct{ Err error }

func (e *UnprovenError) Error() string { return e.Err.Error() }

func (e *UnprovenError) Unwrap() error { return e.Err }

// Requests that are sent without a digest.
const (
	SentShutdown = "shutdown"
	SentStop     = "stop"
	SentRemoveHA = "remove-ha"
	SentAddHA    = "add-ha"
	SentFirewall = "firewall"
)

// TakesDown are the requests that switch a node off.
var TakesDown = []string{SentShutdown, SentStop}

// NoteUnanswered is called by an adapter after it has sent a request that may still be carried out.
func NoteUnanswered(ctx context.Context) {
	if noted, is := ctx.Value(unansweredKey{}).(*atomic.Bool); is {
		noted.Store(true)
	}
}

// WithUnanswered returns a context for one call of an adapter that changes something, and a
// function that says afterwards whether the call has sent a request that may still be carried out,
// whatever the call returned (net/http/httptrace works in this way).
func WithUnanswered(ctx context.Context) (context.Context, func() bool) {
	var noted atomic.Bool
	return context.WithValue(ctx, unansweredKey{}, &noted), noted.Load
}

type unansweredKey struct{}
