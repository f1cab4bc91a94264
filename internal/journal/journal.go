// Package journal keeps the facts of a run that can't be observed later: each is put into
// a [Journal], and is on disk, synced, before the step that destroys its source.
package journal

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/format"
)

// Journal is the facts of one run, one file each. Its methods may be called
// concurrently; of two writes to the same key one wins.
type Journal struct {
	run      string
	root     *os.Root // the run's own directory
	lock     *os.File // nil: read only
	sync     func(point string) error
	tempName atomic.Int64
}

type Options struct {
	// Run is the ID of the run, new or not.
	Run string
	// ReadOnly opens an existing run without locking it, even while another process writes it.
	ReadOnly bool
	// Sync is called right before a change becomes durable ("write <key>", "delete <key>") and right after ("written
	// <key>", "deleted <key>"). An error before the change prevents the change; an error after it is reported,
	// although the change is made. May be nil.
	Sync func(point string) error
}

const (
	factSuffix   = ".json"
	secretSuffix = ".secret"
	tempPrefix   = ".tmp-"

	// redacted is the JSON of a secret: a fact that contains it is incomplete.
	redacted = "[redacted]"
)

// Open opens the journal of a run in dir/<run> and creates both if they are missing. dir
// is inside the state directory, which is kept out of git. While another process, or
// another Journal, has the run open for writing, the error is of kind fault.Claimed.
func Open(dir string, o Options) (*Journal, error) {
	j, err := open(dir, o)
	return j, fault.Prefix(fmt.Sprintf("journal of run %q", o.Run), err)
}

