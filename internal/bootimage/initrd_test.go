package bootimage_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/sim/must"
)

func read(t testing.TB, parts ...[]byte) (bootimage.Initrd, error) {
	t.Helper()
	return bootimage.ReadInitrd(bytes.NewReader(join(parts...)), t.TempDir())
}

func TestInitrdMembers(t *testing.T) {
	t.Parallel()
	base := packed(t, cpio(entry{name: "init", content: "init"}))
	a, b := entry{name: "a", content: "one"}, entry{name: "b/c", content: "two"}
	loose := bootimage.Tree{"/a": file(0o644, "one"), "/b/c": file(0o644, "two")}
	type row struct {
		parts [][]byte
		want  bootimage.Tree
	}
	must.Each(t, map[string]row{
		"Talos' own part alone":       {[][]byte{base}, bootimage.Tree{}},
		"one member":                  {[][]byte{base, packed(t, cpio(a, b))}, loose},
		"two members":                 {[][]byte{base, packed(t, cpio(a)), packed(t, cpio(b))}, loose},
		"zeros between":               {[][]byte{base, make([]byte, 1021), packed(t, cpio(a, b)), make([]byte, 3)}, loose},
		"two archives in a member":    {[][]byte{base, packed(t, join(cpio(a), make([]byte, 512), cpio(b), make([]byte, 7)))}, loose},
		"not compressed, before":      {[][]byte{cpio(a), make([]byte, 512), base, packed(t, cpio(b))}, loose},
		"not compressed, behind":      {[][]byte{base, make([]byte, -len(base)&3), cpio(a), cpio(b)}, loose},
		"gzip":                        {[][]byte{base, gzipped(t, cpio(a)), gzipped(t, cpio(b))}, loose},
		"names as find has them":      {[][]byte{base, packed(t, cpio(entry{name: ".", mode: 0o40755}, entry{name: "./a", content: "one"}, entry{name: "/b/c", content: "two"}))}, loose},
		"a link without any content":  {[][]byte{base, packed(t, cpio(entry{name: "a", links: 2, inode: 7}, entry{name: "b", links: 2, inode: 7}))}, bootimage.Tree{"/a": file(0o644, ""), "/b": file(0o644, "")}},
		"links, the content at last":  {[][]byte{base, packed(t, cpio(entry{name: "a", links: 2, inode: 7}, entry{name: "b", links: 2, inode: 7, content: "x"}))}, bootimage.Tree{"/a": file(0o644, "x"), "/b": file(0o644, "x")}},
		"modes":                       {[][]byte{base, packed(t, cpio(entry{name: "a", mode: 0o104755}))}, bootimage.Tree{"/a": file(0o755|fs.ModeSetuid, "")}},
		"a link out of the directory": {[][]byte{base, packed(t, cpio(entry{name: "a", mode: 0o120777, content: "../../b"}))}, bootimage.Tree{"/a": link("../../b")}},
	}, func(t *testing.T, tt row) {
		got := must.Get(read(t, tt.parts...))(t)
		must.Equal(t, "loose files", tt.want, got.Loose)
		must.Equal(t, "base", file(0, string(base)).SHA256, got.BaseSHA256)
	})
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	must.Get(w.Write(b))(t)
	must.Do(t, w.Close())
	return out.Bytes()
}

const oneLayer = "layers:\n  - image: 0.sqsh\n    metadata: {name: x, version: v1}\n"

