package past

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/schematics"
)

// Files of a run beside its journal.
const (
	lockName   = "recast.lock" // in a record: the lock that the run was started with
	beforeName = "before.lock" // in a record: the lock before that, if known
	digestName = "record"      // in a copy: the digest of its record
)

const (
	// keepShared is how many runs of a cluster a mirror keeps, and a machine copies.
	keepShared = 100
	// maxUnpacked is more than a journal and its log, which is rotated.
	maxUnpacked = 128 << 20
	maxLock     = 1 << 20 // bytes: every command reads them
)

// Sharing copies runs to and from a list in a registry.
type Sharing struct {
	Runs    Runs
	Records images.Records
	List    string // see images.Records
	// Lock is Locks.Text.
	Lock func(key string) []byte
	// Hide removes secrets from JSON.
	Hide func([]byte) []byte
}

// shown says whether history and reports read a fact of a run. Other facts may hold machine configurations.
func shown(key string) bool {
	return slices.Contains([]string{AboutKey, FatesKey, PlanKey, FirstPlanKey, UpgradeKey, RestoreKey}, key) || cluster.IsTookKey(key) || cluster.IsHandsOverKey(key) || cluster.IsHookKey(key)
}

// Share adds what this machine knows of a run to the list, together with the lock that the run was started with and
// the lock before that.
func (s Sharing) Share(ctx context.Context, id string) error {
	files, err := journal.Files(s.Runs.Dir, id, shown, story.LogName, story.OlderLogName)
	if err != nil {
		return err
	}
	for name, b := range files {
		files[name] = s.Hide(b)
	}
	r := images.Record{Written: time.Now(), Labels: map[string]string{"run": id}}
	run, err := part(s.Runs.Dir, id, Options{})
	if err != nil {
		return err
	}
	about := run.About
	if about != nil {
		r.Labels["talos"], r.Labels["host"] = about.Talos, about.By.Host
		for name, key := range map[string]string{lockName: about.Lock, beforeName: about.Before} {
			if text := s.Lock(key); text != nil {
				files[name] = text
			}
		}
	}
	r.Name = id + "/" + partOf(about)
	content, err := packed(files)
	if err != nil {
		return err
	}
	return s.Records.Keep(ctx, s.List, r, content, keepShared)
}

// packed makes a record of files. The output is deterministic.
func packed(files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	t := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name]))}); err != nil {
			return nil, err
		}
		if _, err := t.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err := errors.Join(t.Close(), zipped.Close())
	return b.Bytes(), err
}

// unpacked reads the files of a record. It fails if they take more than most bytes, headers included.
func unpacked(content []byte, most int64) (map[string][]byte, error) {
	zipped, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	files, left := map[string][]byte{}, most
	for t := tar.NewReader(io.LimitReader(zipped, most+1)); ; { // headers count, too: a few zipped bytes can unpack to millions
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if left -= h.Size; left < 0 || h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%q is not a file of a run, or too large", h.Name)
		}
		if files[h.Name], err = io.ReadAll(io.LimitReader(t, h.Size)); err != nil {
			return nil, err
		}
	}
}

