package images

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

// endless is a stream that never ends.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.read += int64(len(p))
	return len(p), nil
}

// slack is how much may be read beyond a bound at once.
const slack = 1 << 16

// TestStoreIsBounded: an ISO's sender can neither fill the disk nor send for ever.
func TestStoreIsBounded(t *testing.T) {
	t.Parallel()
	type row struct {
		announced int64
		free      int64
		read      int64 // of the body, at most
		want      string
		hint      string
	}
	must.Each(t, map[string]row{
		"nothing announced": {-1, 1 << 40, mib + slack, "receive x.iso: after ", "see what answers at images.factory"},
		"as much announced": {mib, 1 << 40, mib + slack, "more than 1 MiB, which no image of Talos has", "see what answers at images.factory"},
		"more announced":    {mib + 1, 1 << 40, 0, "receive x.iso: 1 MiB are announced: more than 1 MiB, which no image of Talos has", "see what answers at images.factory"},
		"too little space":  {mib, mib / 2, 0, "x.iso needs 1 MiB, 512 KiB are free", "recast prune --only cache"},
	}, func(t *testing.T, tc row) {
		c := NewCache(t.TempDir())
		c.largest, c.free = mib, func(dir string) (int64, error) {
			must.Equal(t, "directory whose space is looked at", c.dir, dir)
			return tc.free, nil
		}
		var body endless
		_, err := c.store(&body, tc.announced, schematics.BootFile{Name: "x.iso"}, nil)
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(strings.Join(fault.Hints(err), "; "), tc.hint) {
			t.Errorf("error = %v (%v), %q", err, fault.KindOf(err), fault.Hints(err))
		}
		if body.read > tc.read {
			t.Errorf("%d bytes were read, %d suffice", body.read, tc.read)
		}
		if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
}

// TestStoreTakesTheLargest: a size equal to the bound is not refused.
func TestStoreTakesTheLargest(t *testing.T) {
	t.Parallel()
	c := NewCache(t.TempDir())
	c.largest = mib
	iso, err := c.store(io.LimitReader(&endless{}, mib), mib, schematics.BootFile{Name: "x.iso"}, nil)
	if err != nil || iso.SizeBytes != mib {
		t.Errorf("stored %+v, %v", iso, err)
	}
}

// TestFreeSpace: the real file system has some, and a missing directory is an error.
func TestFreeSpace(t *testing.T) {
	t.Parallel()
	if n, err := freeSpace(t.TempDir()); err != nil || n <= 0 {
		t.Errorf("%d bytes are free, %v", n, err)
	}
	if _, err := freeSpace(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing directory has space")
	}
}

// TestCacheRemembersSums: a file with an unchanged size and time is not hashed again, even by another process.
func TestCacheRemembersSums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	iso := must.Get(NewCache(dir).store(strings.NewReader("content"), -1, schematics.BootFile{Name: "x.iso"}, nil))(t)
	file := NewCache(dir).path("x.iso")
	info := must.Get(os.Stat(file))(t)
	look := func(why, want string) {
		t.Helper()
		got, found, err := NewCache(dir).look("x.iso")
		if err != nil || !found || got.SHA256 != hash([]byte(want)) {
			t.Errorf("%s: %+v, %t, %v; want the sum of %q", why, got, found, err, want)
		}
	}
	write := func(content string) {
		t.Helper()
		must.Do(t, os.WriteFile(file, []byte(content), 0o600))
	}
	write("CONTENT")
	must.Do(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
	look("same size, same time", "content")
	later := info.ModTime().Add(1)
	must.Do(t, os.Chtimes(file, later, later))
	look("another time", "CONTENT")
	write("longer content")
	must.Do(t, os.Chtimes(file, later, later))
	look("another size", "longer content")
	must.Do(t, os.WriteFile(NewCache(dir).path(sumsFile), []byte("{"), 0o600))
	look("what is remembered is damaged", "longer content")
	must.Equal(t, "stored", hash([]byte("content")), iso.SHA256)
}

// cacheDay is the modification time of everything in a fullCache.
var cacheDay = time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)

// fullCache has files of ours, and files that only look like ours or lead out of it, to outside.
func fullCache(t *testing.T) (c *Cache, outside string) {
	t.Helper()
	c, outside = NewCache(filepath.Join(t.TempDir(), "iso")), t.TempDir()
	part := "." + isoOf(buildA) + ".17.part"
	err := os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600)
	for _, dir := range []string{".verify-17/1", ".verify-x", ".verify-", isoOf("cccccccccccc"), ".verify-18.part", "." + isoOf(buildA) + ".18.part"} {
		err = errors.Join(err, os.MkdirAll(c.path(dir), 0o700))
	}
	for _, name := range []string{
		isoOf(buildA), isoOf(buildB), part, ".verify-17/1/uki", "debian.iso", ".debian.iso.1.part", "." + isoOf(buildA) + ".x.part", ".verify-19", "note.txt",
	} {
		err = errors.Join(err, os.WriteFile(c.path(name), []byte("12345"), 0o600))
	}
	for name, to := range map[string]string{
		isoOf("dddddddddddd"): filepath.Join(outside, "precious"), ".verify-20": outside, ".verify-17/out": outside,
		"." + isoOf(buildA) + ".19.part": filepath.Join(outside, "precious"),
	} {
		err = errors.Join(err, os.Symlink(to, c.path(name)))
	}
	for _, name := range []string{isoOf(buildA), isoOf(buildB), part, ".verify-17"} {
		err = errors.Join(err, os.Chtimes(c.path(name), cacheDay, cacheDay))
	}
	must.Do(t, err)
	return c, outside
}

