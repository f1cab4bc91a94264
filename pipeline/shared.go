package pipeline

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Sharing is how the runs of this project are copied to and from its mirror. hide removes secrets from JSON. It is false
// if there is no mirror, or history.share is never.
func (p Project) Sharing(records images.Records, hide func([]byte) []byte) (past.Sharing, bool) {
	return past.Sharing{
		Runs: p.Runs(), Records: records, List: p.sharedList(), Lock: p.lockText, Hide: hide,
	}, p.Config.Images.Mirror != "" && p.Config.History.Share != config.ShareNever
}

// sharedList is the list of this cluster's runs in the mirror.
func (p Project) sharedList() string { return p.Config.Images.Mirror + ":recast-history-" + p.Config.Cluster }

// lockText is the text of recast.lock, or of a past lock, if it has that key and no secrets; nil otherwise.
func (p Project) lockText(key string) []byte {
	for _, file := range []string{p.LockFile(), filepath.Join(p.pastLocks(), key+".lock")} {
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

// KnowsPastLocks says whether this machine has a past lock, or a run of another machine.
func (p Project) KnowsPastLocks() bool {
	for _, dir := range []string{p.pastLocks(), p.Runs().Elsewhere} {
		if known, err := os.ReadDir(dir); len(known) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// LearnLock puts a lock of recast.lock's own history among the past locks, unless it is the current one.
func (p Project) LearnLock(text []byte, at time.Time) error {
	lock, err := schematics.ReadLock(p.LockFile())
	if err != nil {
		return err
	}
	return schematics.Learn(p.pastLocks(), text, at, lock)
}

// lockBefore is the lock before another one, for people: of this machine or, if that has none, of the last run elsewhere.
func (p Project) lockBefore(lock schematics.Lock) (before schematics.Lock, found bool) {
	before, found, err := schematics.Previous(p.pastLocks(), lock)
	if found || err != nil {
		return before, found
	}
	for _, l := range p.sharedLocks() {
		if l.Key() != lock.Key() {
			return l, true
		}
	}
	return before, false
}

// sharedLocks are the locks in the copies of other machines' runs, the newest first. They are believed only as far as they prove
// themselves: which extensions a lock hash stands for. What to install is never taken from them.
func (p Project) sharedLocks() (locks []schematics.Lock) {
	for _, text := range p.Runs().Locks() {
		if lock, err := schematics.ParseLock("a shared lock", text); err == nil {
			locks = append(locks, lock)
		}
	}
	return locks
}
