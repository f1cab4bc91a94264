package journal

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/format"
)

// RunInfo is one run as history shows it.
type RunInfo struct {
	ID       string
	Started  time.Time
	Finished time.Time // zero: still running, or killed
	Outcome  string    // as given to Finish
}

// Unfinished says whether the run is still running or was killed.
func (r RunInfo) Unfinished() bool { return r.Finished.IsZero() }

// infoName lacks the suffixes of facts and secrets, so that no key can name it.
const infoName = "RUN"

type infoFile struct {
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
	Outcome  string    `json:"outcome,omitempty"`
}

// NewRunID makes an ID that begins with the minute and ends with two random bytes:
// "20261121-0421-3f2a".
func NewRunID(now time.Time, random io.Reader) (string, error) {
	var tail [2]byte
	if _, err := io.ReadFull(random, tail[:]); err != nil {
		return "", fmt.Errorf("make a run ID: %w", err)
	}
	return now.UTC().Format(runStamp) + hex.EncodeToString(tail[:]), nil
}

const runStamp = "20060102-1504-"

// RunBegan is when a run began, by its ID; zero if the ID does not say.
func RunBegan(id string) time.Time {
	began, err := time.Parse(runStamp, id[:min(len(runStamp), len(id))])
	if err != nil {
		return time.Time{}
	}
	return began
}

// Runs lists the runs in dir, newest first, open or not. A directory that does not exist
// has none; a run that cannot be read is an error.
func Runs(dir string) ([]RunInfo, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: list runs: %w", err)
	}
	var runs []RunInfo
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || checkRun(e.Name()) != nil {
			continue // a lock file, or a run killed during its creation
		}
		info, err := runInfo(filepath.Join(dir, e.Name()), e.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		runs = append(runs, info)
	}
	slices.SortFunc(runs, Newer)
	return runs, errors.Join(errs...)
}

// Newer orders runs by when they started, the newest first. Every list of runs, and every use of the last run, has
// this order: IDs of the same minute say nothing about it.
func Newer(a, b RunInfo) int {
	return cmp.Or(b.Started.Compare(a.Started), strings.Compare(b.ID, a.ID))
}

// Unfinished lists the runs in dir that are still running or were killed, newest first.
func Unfinished(dir string) ([]RunInfo, error) {
	runs, err := Runs(dir)
	return slices.DeleteFunc(runs, func(r RunInfo) bool { return !r.Unfinished() }), err
}

func runInfo(path, id string) (RunInfo, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return RunInfo{}, fmt.Errorf("journal of run %q: %w", id, err)
	}
	info, err := readInfo(root, id)
	return info, errors.Join(err, root.Close())
}

func readInfo(root *os.Root, id string) (RunInfo, error) {
	var f infoFile
	b, err := root.ReadFile(infoName)
	if err == nil {
		err = format.Decode(b, &f)
	}
	if err == nil && f.Started.IsZero() {
		err = errors.New("no start time")
	}
	if err != nil {
		return RunInfo{}, fmt.Errorf("run %q: %s: %w", id, filepath.Join(root.Name(), infoName), reason(err))
	}
	return RunInfo{ID: id, Started: f.Started, Finished: f.Finished, Outcome: f.Outcome}, nil
}

// create creates the run's directory if it is missing. It writes under another name and
// renames, so that an existing run always has its start time.
func (j *Journal) create(parent *os.Root) error {
	if _, err := parent.Lstat(j.run); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b, err := marshal(infoFile{Started: time.Now().UTC()})
	if err != nil {
		return err
	}
	temp := ".new-" + j.run
	if err := errors.Join(parent.RemoveAll(temp), parent.Mkdir(temp, 0o700)); err != nil {
		return err
	}
	if err := fill(parent, temp, b); err != nil {
		return err
	}
	if err := j.sync("write start"); err != nil {
		return err
	}
	if err := parent.Rename(temp, j.run); err != nil {
		return err
	}
	if err := syncDir(parent); err != nil {
		return err
	}
	return j.sync("written start")
}

func fill(parent *os.Root, dir string, info []byte) error {
	root, err := parent.OpenRoot(dir)
	if err != nil {
		return err
	}
	err = writeSynced(root, infoName, info)
	if err == nil {
		err = syncDir(root)
	}
	return errors.Join(err, root.Close())
}

// Remove deletes a finished run and its directory. If the run is open for writing, Remove
// does nothing and the error is of kind fault.Claimed.
func Remove(dir, run string) error {
	return fault.Prefix(fmt.Sprintf("remove run %q", run), remove(dir, run))
}