func cachedFile(name string) CachedFile {
	return CachedFile{Name: name, SizeBytes: 5, Changed: cacheDay.Local(), Partial: strings.HasPrefix(name, ".")}
}

func TestCacheFiles(t *testing.T) {
	t.Parallel()
	c, _ := fullCache(t)
	got := must.Get(c.Files())(t)
	want := []CachedFile{cachedFile("." + isoOf(buildA) + ".17.part"), cachedFile(".verify-17"), cachedFile(isoOf(buildA)), cachedFile(isoOf(buildB))}
	must.Equal(t, "our files", want, got)
	must.Equal(t, "of no cache", []CachedFile(nil), must.Get(NewCache(filepath.Join(t.TempDir(), "none")).Files())(t))
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	if _, err := NewCache(file).Files(); err == nil {
		t.Error("a file counts as an empty cache")
	}
}

func TestJudgeCache(t *testing.T) {
	t.Parallel()
	a, scratch, part := cachedFile(isoOf(buildA)), cachedFile(".verify-17"), cachedFile("."+isoOf(buildA)+".17.part")
	const working = "a build may be using it: it is younger than 24h"
	left := "a killed build has left it"
	type row struct {
		file CachedFile
		uses []Use
		need Needed
		old  time.Duration // than what stays
		age  time.Duration
		want CacheVerdict
	}
	must.Each(t, map[string]row{
		"nothing needs it":      {file: a, old: week, age: week, want: CacheVerdict{}},
		"the lock":              {file: a, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it"}}, age: week, want: CacheVerdict{Keep: []string{"recast.lock has it"}}},
		"a build":               {file: a, need: Needed{Builds: map[string]string{buildA + "00": "wk1 was made from it"}}, age: week, want: CacheVerdict{Keep: []string{"wk1 was made from it"}}},
		"a VM":                  {file: a, uses: []Use{{By: "VM 2", Values: []string{"local:iso/" + isoOf(buildA)}}}, age: week, want: CacheVerdict{Keep: []string{"VM 2 refers to it"}}},
		"young":                 {file: a, old: week, age: week - time.Minute, want: CacheVerdict{Keep: []string{"it is younger than 168h"}}},
		"scratch of a build":    {file: scratch, age: 24*time.Hour - time.Second, want: CacheVerdict{Keep: []string{working}}},
		"left scratch":          {file: scratch, old: week, age: 24 * time.Hour, want: CacheVerdict{Goes: left}},
		"a download":            {file: part, age: time.Minute, want: CacheVerdict{Keep: []string{working}}},
		"left, of a locked ISO": {file: part, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it"}}, age: week, want: CacheVerdict{Goes: left}},
	}, func(t *testing.T, tc row) {
		tc.want.CachedFile = tc.file
		got := JudgeCache([]CachedFile{tc.file}, tc.uses, tc.need, tc.old, cacheDay.Add(tc.age))
		must.Equal(t, "result", []CacheVerdict{tc.want}, got)
	})
}

func TestCachePruner(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(c *Cache, guard *error) error
		gone   []string
		fails  string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		"all that can go": {gone: []string{"." + isoOf(buildA) + ".17.part", ".verify-17", isoOf(buildA)}},
		"the claim is lost": {
			change: func(_ *Cache, guard *error) error {
				*guard = fault.As(fault.Claimed, errors.New("lost the claim"))
				return nil
			}, fails: "lost the claim", kind: fault.Claimed,
		},
		"one is at work on again": {
			change: func(c *Cache, _ *error) error { return os.Mkdir(c.path(".verify-17/2"), 0o700) },
			gone:   []string{"." + isoOf(buildA) + ".17.part"},
			fails:  ".verify-17 in the cache was changed meanwhile: it stays", kind: fault.Refused,
		},
		"one leads elsewhere now": {
			change: func(c *Cache, _ *error) error {
				return errors.Join(os.RemoveAll(c.path(".verify-17")), os.Symlink(filepath.Dir(c.dir), c.path(".verify-17")))
			},
			gone:  []string{"." + isoOf(buildA) + ".17.part"},
			fails: "it stays", kind: fault.Refused,
		},
		"one is gone": {
			change: func(c *Cache, _ *error) error { return os.RemoveAll(c.path(".verify-17")) },
			gone:   []string{"." + isoOf(buildA) + ".17.part", ".verify-17", isoOf(buildA)},
		},
	}, func(t *testing.T, tc row) {
		c, outside := fullCache(t)
		files := must.Get(c.Files())(t)
		before := must.Get(os.ReadDir(c.dir))(t)
		need := Needed{Builds: map[string]string{buildB: "wk1 was made from it"}}
		p := CachePruner{Cache: c, Verdicts: JudgeCache(files, nil, need, 0, cacheDay.Add(week))}
		var guard error
		p.Write = unless(&guard)
		if tc.change != nil {
			must.Do(t, tc.change(c, &guard))
		}
		prune(t, p.Steps(), tc.fails, tc.kind)
		var gone, marked []string
		for _, e := range before {
			if _, err := os.Lstat(c.path(e.Name())); err != nil {
				gone = append(gone, e.Name())
			}
		}
		for _, v := range p.Verdicts {
			if v.Removed {
				marked = append(marked, v.Name)
			}
		}
		if diff := cmp.Diff(tc.gone, gone); diff != "" || cmp.Diff(gone, marked) != "" {
			t.Errorf("marked %q; gone (-want +got):\n%s", marked, diff)
		}
		if data, err := os.ReadFile(filepath.Join(outside, "precious")); err != nil || string(data) != "precious" {
			t.Errorf("outside of the cache: %q, %v", data, err)
		}
	})
}

func TestReadProgress(t *testing.T) {
	t.Parallel()
	for note, want := range map[string]struct {
		done, total int64
		rest        string
		ok          bool
	}{
		words.Size(300<<20) + " of " + words.Size(1300<<20):           {300 << 20, 1300 << 20, "300 MiB of 1300 MiB", true},
		words.Size(5<<10) + " of " + words.Size(2<<20) + ", 40 MiB/s": {5 << 10, 2 << 20, "5 KiB of 2 MiB, 40 MiB/s", true},
		"64 MiB, 12 MiB/s":                        {},
		"2 of 3 members":                          {},
		"pods of default, kube-system of 3 nodes": {},
		"beginning again":                         {},
		"0 KiB of 0 KiB":                          {},
		"":                                        {},
		"99999999999999999999 MiB of 99999999999999999999 MiB": {},
	} {
		done, total, rest, ok := ReadProgress(note)
		if done != want.done || total != want.total || rest != want.rest || ok != want.ok {
			t.Errorf("%q: %d of %d, %q, %t", note, done, total, rest, ok)
		}
	}
}