func TestInitrdRefused(t *testing.T) {
	t.Parallel()
	base := packed(t, cpio(entry{name: "init", content: "init"}))
	image := string(golden(t, "selinux.sqsh"))
	sqsh, config := entry{name: "0.sqsh", content: image}, entry{name: "extensions.yaml", content: oneLayer}
	type row struct {
		added []byte
		want  string
	}
	must.Each(t, map[string]row{
		"a device":                   {cpio(entry{name: "dev/sda", mode: 0o60600}), "/dev/sda is neither"},
		"a path out of it":           {cpio(entry{name: "../etc/passwd"}), "leads out"},
		"a path out of it, later":    {cpio(entry{name: "a/../../b"}), "leads out"},
		"a file twice":               {cpio(entry{name: "a"}, entry{name: "./a"}), "/a occurs twice"},
		"a directory with content":   {cpio(entry{name: "a", mode: 0o40755, content: "x"}), "directory with content"},
		"extensions.yaml twice":      {cpio(sqsh, config, config), "extensions.yaml occurs twice"},
		"extensions.yaml is no YAML": {cpio(sqsh, entry{name: "extensions.yaml", content: "{"}), "/extensions.yaml"},
		"an extension unlisted":      {cpio(sqsh), "0.sqsh belongs to no extension"},
		"Talos' root once more":      {cpio(sqsh, config, entry{name: "rootfs.sqsh", content: image}), "rootfs.sqsh belongs to no extension"},
		"an extension missing":       {cpio(config), `no image "0.sqsh"`},
		"an image for two":           {cpio(sqsh, entry{name: "extensions.yaml", content: oneLayer + strings.TrimPrefix(oneLayer, "layers:\n")}), "more than one extension"},
		"an image twice":             {cpio(sqsh, sqsh, config), "0.sqsh occurs twice"},
		"no squashfs":                {cpio(entry{name: "0.sqsh", content: strings.Repeat("x", 500)}, config), "0.sqsh: no squashfs"},
		"a squashfs cut short":       {cpio(entry{name: "0.sqsh", content: image[:300]}, config), "0.sqsh: "},
		"a capability":               {cpio(entry{name: "0.sqsh", content: string(golden(t, "capability.sqsh"))}, config), `0.sqsh: extended attributes: "capability"`},
		"an attribute of overlayfs":  {cpio(entry{name: "0.sqsh", content: string(golden(t, "overlay.sqsh"))}, config), `0.sqsh: extended attributes: "overlay.opaque"`},
		"no archive":                 {bytes.Repeat([]byte("text in its place"), 10), "not a cpio header"},
		"an archive without an end":  {bytes.Split(cpio(sqsh), []byte(trailer))[0], "unexpected EOF"},
		"a number that is none":      {bytes.Replace(cpio(sqsh), []byte("000081a4"), []byte("0000 1a4"), 1), "is not a number"},
		"a name too short":           {bytes.Replace(cpio(sqsh), []byte("0000000700000000"), []byte("0000000600000000"), 1), "wrong length"},
		"a checksum archive":         {bytes.Replace(cpio(sqsh), []byte("070701"), []byte("070702"), 1), "not a cpio header"},
	}, func(t *testing.T, tt row) {
		_, err := read(t, base, packed(t, tt.added))
		requireRefused(t, err, "initramfs: ", tt.want)
	})
}

func TestInitrdSequenceRefused(t *testing.T) {
	t.Parallel()
	base := packed(t, cpio(entry{name: "init", content: "init"}))
	type row struct {
		b    []byte
		want string
	}
	must.Each(t, map[string]row{
		"nothing":                    {nil, "not a compressed archive"},
		"nothing compressed":         {cpio(entry{name: "a"}), "not a compressed archive"},
		"text":                       {join(base, []byte("text")), "neither a cpio archive"},
		"a skippable frame":          {join(base, []byte("\x50\x2a\x4d\x18\x00\x00\x00\x00")), "neither a cpio archive"},
		"an archive at an odd place": {join(base, make([]byte, -len(base)&3), []byte{0}, cpio(entry{name: "a"})), "neither a cpio archive"},
		"an archive in two frames":   {join(base, packed(t, cpio(entry{name: "a"})[:50]), packed(t, cpio(entry{name: "a"})[50:])), "unexpected EOF"},
		"lz4":                        {join(base, []byte("\x02\x21\x4c\x18rest")), "neither a cpio archive"},
	}, func(t *testing.T, tt row) {
		_, err := read(t, tt.b)
		requireRefused(t, err, "initramfs: ", tt.want)
	})
}

