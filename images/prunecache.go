package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// CachedFile is a file of ours in the image cache, or a directory for verifying one.
type CachedFile struct {
	Name      string    `json:"name"`
	SizeBytes int64     `json:"sizeBytes"`
	Changed   time.Time `json:"changed"`
	Partial   bool      `json:"partial,omitempty"` // no image: a build's temporary file, perhaps of a killed one
}

func (f CachedFile) String() string { return f.Name + " in the cache" }

// The names of temporary files of Cache and Verifier: os.CreateTemp and os.MkdirTemp
// put digits for a "*".
var (
	ourPartial = regexp.MustCompile(`^\.(.+\.(?:iso|qcow2))\.\d+\.part$`)
	ourScratch = regexp.MustCompile(`^\.verify-\d+$`)
)

// Files lists our files in the cache, sorted by name. Files with other names, and
// links, are not ours.
func (c *Cache) Files() ([]CachedFile, error) {
	root, err := os.OpenRoot(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the image cache: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list the image cache: %w", err)
	}
	var files []CachedFile
	for _, e := range entries {
		partial := isPartial(e)
		if !partial && !(e.Type().IsRegular() && ourISO.MatchString(e.Name())) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list the image cache: %w", err)
		}
		files = append(files, CachedFile{Name: e.Name(), SizeBytes: sizeBelow(root.FS(), e.Name()), Changed: info.ModTime(), Partial: partial})
	}
	return files, nil
}

func isPartial(e fs.DirEntry) bool {
	if e.IsDir() {
		return ourScratch.MatchString(e.Name())
	}
	m := ourPartial.FindStringSubmatch(e.Name())
	return e.Type().IsRegular() && m != nil && ourISO.MatchString(m[1])
}

// sizeBelow is the size of a file, or of all files in a directory; unreadable ones count as 0.
func sizeBelow(tree fs.FS, name string) (sum int64) {
	_ = fs.WalkDir(tree, name, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// CacheVerdict is the decision about a file in the cache.
type CacheVerdict struct {
	CachedFile
	Goes    string   `json:"goes,omitempty"` // why it goes, if that is not obvious
	Keep    []string `json:"keep,omitempty"` // why it stays; none: it can go
	Removed bool     `json:"removed"`        // it no longer exists
}

// JudgeCache decides for each file whether it can go: for ISOs by the rule of
// JudgeISOs, for leftovers of killed builds by age alone, because another build may
// be using them.
func JudgeCache(files []CachedFile, uses []Use, need Needed, olderThan time.Duration, now time.Time) []CacheVerdict {
	verdicts := []CacheVerdict{}
	for _, f := range files {
		v := CacheVerdict{CachedFile: f}
		switch {
		case !f.Partial:
			v.Keep = keepISO(f.Name, f.Changed, uses, need, olderThan, now)
		case now.Sub(f.Changed) < abandonedAfter:
			v.Keep = []string{"a build may be using it: it is younger than " + shortDuration(abandonedAfter)}
		default:
			v.Goes = "a killed build has left it"
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// CachePruner removes the files of the cache that can go.
type CachePruner struct {
	Cache    *Cache
	Verdicts []CacheVerdict // removed ones are marked
	Write    Write
}

// Steps returns one step for each file that has no reason to stay.
func (p CachePruner) Steps() []step.Step {
	return removals(p.Verdicts, func(v CacheVerdict) []string { return v.Keep }, p.remove)
}

func (p CachePruner) remove(v *CacheVerdict) step.Step {
	return step.Step{
		ID: "delete-cached-" + v.Name, Kind: "delete-cached", Title: "delete " + v.String(), Risk: step.Destructive,
		Skip: func(context.Context) (string, error) {
			_, err := os.Lstat(p.Cache.path(v.Name))
			if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			v.Removed = true
			return "it is gone", nil
		},
		Do: func(ctx context.Context) error {
			return p.Write(ctx, func(context.Context) error { return p.Cache.remove(v.CachedFile) })
		},
	}
}

// remove deletes a file if it is still the one that was found. An os.Root follows no
// link out of the cache.
func (c *Cache) remove(f CachedFile) error {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return fmt.Errorf("open the image cache: %w", err)
	}
	defer root.Close()
	info, err := root.Lstat(f.Name)
	if err != nil {
		return fmt.Errorf("look at %s: %w", f, err)
	}
	if !info.ModTime().Equal(f.Changed) {
		return retryHint(fault.PruneRefused.Refusedf("%s was changed meanwhile: it stays", f))
	}
	return root.RemoveAll(f.Name)
}