// Fetch copies runs of other machines from the list to this machine: the newest runs, up to the number most; 0: all.
// It skips records already copied. If a run can't be copied, it calls warn with the reason and continues.
func (s Sharing) Fetch(ctx context.Context, most int, warn func(string)) error {
	failed := map[string]error{}
	for range 2 { // an active run replaces its record
		clear(failed)
		list, err := s.list(ctx)
		if err != nil {
			return err
		}
		s.forget(list)
		if len(list) > 0 {
			if err := journal.KeepOutOfGit(filepath.Dir(s.Runs.Elsewhere)); err != nil {
				return err // the error would be the same for each run
			}
		}
		if most > 0 {
			list = list[:min(most, len(list))]
		}
		for _, r := range list {
			if err := s.fetch(ctx, r); err != nil {
				failed[r.Name] = err
			}
			if ctx.Err() != nil {
				return fmt.Errorf("read the runs in %s: %w", s.List, ctx.Err())
			}
		}
		if len(failed) == 0 {
			return nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		warn(fmt.Sprintf("run %s in %s can't be read: %v", name, s.List, failed[name]))
	}
	return nil
}

// listWait is how long a registry may take to answer. Without an answer, history shows what is here.
const listWait = 5 * time.Second

func (s Sharing) list(ctx context.Context) ([]images.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	list, err := s.Records.List(ctx, s.List)
	if err != nil {
		return nil, fmt.Errorf("read the runs in %s: %w", s.List, err)
	}
	return list[:min(keepShared, len(list))], nil // recast keeps no more; others may have put more there
}

// forget removes copies that are no longer on the list, if there are more copies than a list keeps.
func (s Sharing) forget(list []images.Record) {
	copies, _ := filepath.Glob(filepath.Join(s.Runs.Elsewhere, "*", "*")) // the pattern is valid
	if len(copies) <= keepShared {
		return
	}
	listed := map[string]bool{}
	for _, r := range list {
		id, at, _ := strings.Cut(r.Name, "/")
		listed[filepath.Join(s.Runs.Elsewhere, at, id)] = true
	}
	for _, dir := range copies {
		if !listed[dir] {
			_ = os.RemoveAll(dir) // on failure, the next Fetch tries again
		}
	}
}

// partPattern keeps a copy below Elsewhere, whatever a registry says.
var partPattern = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

func (s Sharing) fetch(ctx context.Context, r images.Record) error {
	id, at, _ := strings.Cut(r.Name, "/")
	if !partPattern.MatchString(at) {
		return errors.New("its name is not that of a run")
	}
	dir := filepath.Join(s.Runs.Elsewhere, at)
	if s.Runs.partHere(id) == at {
		return os.RemoveAll(filepath.Join(dir, id)) // this machine has the journal itself
	}
	if known, err := os.ReadFile(filepath.Join(dir, id, digestName)); err == nil && string(known) == r.Digest {
		return nil
	}
	content, err := s.Records.Read(ctx, s.List, r)
	if err != nil {
		return err
	}
	files, err := unpacked(content, maxUnpacked)
	if err != nil {
		return err
	}
	files[digestName] = []byte(r.Digest)
	return journal.Place(dir, id, files, shown, story.LogName, story.OlderLogName, lockName, beforeName, digestName)
}

// locks returns the texts of the locks in the copies of other machines' runs, each once, the newest run first. It
// leaves out files that can't be read or are too long for a lock: the texts are only information.
func (r Runs) locks() (texts [][]byte) {
	copies, _ := filepath.Glob(filepath.Join(r.Elsewhere, "*", "*")) // the pattern is valid
	infos, _ := r.List()                                             // if a run can't be read, its locks come last
	place := func(dir string) int {
		at := slices.IndexFunc(infos, func(info journal.RunInfo) bool { return info.ID == filepath.Base(dir) })
		if at < 0 {
			return len(infos)
		}
		return at
	}
	slices.SortFunc(copies, func(a, b string) int {
		return cmp.Or(place(a)-place(b), strings.Compare(filepath.Base(b), filepath.Base(a)))
	})
	for _, dir := range copies {
		for _, name := range []string{lockName, beforeName} {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); err != nil || info.Size() > maxLock {
				continue
			}
			text, err := os.ReadFile(file)
			if err == nil && !slices.ContainsFunc(texts, func(known []byte) bool { return bytes.Equal(known, text) }) {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// firstPart is the directory in Elsewhere for journals of machines that started a run. A run has one journal on each
// machine that worked on it: on the machine that started it, and on machines that continued it (About.Elsewhere).
// Copies from each of the latter are in a directory of their own.
const firstPart = "first"

// partOf returns which part of its run a journal holds.
func partOf(a *About) string {
	if a == nil || !a.Elsewhere {
		return firstPart
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", a.By.Host, a.By.Boot, a.By.PID, a.By.Start))
	return hex.EncodeToString(sum[:6])
}

// dirs returns the directories with journals, this machine's first.
func (r Runs) dirs() ([]string, error) {
	dirs := []string{r.Dir}
	if r.Elsewhere == "" {
		return dirs, nil
	}
	parts, err := os.ReadDir(r.Elsewhere)
	if errors.Is(err, fs.ErrNotExist) {
		return dirs, nil
	}
	if err != nil {
		return dirs, fmt.Errorf("read the runs of other machines: %w", err)
	}
	for _, p := range parts {
		if p.IsDir() {
			dirs = append(dirs, filepath.Join(r.Elsewhere, p.Name()))
		}
	}
	return dirs, nil
}

// partHere returns which part of a run this machine's journal holds; "" if there is no journal here.
func (r Runs) partHere(id string) string {
	j, err := journal.Open(r.Dir, journal.Options{Run: id, ReadOnly: true})
	if err != nil {
		return ""
	}
	defer j.Close()
	about, _ := Fact[About](j, AboutKey) // without a readable description, this machine counts as the one that started the run
	return partOf(about)
}

// join adds what another machine did to finish the run.
func (r *Run) join(p Run) {
	info := joined(journal.RunInfo{Started: r.Started, Finished: r.Finished}, journal.RunInfo{Started: p.Started, Finished: p.Finished, Outcome: "later"})
	if info.Outcome != "" {
		r.Finished, r.Result, r.Error = p.Finished, p.Result, p.Error
	}
	switch {
	case p.About == nil:
	case r.About == nil:
		r.About = p.About
	default:
		about := *r.About
		about.GoneOn = slices.Concat(about.GoneOn, append(slices.Clone(p.About.GoneOn), p.About.By))
		r.About = &about
	}
	if r.Upgrade == nil {
		r.Upgrade = p.Upgrade
	}
	r.Fates = joinedFates(r.fates(p.Fates), p.Fates)
	if r.Plan == nil {
		r.Plan = p.Plan
	}
	r.Took = slices.Concat(r.Took, p.Took)
	r.Hooks = slices.Concat(r.Hooks, p.Hooks)
	r.Problems = slices.Concat(r.Problems, p.Problems)
	r.Dirs = slices.Concat(r.Dirs, p.Dirs)
	r.Restored = r.Restored || p.Restored
}

// fates returns r's results, without the later ones. If a killed run has recorded none, nodes with a recorded
// duration count as done, and other planned nodes as left.
func (r *Run) fates(later *cluster.Fates) *cluster.Fates {
	if r.Fates != nil || later == nil || r.Plan == nil {
		return r.Fates
	}
	f := &cluster.Fates{}
	for _, n := range r.Plan.Work() {
		if slices.ContainsFunc(r.Took, func(t cluster.Took) bool { return t.Node == n.Node }) {
			f.Done = append(f.Done, n.Node)
		} else {
			f.Left = append(f.Left, n.Node)
		}
	}
	return f
}

// joinedFates joins two results. A node that is in both has the result of later.
func joinedFates(earlier, later *cluster.Fates) *cluster.Fates {
	if earlier == nil || later == nil {
		if earlier == nil {
			return later
		}
		return earlier
	}
	again := slices.Concat(later.Done, later.Failed, later.Left)
	join := func(earlier, later []string) []string {
		earlier = slices.DeleteFunc(slices.Clone(earlier), func(node string) bool { return slices.Contains(again, node) })
		all := slices.Concat([]string{}, earlier, later)
		slices.Sort(all)
		return all
	}
	return &cluster.Fates{Done: join(earlier.Done, later.Done), Failed: join(earlier.Failed, later.Failed), Left: join(earlier.Left, later.Left)}
}

// Locks are the locks that a project has had.
type Locks struct {
	Present string // recast.lock
	Dir     string // of the locks that recast lock has replaced
	Runs    Runs   // copies of other machines' runs hold their locks
}

// Known says whether this machine has, or may have, a past lock or a copy of another machine's run.
func (l Locks) Known() bool {
	for _, dir := range []string{l.Dir, l.Runs.Elsewhere} {
		if known, err := os.ReadDir(dir); len(known) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// Learn adds text, the content of recast.lock at an earlier time, to the past locks, unless recast.lock is still the
// same.
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

// Before returns the lock before the given lock, for people: this machine's, or, if it has none, that of the last run
// elsewhere.
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

// Shared returns the locks in the copies of other machines' runs, the newest first. recast trusts them only as far as
// their hashes prove: which extensions a lock hash stands for. It never takes from them what to install.
func (l Locks) Shared() (locks []schematics.Lock) {
	for _, text := range l.Runs.locks() {
		if lock, err := schematics.ParseLock("a shared lock", text); err == nil {
			locks = append(locks, lock)
		}
	}
	return locks
}

// Text returns the text of the lock with a key; nil if there is none, or if the lock holds secrets.
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