// TestInitrdDamage changes and cuts real ones: what follows Talos' own part is covered by checksums or refused.
func TestInitrdDamage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ base, magic string }{
		"initramfs.zst": {"base.zst", "\x28\xb5\x2f\xfd"}, "initramfs.xz": {"base.xz", "\xfd7zXZ\x00"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := golden(t, name)
			first := bytes.Index(b, []byte(tt.magic))
			added := first + 1 + bytes.Index(b[first+1:], []byte(tt.magic))
			step := 97
			if testing.Short() {
				step = 1499
			}
			for i := added; i < len(b); i += step {
				bad := bytes.Clone(b)
				bad[i] ^= 0x20
				if _, err := read(t, bad); !errors.Is(err, bootimage.ErrFormat) {
					t.Errorf("byte %d changed: err = %v", i, err)
				}
				if _, err := read(t, b[:i]); i > added && !errors.Is(err, bootimage.ErrFormat) {
					t.Errorf("cut to %d bytes: err = %v", i, err)
				}
			}
			bad := bytes.Clone(b)
			bad[added-20] ^= 1
			if got, err := read(t, bad); err == nil && got.BaseSHA256 == baseSum(t, tt.base) {
				t.Error("a change of Talos' own part is not detected")
			}
		})
	}
}

// TestBaseDamage changes Talos' own part, which is unpacked only for Contents.
func TestBaseDamage(t *testing.T) {
	t.Parallel()
	whole := func(b []byte) (bootimage.Initrd, error) {
		return bootimage.ReadInitrdContents(bytes.NewReader(b), t.TempDir(), func(string, string, io.Reader) error { return nil })
	}
	for name, base := range map[string]string{"initramfs.zst": "base.zst", "initramfs.xz": "base.xz", "initramfs.gz": "base.zst"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := golden(t, name)
			got := must.Get(whole(b))(t)
			want := wantInitrd()
			want.BaseSHA256 = baseSum(t, base)
			must.Equal(t, "initramfs", want, got)
		})
	}
	entries := []entry{{name: ".", mode: 0o40755}, {name: "./init", content: "init"}, {name: "rootfs.sqsh", content: strings.Repeat("one two three ", 300)}}
	plain := cpio(entries...)
	base := packed(t, plain)
	must.Get(whole(base))(t)
	harmless := 0 // bits without meaning: the unpacked content is the same
	for i := range base {
		bad := bytes.Clone(base)
		bad[i] ^= 0x40
		if _, err := whole(bad); err == nil && bytes.Equal(unpacked(t, bad), plain) {
			harmless++
		} else if !errors.Is(err, bootimage.ErrFormat) {
			t.Errorf("byte %d changed: err = %v", i, err)
		}
	}
	must.Hold(t, harmless <= len(base)/10, "%d of %d changes were harmless", harmless, len(base))
	for name, tt := range map[string]struct {
		base []byte
		want string
	}{
		"no init":           {cpio(entries[2]), "no init"},
		"no archive":        {nil, "no init"},
		"cut short":         {cpio(entries...)[:300], "unexpected EOF"},
		"something else":    {bytes.Repeat([]byte("machined"), 20), "not a cpio header"},
		"more behind it":    {join(cpio(entries...), bytes.Repeat([]byte("machined"), 20)), "not a cpio header"},
		"a file of no size": {bytes.Replace(cpio(entries...), []byte("00000004"), []byte("0000000x"), 1), "is not a number"},
	} {
		_, err := whole(packed(t, tt.base))
		t.Run(name, func(t *testing.T) { requireRefused(t, err, "initramfs: ", tt.want) })
	}
}

