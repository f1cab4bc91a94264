package past

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// Locks are the locks that a project has had.
type Locks struct {
	Present string // recast.lock
	Dir     string // of those that recast lock has replaced
	Runs    Runs   // of which others' have theirs
}

// Known says whether this machine has a past lock, or a run of another machine.
func (l Locks) Known() bool {
	for _, dir := range []string{l.Dir, l.Runs.Elsewhere} {
		if known, err := os.ReadDir(dir); len(known) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// Learn puts what recast.lock was at a time among the past locks, unless it is that still.
func (l Locks) Learn(text []byte, at time.Time) error {
	present, err := schematics.ReadLock(l.Present)
	if err != nil {
		return err
	}
	lock, err := schematics.ParseLock("a past lock", text)
	if err != nil || lock.Key() == present.Key() {
		return err
	}
	if err := journal.KeepOutOfGit(filepath.Dir(l.Dir)); err != nil {
		return err
	}
	return schematics.Learn(l.Dir, lock, at)
}

// Before is the lock before another one, for people: of this machine or, if that has none, of the last run elsewhere.
func (l Locks) Before(lock schematics.Lock) (before schematics.Lock, found bool) {
	before, found, err := schematics.Previous(l.Dir, lock)
	if found || err != nil {
		return before, found
	}
	for _, shared := range l.Shared() {
		if shared.Key() != lock.Key() {
			return shared, true
		}
	}
	return before, false
}

// Shared are the locks in the copies of other machines' runs, the newest first. They are believed only as far as they
// prove themselves: which extensions a lock hash stands for. What to install is never taken from them.
func (l Locks) Shared() (locks []schematics.Lock) {
	for _, text := range l.Runs.locks() {
		if lock, err := schematics.ParseLock("a shared lock", text); err == nil {
			locks = append(locks, lock)
		}
	}
	return locks
}

// Text is that of the lock with a key, if it has no secrets; nil otherwise.
func (l Locks) Text(key string) []byte {
	for _, file := range []string{l.Present, filepath.Join(l.Dir, key+".lock")} {
		lock, err := schematics.ReadLock(file)
		if err != nil || lock.Key() != key || lock.HoldsSecrets() {
			continue
		}
		if text, err := os.ReadFile(file); err == nil {
			return text
		}
	}
	return nil
}
