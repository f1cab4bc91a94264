package images

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
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
	each(t, map[string]row{
		"nothing announced": {-1, 1 << 40, mib + slack, "receive x.iso: after ", "see what answers at images.factory"},
		"as much announced": {mib, 1 << 40, mib + slack, "more than 1 MiB, which no image of Talos has", "see what answers at images.factory"},
		"more announced":    {mib + 1, 1 << 40, 0, "receive x.iso: 1 MiB are announced: more than 1 MiB, which no image of Talos has", "see what answers at images.factory"},
		"too little space":  {mib, mib / 2, 0, "x.iso needs 1 MiB, 512 KiB are free", "recast prune --only cache"},
	}, func(t *testing.T, tc row) {
		c := NewCache(t.TempDir())
		c.largest, c.free = mib, func(dir string) (int64, error) {
			if dir != c.dir {
				t.Errorf("requests space for %s", dir)
			}
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

// TestCacheRemembersSums: a file with an unchanged size and time is not hashed
// again, even by another process.
func TestCacheRemembersSums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	iso := must(NewCache(dir).store(strings.NewReader("content"), -1, schematics.BootFile{Name: "x.iso"}, nil))(t)
	file := NewCache(dir).path("x.iso")
	info := must(os.Stat(file))(t)
	look := func(why, want string) {
		t.Helper()
		got, found, err := NewCache(dir).look("x.iso")
		if err != nil || !found || got.SHA256 != hash([]byte(want)) {
			t.Errorf("%s: %+v, %t, %v; want the sum of %q", why, got, found, err, want)
		}
	}
	write := func(content string) {
		t.Helper()
		noError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	write("CONTENT")
	noError(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
	look("same size, same time", "content")
	later := info.ModTime().Add(1)
	noError(t, os.Chtimes(file, later, later))
	look("another time", "CONTENT")
	write("longer content")
	noError(t, os.Chtimes(file, later, later))
	look("another size", "longer content")
	noError(t, os.WriteFile(NewCache(dir).path(sumsFile), []byte("{"), 0o600))
	look("what is remembered is damaged", "longer content")
	if iso.SHA256 != hash([]byte("content")) {
		t.Errorf("stored %+v", iso)
	}
}
