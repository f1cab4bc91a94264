package wait

import (
	"errors"
	"sync"
)

// All asks at the same time what does not depend on each other's answers, which takes one
// round instead of several, and waits for all of them. Its error joins theirs, in the
// order of asks.
func All(asks ...func() error) error {
	errs := make([]error, len(asks))
	var all sync.WaitGroup
	for i, ask := range asks {
		all.Go(func() { errs[i] = ask() })
	}
	all.Wait()
	return errors.Join(errs...)
}