func open(dir string, o Options) (*Journal, error) {
	if err := checkRun(o.Run); err != nil {
		return nil, err
	}
	j := &Journal{run: o.Run, sync: o.Sync}
	if j.sync == nil {
		j.sync = func(string) error { return nil }
	}
	if !o.ReadOnly {
		if err := j.claim(dir); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, o.Run)
	info, err := os.Lstat(path)
	if err == nil {
		err = CheckOwner(path, info)
	}
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(path)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	j.root = root
	if !o.ReadOnly {
		if err := j.removeTemps(); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	if _, err := j.Info(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func (j *Journal) claim(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := KeepOutOfGit(filepath.Dir(dir)); err != nil {
		return err
	}
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	j.lock, err = lock(parent, j.run+".lock")
	if err != nil {
		return err
	}
	if err := j.create(parent); err != nil {
		return errors.Join(err, j.Close())
	}
	return nil
}

// Close releases the run. It does not finish it.
func (j *Journal) Close() error {
	var errs []error
	if j.root != nil {
		errs = append(errs, j.root.Close())
	}
	if j.lock != nil {
		errs = append(errs, unlock(j.lock))
	}
	return errors.Join(errs...)
}

func (j *Journal) Run() string { return j.run }

func (j *Journal) Dir() string { return j.root.Name() }

// Put stores a fact as JSON. It refuses a value that contains a redacted secret: use PutSecret.
func (j *Journal) Put(key string, v any) error {
	b, err := marshal(v)
	if err != nil {
		return fmt.Errorf("journal %s: %w", key, err)
	}
	return j.put(key, factSuffix, b)
}

// PutSecret stores bytes unchanged.
func (j *Journal) PutSecret(key string, b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("journal %s: the secret is empty", key)
	}
	return j.put(key, secretSuffix, b)
}

func marshal(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err
	}
	if bytes.Contains(b, []byte(`"`+redacted+`"`)) { // as a whole string: an error may quote it
		return nil, errors.New("contains a secret, which is not stored as a fact")
	}
	return append(b, '\n'), nil
}

func (j *Journal) put(key, suffix string, b []byte) error {
	name, err := fileName(key, suffix)
	if err == nil {
		err = j.write(key, name, b)
	}
	return fault.Prefix("journal "+key, err)
}

// Get reads the fact of a key into v and says whether there is one. A file that does not
// hold exactly one such value is an error.
func (j *Journal) Get(key string, v any) (bool, error) {
	b, found, err := j.read(key, factSuffix)
	if err != nil || !found {
		return false, err
	}
	if err := format.Decode(b, v); err != nil {
		return false, fmt.Errorf("journal %s: %s: %w", key, j.path(key, factSuffix), err)
	}
	return true, nil
}

// ErrEmpty is the error of Secret for an empty file.
var ErrEmpty = errors.New("is empty")

// Secret reads the secret of a key, and says whether there is one.
func (j *Journal) Secret(key string) ([]byte, bool, error) {
	b, found, err := j.read(key, secretSuffix)
	if err == nil && found && len(b) == 0 {
		err = fmt.Errorf("journal %s: %s %w", key, j.path(key, secretSuffix), ErrEmpty)
	}
	if err != nil || !found {
		return nil, false, err
	}
	return b, true, nil
}

func (j *Journal) read(key, suffix string) (b []byte, found bool, err error) {
	name, err := fileName(key, suffix)
	if err == nil {
		b, err = j.root.ReadFile(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("journal %s: %s: %w", key, j.path(key, suffix), reason(err))
	}
	return b, true, nil
}

// reason is err without the path, which is relative to the journal's directory.
func reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

func (j *Journal) path(key, suffix string) string {
	name, err := fileName(key, suffix)
	if err != nil {
		return key
	}
	return filepath.Join(j.root.Name(), name)
}

// Keys lists the keys that have a fact or a secret and start with prefix, sorted.
func (j *Journal) Keys(prefix string) ([]string, error) {
	entries, err := fs.ReadDir(j.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("journal: list keys: %w", err)
	}
	var keys []string
	for _, e := range entries {
		if key, ok := keyOf(e.Name()); ok && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Delete removes the fact and the secret of a key, if they exist.
func (j *Journal) Delete(key string) error {
	for _, suffix := range []string{factSuffix, secretSuffix} {
		name, err := fileName(key, suffix)
		if err == nil {
			err = j.remove(key, name)
		}
		if err != nil {
			return fmt.Errorf("journal %s: %w", key, err)
		}
	}
	return nil
}

// Info says when the run began and how it ended.
func (j *Journal) Info() (RunInfo, error) { return readInfo(j.root, j.run) }

// Finish marks the run as ended, in words such as "done" or "failed: …". A run
// that was finished and is opened again may be finished again.
func (j *Journal) Finish(outcome string) error {
	info, err := j.Info()
	if err != nil {
		return err
	}
	return j.putInfo("finish", infoFile{Started: info.Started, Finished: time.Now().UTC(), Outcome: outcome})
}

// Resume marks a finished run as unfinished again.
func (j *Journal) Resume() error {
	info, err := j.Info()
	if err != nil || info.Unfinished() {
		return err
	}
	return j.putInfo("resume", infoFile{Started: info.Started})
}

func (j *Journal) putInfo(point string, f infoFile) error {
	b, err := marshal(f)
	if err == nil {
		err = j.write(point, infoName, b)
	}
	return fault.Prefix(fmt.Sprintf("journal: %s run %q", point, j.run), err)
}

// A key is lower-case words joined by slashes: "node/wk1/vm-config". File names have "~",
// which no key contains, in place of the slash.
var (
	keyPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$`)
	runPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)
)

const (
	separator = "~"
	maxName   = 200 // of at most 255 bytes in a file name
)

func checkRun(id string) error {
	if !runPattern.MatchString(id) || len(id) > maxName {
		return errors.New("a run ID is made of a-z, 0-9 and dashes")
	}
	return nil
}

func fileName(key, suffix string) (string, error) {
	if !keyPattern.MatchString(key) || len(key) > maxName {
		return "", fmt.Errorf("%q is not a valid key: words of a-z, 0-9, dot, dash and underscore, joined by slashes, %d bytes at most", key, maxName)
	}
	return strings.ReplaceAll(key, "/", separator) + suffix, nil
}

func keyOf(name string) (key string, ok bool) {
	stem, ok := strings.CutSuffix(name, factSuffix)
	if !ok {
		stem, ok = strings.CutSuffix(name, secretSuffix)
	}
	key = strings.ReplaceAll(stem, separator, "/")
	return key, ok && keyPattern.MatchString(key)
}

var errReadOnly = errors.New("opened read-only")

// write replaces the content of a file: after a crash at any point the file holds either the old content or all of b.
func (j *Journal) write(key, name string, b []byte) error {
	if j.lock == nil {
		return errReadOnly
	}
	temp := tempPrefix + strconv.FormatInt(j.tempName.Add(1), 10)
	if err := writeSynced(j.root, temp, b); err != nil {
		return errors.Join(err, j.root.Remove(temp))
	}
	if err := j.sync("write " + key); err != nil {
		return errors.Join(err, j.root.Remove(temp))
	}
	if err := j.root.Rename(temp, name); err != nil {
		return errors.Join(err, j.root.Remove(temp))
	}
	if err := syncDir(j.root); err != nil {
		return err
	}
	return j.sync("written " + key)
}

func (j *Journal) remove(key, name string) error {
	if j.lock == nil {
		return errReadOnly
	}
	if _, err := j.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := j.sync("delete " + key); err != nil {
		return err
	}
	if err := j.root.Remove(name); err != nil {
		return err
	}
	if err := syncDir(j.root); err != nil {
		return err
	}
	return j.sync("deleted " + key)
}

// removeTemps removes the temporary files of a killed process.
func (j *Journal) removeTemps() error {
	entries, err := fs.ReadDir(j.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := j.root.Remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeSynced(root *os.Root, name string, b []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes renames and removals in root durable.
func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(fault.Prefix("sync directory", d.Sync()), d.Close())
}

// CheckPrivate refuses a state directory if another user could have created or could change it, or anything in it:
// machine configurations are read from it and written to it. A missing directory is fine.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = CheckOwner(dir, info)
	}
	if err == nil && !info.IsDir() {
		err = fault.WithHint(fault.Refusedf("%s is not a directory", dir), "move it: recast creates a directory of that name")
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	const depth = 3 // down to the files of a run; the files that an imager's container leaves are deeper
	return errors.Join(checkOwnersBelow(root, ".", depth), root.Close())
}

func checkOwnersBelow(root *os.Root, name string, depth int) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(name, e.Name())
		info, err := root.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another run has just removed it
		}
		if err == nil {
			err = CheckOwner(filepath.Join(root.Name(), path), info)
		}
		if err == nil && info.IsDir() && depth > 1 {
			err = checkOwnersBelow(root, path, depth-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckOwner refuses a directory or file, as os.Lstat sees it, that another user controls.
func CheckOwner(path string, info fs.FileInfo) error {
	switch stat, known := info.Sys().(*syscall.Stat_t); {
	case info.Mode()&fs.ModeSymlink != 0:
		return fault.WithHint(fault.Refusedf("%s is a symbolic link: another user may control the files behind it", path),
			"if the link is yours, replace it with its target; otherwise remove it: rm %s", path)
	case !info.IsDir() && !info.Mode().IsRegular():
		return fault.WithHint(fault.Refusedf("%s is neither a file nor a directory", path), "recast does not create such files; remove it: rm %s", path)
	case known && int(stat.Uid) != os.Geteuid():
		return fault.WithHint(fault.Refusedf("%s belongs to user %d, and recast runs as user %d: machine configurations are kept there", path, stat.Uid, os.Geteuid()),
			"run recast as that user, or inspect it and take ownership: sudo chown -R %d %s", os.Geteuid(), path)
	case info.Mode().Perm()&0o022 != 0:
		return fault.WithHint(fault.Refusedf("other users may write to %s (mode %04o): machine configurations are kept there", path, info.Mode().Perm()),
			"inspect its content, then: chmod -R go-w %s", path)
	}
	return nil
}

// lock takes an exclusive lock on a file; it ends with the process at the latest. The file
// stays: if it were removed, two processes could lock two files of the same name.
func lock(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fault.As(fault.Claimed, errors.New("another process has it open")), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// unlock releases the lock. Closing the file is not enough: a child process inherits it
// until its exec, and the lock lasts while any process has the file open.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// KeepOutOfGit creates a directory for state if it is missing, and a .gitignore that excludes all of it: it holds
// machine configurations. It keeps an existing .gitignore that is not empty.
func KeepOutOfGit(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep %s out of git: %w", dir, err)
	}
	file := filepath.Join(dir, ".gitignore")
	info, err := os.Lstat(file)
	if err == nil && info.Size() > 0 {
		return nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(file, []byte("*\n"), 0o600)
	}
	return fault.Prefix("keep "+dir+" out of git", err)
}

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

// NewRunID makes an ID that begins with the minute and ends with two random bytes: "20261121-0421-3f2a".
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
	began, _ := time.Parse(runStamp, id[:min(len(runStamp), len(id))])
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
func Remove(dir, run string) (err error) {
	defer func() { err = fault.Prefix(fmt.Sprintf("remove run %q", run), err) }()
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
	return files, fault.Prefix(fmt.Sprintf("journal of run %q", run), err)
}

func shown(name string, keep func(key string) bool, others []string) bool {
	key, ok := keyOf(name)
	return name == infoName || slices.Contains(others, name) || ok && strings.HasSuffix(name, factSuffix) && keep(key)
}

// Place makes a run from files that Files has read, and replaces a run that is there. It refuses files that Files
// would not have read, and files without the run's beginning.
func Place(dir, run string, files map[string][]byte, keep func(key string) bool, others ...string) (err error) {
	defer func() { err = fault.Prefix(fmt.Sprintf("journal of run %q", run), err) }()
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
