package step

import (
	"context"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/wait"
)

// sharedFor is for how long goals share an answer: as long as nothing is done, and no longer, so
// that a wait in between asks again.
const sharedFor = time.Second

// answers are what goals have read since a step last did something.
type answers struct {
	mu    sync.Mutex
	known map[any]answer
}

type answer struct {
	asked time.Time
	value any
	err   error
}

type answersKey struct{}

// Once returns what read returns. The goal of a step that has ended and that of the next one before
// it begins have nothing between them: what both read under the same key is read once. A Do always
// reads.
func Once[T any](ctx context.Context, key any, read func() (T, error)) (T, error) {
	a, _ := ctx.Value(answersKey{}).(*answers)
	if a == nil {
		return read()
	}
	a.mu.Lock()
	known, there := a.known[key]
	a.mu.Unlock()
	if there && wait.Elapsed(known.asked) < sharedFor {
		value, _ := known.value.(T)
		return value, known.err
	}
	asked := time.Now()
	value, err := read()
	if ctx.Err() == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.known == nil {
			a.known = map[any]answer{}
		}
		a.known[key] = answer{asked, value, err}
	}
	return value, err
}

// within returns the context of goals, which share their answers.
func (a *answers) within(ctx context.Context) context.Context {
	return context.WithValue(ctx, answersKey{}, a)
}

// forget makes goals read again: a step has done something.
func (a *answers) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = nil
}