// TestErrorsOfTheSource are not attributed to the image.
func TestErrorsOfTheSource(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	b := golden(t, "initramfs.zst")
	for _, n := range []int{0, 100, 1000, len(b) - 1} {
		_, err := bootimage.ReadInitrd(io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(broken)), t.TempDir())
		must.Hold(t, errors.Is(err, broken) && !errors.Is(err, bootimage.ErrFormat), "behind %d bytes: err = %v", n, err)
	}
	_, err := bootimage.ReadExtension(iotest.ErrReader(broken))
	must.Hold(t, errors.Is(err, broken) && !errors.Is(err, bootimage.ErrFormat), "extension: err = %v", err)
	for name, open := range map[string]func(io.ReaderAt) error{
		"UKI": func(r io.ReaderAt) error { _, err := bootimage.OpenUKI(r, 1<<20); return err },
		"ISO": func(r io.ReaderAt) error { _, err := bootimage.OpenISO(r, 1<<20); return err },
	} {
		if err := open(failing{broken}); !errors.Is(err, broken) || errors.Is(err, bootimage.ErrFormat) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// TestScratch: a squashfs that is too large for memory goes into the directory, and only there.
func TestScratch(t *testing.T) {
	t.Parallel()
	image := string(golden(t, "selinux.sqsh")) + strings.Repeat("\x00", 2<<20)
	b := join(packed(t, cpio(entry{name: "init"})), packed(t, cpio(entry{name: "0.sqsh", content: image}, entry{name: "extensions.yaml", content: oneLayer})))
	scratch := t.TempDir()
	got := must.Get(bootimage.ReadInitrd(bytes.NewReader(b), scratch))(t)
	want := []bootimage.Extension{{Image: "0.sqsh", Name: "x", Version: "v1", Files: bootimage.Tree{"/usr/local/bin/tool": file(0o644, "x\n")}}}
	must.Equal(t, "extensions", want, got.Extensions)
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	_, err := bootimage.ReadInitrd(bytes.NewReader(b), scratch+"/missing")
	must.Hold(t, errors.Is(err, fs.ErrNotExist) && !errors.Is(err, bootimage.ErrFormat),
		"without the directory: err = %v", err)
}

// TestInitrdBombs: a few KiB that would take hundreds of MiB of memory, or hours.
func TestInitrdBombs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: makes archives of 100 MB")
	}
	base := packed(t, cpio(entry{name: "init", content: "init"}))
	many := func(n int, make func(i int) entry) []byte {
		list := []entry{}
		for i := range n {
			list = append(list, make(i))
		}
		return packed(t, cpio(list...))
	}
	long := strings.Repeat("long/", 800)
	for name, tt := range map[string]struct {
		added []byte
		want  string
	}{
		"long names":     {many(9000, func(i int) entry { return entry{name: fmt.Sprint(long, i)} }), "names and links of more than"},
		"long links":     {many(9000, func(i int) entry { return entry{name: fmt.Sprint(i), mode: 0o120777, content: long} }), "names and links of more than"},
		"no files":       {many(100_001, func(int) entry { return entry{name: "d", mode: 0o40755} }), "too many files"},
		"too many files": {many(100_001, func(i int) entry { return entry{name: fmt.Sprint(i)} }), "too many files"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, base, tt.added)
			must.Hold(t, errors.Is(err, bootimage.ErrFormat) && strings.Contains(fmt.Sprint(err), tt.want),
				"err = %.300v, want %q", err, tt.want)
		})
	}
}

const manifest = "version: v1alpha1\nmetadata:\n  name: tools\n  version: v1.0.0\n  author: Somebody\n  description: Some tools.\n" +
	"  compatibility:\n    talos:\n      version: '>= v1.5.0'\n  extraInfo: more\n"

// tarred packs headers in order; Linkname is the content of a regular file.
func tarred(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must.Do(t, w.WriteHeader(&h))
		must.Get(w.Write([]byte(content)))(t)
	}
	must.Do(t, w.Close())
	return b.Bytes()
}

