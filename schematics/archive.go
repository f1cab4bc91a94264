package schematics

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// Archive stores a lock in a directory of past locks, which it creates. It replaces
// an archived lock of the same builds.
func Archive(dir string, l Lock) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the lock: %w", err)
	}
	if err := writeLock(filepath.Join(dir, l.Key()+".lock"), l, 0o600); err != nil {
		return fmt.Errorf("keep the lock: %w", err)
	}
	return nil
}

// Learn is Archive for a lock that was the current one at a time, which git or so remembers. What is in the directory
// already stays as it is.
func Learn(dir string, l Lock, at time.Time) error {
	file := filepath.Join(dir, l.Key()+".lock")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := Archive(dir, l); err != nil {
		return err
	}
	return os.Chtimes(file, at, at)
}

// History is what past and current locks say about the images that nodes may still run.
type History struct {
	locks  []Lock
	byHash map[string]Locked
}

// Locks returns the locks of the history.
func (h History) Locks() []Lock { return slices.Clone(h.locks) }

// ReadHistory reads the past locks of a directory, which need not exist, and adds others. A hash proves digests, not names:
// of two locks with it, the one that comes first names the extensions.
func ReadHistory(dir string, others ...Lock) (History, error) {
	h := History{byHash: map[string]Locked{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	if err != nil {
		return h, fault.Configf("list past locks: %w", err)
	}
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fault.Configf("read a past lock: %w", err))
			continue
		}
		l, err := ParseLock(file, data)
		if err != nil {
			errs = append(errs, fault.WithHint(err, "%s is a past lock, kept to show what changed: it can be removed", file))
			continue
		}
		h.add(l)
	}
	for _, l := range others {
		h.add(l)
	}
	return h, errors.Join(errs...)
}

func (h *History) add(l Lock) {
	h.locks = append(h.locks, l)
	for _, e := range l.Schematics {
		if _, known := h.byHash[e.LockHash]; !known {
			h.byHash[e.LockHash] = e
		}
	}
}

// ByLockHash returns a schematic whose image carries this lock hash ("sha256-…"): its extensions, its overlay
// and its rebuilds are those of that image. ok is false if no known lock has it.
func (h History) ByLockHash(hash string) (e Locked, ok bool) {
	e, ok = h.byHash[hash]
	e.Extensions = slices.Clone(e.Extensions)
	return e, ok
}
