package past

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
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
)

// Files of a run beside its journal.
const (
	lockName   = "recast.lock" // in a record: the lock that the run was started with
	beforeName = "before.lock" // and the one before, if it was known
	digestName = "record"      // in a copy: the digest of its record
)

const (
	// keepShared is how many runs of a cluster a mirror keeps, and a machine copies.
	keepShared = 100
	// maxUnpacked is more than a journal and its log, which is rotated.
	maxUnpacked = 128 << 20
	maxLock     = 1 << 20 // bytes: every command reads them
)

// Sharing copies runs to a list in a registry, and from there.
type Sharing struct {
	Runs    Runs
	Records images.Records
	List    string // see images.Records
	// Lock is Locks.Text.
	Lock func(key string) []byte
	// Hide removes secrets from JSON.
	Hide func([]byte) []byte
}

// shown says whether history and reports read a fact of a run. Others may be of machine configurations.
func shown(key string) bool {
	return slices.Contains([]string{AboutKey, FatesKey, PlanKey, FirstPlanKey, UpgradeKey, RestoreKey}, key) || cluster.IsTookKey(key) || cluster.IsHandsOverKey(key) || cluster.IsHookKey(key)
}

// Share puts what this machine knows of a run on the list, with the lock that the run was started with and the one
// before.
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

// packed makes a record of files. Of the same files it makes the same record.
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

// unpacked reads the files of a record, of most bytes at most with all that is about them.
func unpacked(content []byte, most int64) (map[string][]byte, error) {
	zipped, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	files, left := map[string][]byte{}, most
	for t := tar.NewReader(io.LimitReader(zipped, most+1)); ; { // of headers, too, a few bytes can stand for millions
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

// Fetch copies runs of other machines from the list to this one, the newest first, most of them at most; 0: all.
// What it has copied before it does not read again. Of a run that can't be copied it says why, and goes on.
func (s Sharing) Fetch(ctx context.Context, most int, warn func(string)) error {
	failed := map[string]error{}
	for range 2 { // a run that goes on replaces its record
		clear(failed)
		list, err := s.list(ctx)
		if err != nil {
			return err
		}
		s.forget(list)
		if len(list) > 0 {
			if err := journal.KeepOutOfGit(filepath.Dir(s.Runs.Elsewhere)); err != nil {
				return err // as it would be for each
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

// listWait is how long a registry may take to answer: without it, history is what is here.
const listWait = 5 * time.Second

func (s Sharing) list(ctx context.Context) ([]images.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	list, err := s.Records.List(ctx, s.List)
	if err != nil {
		return nil, fmt.Errorf("read the runs in %s: %w", s.List, err)
	}
	return list[:min(keepShared, len(list))], nil // of recast; others may have put more there
}

// forget removes copies that are on the list no more, if there are more than a list keeps.
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
			_ = os.RemoveAll(dir) // next time
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

// locks are the texts of the locks in the copies of other machines' runs, each once, the newest run first. What can't be read
// or is too long for a lock is not among them: they are only information.
func (r Runs) locks() (texts [][]byte) {
	copies, _ := filepath.Glob(filepath.Join(r.Elsewhere, "*", "*")) // the pattern is valid
	infos, _ := r.List()                                             // of a run that can't be read, the locks come last
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
