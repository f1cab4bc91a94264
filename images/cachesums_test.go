package images

import (
	"os"
	"strings"
	"testing"

	"github.com/recast-sh/recast/schematics"
)

// TestCacheRemembersSums: a file with an unchanged size and time is not hashed
// again, even by another process.
func TestCacheRemembersSums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	iso, err := NewCache(dir).store(strings.NewReader("content"), -1, schematics.BootFile{Name: "x.iso"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := NewCache(dir).path("x.iso")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	look := func(why, want string) {
		t.Helper()
		got, found, err := NewCache(dir).look("x.iso")
		if err != nil || !found || got.SHA256 != hash([]byte(want)) {
			t.Errorf("%s: %+v, %t, %v; want the sum of %q", why, got, found, err, want)
		}
	}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("CONTENT")
	if err := os.Chtimes(file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	look("same size, same time", "content")
	later := info.ModTime().Add(1)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	look("another time", "CONTENT")
	write("longer content")
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	look("another size", "longer content")
	if err := os.WriteFile(NewCache(dir).path(sumsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	look("what is remembered is damaged", "longer content")
	if iso.SHA256 != hash([]byte("content")) {
		t.Errorf("stored %+v", iso)
	}
}
