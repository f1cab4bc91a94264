package bootimage_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/bootimage"
)

// TestRealSquashfs compares a directory with mksquashfs' image of it, in the known forms.
func TestRealSquashfs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: makes file systems of thousands of files")
	}
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		t.Skip("mksquashfs is not installed")
	}
	dir := filepath.Join(t.TempDir(), "tree")
	want := manyFiles(t, dir)
	tests := map[string]string{
		"as imager does":     "-comp zstd -Xcompression-level 18",
		"before Talos 1.8":   "-comp xz -Xdict-size 100%",
		"gzip":               "-comp gzip",
		"large blocks":       "-comp zstd -b 1M",
		"small blocks":       "-comp gzip -b 4096",
		"no fragments":       "-comp zstd -no-fragments",
		"all in fragments":   "-comp zstd -always-use-fragments",
		"tables as they are": "-comp zstd -noI -noId -noD -noF",
		"to be exported not": "-comp zstd -no-exports -no-xattrs",
	}
	for name, options := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "0.sqsh")
			cmd := exec.CommandContext(t.Context(), "mksquashfs", append([]string{dir, out, "-all-root", "-noappend", "-no-progress", "-quiet"}, strings.Fields(options)...)...)
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			image := must(os.ReadFile(out))(t)
			added := cpio(entry{name: "0.sqsh", content: string(image)}, entry{name: "extensions.yaml", content: oneLayer})
			got := must(read(t, packed(t, cpio(entry{name: "init"})), packed(t, added)))(t)
			if diff := cmp.Diff(want, got.Extensions[0].Files); diff != "" {
				t.Errorf("files (-want +got):\n%.2000s", diff)
			}
		})
	}
}

// manyFiles fills a directory so that its tables need several blocks.
func manyFiles(t *testing.T, dir string) bootimage.Tree {
	t.Helper()
	tree := bootimage.Tree{}
	random := rand.New(rand.NewPCG(1, 2))
	add := func(name, content string, mode fs.FileMode) {
		path := filepath.Join(dir, name)
		noError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)))
		tree["/"+name] = file(mode, content)
	}
	for n := range 2500 {
		name := fmt.Sprintf("usr/lib/firmware/vendor%d/%s-%d", n%7, strings.Repeat("long-name", 1+n%9), n)
		add(name, strings.Repeat(string(rune('a'+n%26)), random.IntN(9000)), []fs.FileMode{0o644, 0o755, 0o755 | fs.ModeSetuid}[n%3])
	}
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	add("usr/lib/noise", string(noise), 0o644)
	add("usr/lib/exact", string(noise[:1<<20]), 0o644)
	add("usr/lib/zeros", strings.Repeat("\x00", 2<<20)+"x", 0o644)
	add("usr/lib/none", "", 0o644)
	noError(t, os.Symlink("../lib/"+strings.Repeat("x", 200), filepath.Join(dir, "usr/link")))
	tree["/usr/link"] = link("../lib/" + strings.Repeat("x", 200))
	return tree
}
