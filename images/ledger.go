package images

import (
	"fmt"
	"sync"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// Ledger is a lock that is being built. Results, such as an installer's digest or an
// ISO's checksum, are recorded in it and saved at once.
type Ledger struct {
	save func(schematics.Lock) error

	mu   sync.Mutex
	lock schematics.Lock
}

// NewLedger takes a lock and the function that writes it to its file.
func NewLedger(lock schematics.Lock, save func(schematics.Lock) error) *Ledger {
	return &Ledger{save: save, lock: lock.Clone()}
}

// Lock returns the lock with everything recorded so far.
func (l *Ledger) Lock() schematics.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lock.Clone()
}

// entry returns the lock and its schematic of that name.
func (l *Ledger) entry(name string) (schematics.Lock, schematics.Locked, error) {
	lock := l.Lock()
	e, ok := lock.Schematics[name]
	if !ok {
		return lock, e, fault.WithHint(fault.LockStale.Configf("schematic %q is not in the lock", name), "run `recast lock`")
	}
	return lock, e, nil
}

// record changes every entry of that build and saves the lock. If that fails,
// nothing changes.
func (l *Ledger) record(buildID string, change func(*schematics.Locked)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock := l.lock.Clone()
	for name, e := range lock.Schematics {
		if e.BuildID == buildID {
			change(&e)
			lock.Schematics[name] = e
		}
	}
	if err := l.save(lock.Clone()); err != nil {
		return fmt.Errorf("record what was built: %w", err)
	}
	l.lock = lock
	return nil
}