func TestReadExtension(t *testing.T) {
	t.Parallel()
	b := tarred(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: manifest},
		tar.Header{Typeflag: tar.TypeDir, Name: "rootfs/"},
		tar.Header{Typeflag: tar.TypeDir, Name: "rootfs/usr/"},
		tar.Header{Typeflag: tar.TypeReg, Name: "rootfs/usr/tool", Mode: 0o4755, Linkname: "tool"},
		tar.Header{Typeflag: tar.TypeLink, Name: "./rootfs/usr/hard", Linkname: "rootfs/usr/tool"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "/rootfs/usr/soft", Mode: 0o644, Linkname: "../tool"},
	)
	got := must.Get(bootimage.ReadExtension(bytes.NewReader(append(b, make([]byte, 4096)...))))(t)
	hard := file(0o755|fs.ModeSetuid, "tool")
	hard.HardLink, hard.LinkMode = true, 0o644
	want := bootimage.Extension{
		Name: "tools", Version: "v1.0.0", Author: "Somebody", Description: "Some tools.", ExtraInfo: "more",
		Files: bootimage.Tree{
			"/usr/tool": file(0o755|fs.ModeSetuid, "tool"), "/usr/hard": hard, "/usr/soft": link("../tool"),
		},
	}
	must.Equal(t, "extension", want, got)
}

func TestExtensionRefused(t *testing.T) {
	t.Parallel()
	m := tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: manifest}
	named := func(content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: content}
	}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: "x"} }
	type row struct {
		headers []tar.Header
		want    string
	}
	must.Each(t, map[string]row{
		"nothing":               {nil, "no /manifest.yaml"},
		"no manifest":           {[]tar.Header{file("rootfs/a")}, "no /manifest.yaml"},
		"two manifests":         {[]tar.Header{m, m}, "has to be one file"},
		"a link for a manifest": {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "manifest.yaml", Linkname: "x"}}, "has to be one file"},
		"no YAML":               {[]tar.Header{named("{")}, "/manifest.yaml: "},
		"nameless":              {[]tar.Header{named("version: v1alpha1\n")}, "does not name"},
		"beside the root":       {[]tar.Header{m, file("other")}, "/other: neither the manifest nor below"},
		"the root is a file":    {[]tar.Header{m, file("rootfs")}, "/rootfs: neither the manifest nor below"},
		"out of the root":       {[]tar.Header{m, file("rootfs/../../etc/passwd")}, "leads out"},
		"a file twice":          {[]tar.Header{m, file("rootfs/a"), file("./rootfs//a")}, "/a occurs twice"},
		"a device":              {[]tar.Header{m, {Typeflag: tar.TypeChar, Name: "rootfs/a"}}, "/rootfs/a: neither a file"},
		"a pipe":                {[]tar.Header{m, {Typeflag: tar.TypeFifo, Name: "rootfs/a"}}, "/rootfs/a: neither a file"},
		"a link to nothing":     {[]tar.Header{m, {Typeflag: tar.TypeLink, Name: "rootfs/a", Linkname: "rootfs/b"}}, "does not come before it"},
	}, func(t *testing.T, tt row) {
		_, err := bootimage.ReadExtension(bytes.NewReader(tarred(t, tt.headers...)))
		requireRefused(t, err, "extension: ", tt.want)
	})
	b := tarred(t, m)
	for i := range 512 + len(manifest) {
		if _, err := bootimage.ReadExtension(bytes.NewReader(b[:i])); !errors.Is(err, bootimage.ErrFormat) {
			t.Errorf("cut to %d bytes: err = %v", i, err)
		}
	}
}

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
			image := must.Get(os.ReadFile(out))(t)
			added := cpio(entry{name: "0.sqsh", content: string(image)}, entry{name: "extensions.yaml", content: oneLayer})
			got := must.Get(read(t, packed(t, cpio(entry{name: "init"})), packed(t, added)))(t)
			must.Equal(t, "files", want, got.Extensions[0].Files)
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
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)))
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
	must.Do(t, os.Symlink("../lib/"+strings.Repeat("x", 200), filepath.Join(dir, "usr/link")))
	tree["/usr/link"] = link("../lib/" + strings.Repeat("x", 200))
	return tree
}