func remove(dir, run string) error {
	if err := checkRun(run); err != nil {
		return err
	}
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	held, err := lock(parent, run+".lock")
	if err != nil {
		return err
	}
	defer unlock(held)
	info, err := runInfo(dir+"/"+run, run)
	if err != nil {
		return err
	}
	if info.Unfinished() {
		return errors.New("it has not finished")
	}
	// Renamed first: a partly removed directory is not a run. The lock file can go too, since
	// no other run will ever have this ID.
	temp := ".old-" + run
	if err := errors.Join(parent.RemoveAll(temp), parent.Rename(run, temp), syncDir(parent)); err != nil {
		return err
	}
	return errors.Join(parent.RemoveAll(temp), parent.Remove(run+".lock"))
}

// Forget deletes the secrets of these keys from all runs in dir, except runs that a
// process has open for writing. sync is Options.Sync.
func Forget(dir string, keys []string, sync func(string) error) error {
	runs, err := Runs(dir)
	errs := []error{err}
	for _, r := range runs {
		held, err := keysWithSecret(dir, r.ID, keys)
		if err == nil && len(held) > 0 {
			err = forget(dir, r.ID, held, sync)
		}
		if fault.KindOf(err) != fault.Claimed {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// keysWithSecret returns those of the keys that have a secret in the run.
func keysWithSecret(dir, run string, keys []string) (held []string, err error) {
	for _, key := range keys {
		name, err := fileName(key, secretSuffix)
		if err != nil {
			return nil, fmt.Errorf("journal %s: %w", key, err)
		}
		switch _, err := os.Lstat(filepath.Join(dir, run, name)); {
		case err == nil:
			held = append(held, key)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("journal %s: %w", key, err)
		}
	}
	return held, nil
}

func forget(dir, run string, keys []string, sync func(string) error) error {
	j, err := Open(dir, Options{Run: run, Sync: sync})
	if err != nil {
		return err
	}
	for _, key := range keys {
		err = errors.Join(err, j.Delete(key))
	}
	return errors.Join(err, j.Close())
}

// Files reads the files of a run that can be shown to others: its beginning and end, the facts whose keys keep
// accepts, and the files named in others. It never reads secrets.
func Files(dir, run string, keep func(key string) bool, others ...string) (map[string][]byte, error) {
	if err := checkRun(run); err != nil {
		return nil, fmt.Errorf("journal of run %q: %w", run, err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, run))
	if err != nil {
		return nil, fmt.Errorf("journal of run %q: %w", run, err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	files := map[string][]byte{}
	for _, e := range entries {
		if !shown(e.Name(), keep, others) {
			continue
		}
		b, errRead := root.ReadFile(e.Name())
		if errors.Is(errRead, fs.ErrNotExist) {
			continue // deleted, or a log that was rotated, meanwhile
		}
		files[e.Name()], err = b, errors.Join(err, errRead)
	}
	if err != nil {
		return nil, fmt.Errorf("journal of run %q: %w", run, err)
	}
	return files, nil
}

func shown(name string, keep func(key string) bool, others []string) bool {
	key, ok := keyOf(name)
	return name == infoName || slices.Contains(others, name) || ok && strings.HasSuffix(name, factSuffix) && keep(key)
}

// Place makes a run from files that Files has read, and replaces a run that is there. It refuses files that Files
// would not have read, and files without the run's beginning.
func Place(dir, run string, files map[string][]byte, keep func(key string) bool, others ...string) error {
	return fault.Prefix(fmt.Sprintf("journal of run %q", run), place(dir, run, files, keep, others))
}

func place(dir, run string, files map[string][]byte, keep func(key string) bool, others []string) error {
	if err := errors.Join(checkRun(run), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	temp := ".new-" + run
	if err := errors.Join(parent.RemoveAll(temp), parent.Mkdir(temp, 0o700)); err != nil {
		return err
	}
	for name, b := range files {
		if !shown(name, keep, others) {
			return errors.Join(fmt.Errorf("%q is not a part of a run that others see", name), parent.RemoveAll(temp))
		}
		if err := parent.WriteFile(filepath.Join(temp, name), b, 0o600); err != nil {
			return errors.Join(err, parent.RemoveAll(temp))
		}
	}
	if _, err := runInfo(filepath.Join(dir, temp), run); err != nil {
		return errors.Join(err, parent.RemoveAll(temp))
	}
	return errors.Join(parent.RemoveAll(run), parent.Rename(temp, run))
}
