package observe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestCompareFiles(t *testing.T) {
	t.Parallel()
	must.Each(t, fileCases, func(t *testing.T, c fileCase) {
		machine := &fakeFiles{files: c.node, fail: c.fail}
		target := FileTarget{Node: "wk1", UUID: "uuid-1", Content: c.locked, EmbedsConfig: c.embeds}
		said := 0
		checks, errs := CompareFiles(t.Context(), machine, []FileTarget{target}, func(node, text string) { said++ })
		must.Equal(t, "check", c.want, checks[0])
		if c.err != "" != (errs[0] != nil) || c.err != "" && errs[0].Error() != c.err || said != 1 {
			t.Errorf("err = %v, %d lines", errs[0], said)
		}
	})
}

// TestCompareFilesOfMany: if one machine can't be read, the others still are.
func TestCompareFilesOfMany(t *testing.T) {
	t.Parallel()
	locked := []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good"})}
	machine := readOnly{files: map[string]string{"/usr/local/a": "good"}}
	var targets []FileTarget
	for i := range 9 {
		target := FileTarget{Node: fmt.Sprintf("wk%d", i), UUID: "uuid-1", Content: locked}
		if i == 4 {
			target.UUID = "uuid-2"
		}
		targets = append(targets, target)
	}
	var said []string
	checks, errs := CompareFiles(t.Context(), machine, targets, func(node, _ string) { said = append(said, node) })
	for i := range targets {
		if want := i != 4; want != (errs[i] == nil) || want != (checks[i].Files == 1) {
			t.Errorf("%d: %+v, %v", i, checks[i], errs[i])
		}
	}
	must.Equal(t, "said of", len(targets), len(said))
}

func content(name string, files map[string]string) LockedFiles {
	c := LockedFiles{Extension: cluster.LockedExtension{Name: name, Version: "v1"}, Files: map[string]LockedFile{}}
	for path, text := range files {
		if link, ok := strings.CutPrefix(text, "→ "); ok {
			c.Files[path] = LockedFile{Mode: fs.ModeSymlink | 0o777, Link: link}
			continue
		}
		text, hard := strings.CutPrefix(text, "= ")
		c.Files[path] = LockedFile{Mode: 0o644, SizeBytes: int64(len(text)), SHA256: strings.TrimPrefix(print256(text), "sha256:"), HardLink: hard}
	}
	return c
}

// fakeFiles is a machine with files; a text that begins with "→ " is a link.
type fakeFiles struct {
	files map[string]string
	fail  map[string]error // by path or directory
	read  []string
}

func (f *fakeFiles) Files(ctx context.Context, _ netip.Addr, uuid string, look func(context.Context, cluster.MachineFiles) error) error {
	if uuid != "uuid-1" {
		return errors.New("another machine")
	}
	return look(ctx, f)
}

func (f *fakeFiles) List(_ context.Context, dir string, deep bool, each func(cluster.MachineFile) error) error {
	if err := f.fail[dir]; err != nil {
		return err
	}
	entries := map[string]cluster.MachineFile{}
	for name, text := range f.files {
		below, ok := strings.CutPrefix(name, dir+"/")
		if !ok {
			continue
		}
		for parent := path.Dir(below); parent != "."; parent = path.Dir(parent) {
			entries[path.Join(dir, parent)] = cluster.MachineFile{Path: path.Join(dir, parent), Mode: fs.ModeDir | 0o755}
		}
		entries[name] = cluster.MachineFile{Path: name, Mode: 0o755, SizeBytes: int64(len(text))}
		if link, ok := strings.CutPrefix(text, "→ "); ok {
			entries[name] = cluster.MachineFile{Path: name, Mode: fs.ModeSymlink | 0o777, Link: link}
		}
	}
	if len(entries) == 0 {
		return fmt.Errorf("list %s: %w", dir, cluster.ErrNotFound)
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if !deep && path.Dir(name) != dir {
			continue
		}
		if err := each(entries[name]); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeFiles) Read(_ context.Context, name string, sizeBytes int64, w io.Writer) error {
	f.read = append(f.read, name)
	if err := f.fail[name]; err != nil {
		return err
	}
	if int64(len(f.files[name])) != sizeBytes {
		return errors.New("another size")
	}
	_, err := io.WriteString(w, f.files[name])
	return err
}

type fileCase struct {
	locked []LockedFiles
	node   map[string]string
	fail   map[string]error
	embeds bool
	want   FileCheck
	err    string
}

// fileCases are locked files, the files on the node, and the expected result.
var fileCases = map[string]fileCase{
	"nothing locked, nothing there": {node: map[string]string{"/usr/bin/init": "talos"}, want: FileCheck{}},
	"the same": {
		locked: []LockedFiles{content("tool", map[string]string{
			"/usr/local/bin/tool": "tool", "/usr/local/bin/link": "→ tool", "/usr/lib/firmware/a/b.bin": "blob", "/etc/cri/conf.d/10.part": "conf",
		})},
		node: map[string]string{
			"/usr/local/bin/tool": "tool", "/usr/local/bin/link": "→ tool", "/usr/lib/firmware/a/b.bin": "blob", "/etc/cri/conf.d/10.part": "conf",
			"/etc/cri/conf.d/00.part": "of Talos", "/usr/lib/firmware/a/c.bin": "of another", "/usr/local/share/schematic/cafe": "", "/usr/local/share/ca-certificates": "→ /etc/ssl",
		},
		want: FileCheck{Files: 4, Bytes: 12},
	},
	"other bytes, the same size": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/bin/tool": "good"})},
		node:   map[string]string{"/usr/local/bin/tool": "evil"},
		want: FileCheck{Files: 1, Bytes: 4, Differ: []FileDiff{
			{Path: "/usr/local/bin/tool", Extension: "tool v1", Found: print256("evil"), Wanted: print256("good")},
		}},
	},
	"another size": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/bin/tool": "good"})},
		node:   map[string]string{"/usr/local/bin/tool": "evil and longer"},
		want: FileCheck{Files: 1, Bytes: 15, Differ: []FileDiff{
			{Path: "/usr/local/bin/tool", Extension: "tool v1", Found: print256("evil and longer"), Wanted: print256("good")},
		}},
	},
	"missing, with its directory": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/bin/tool": "good", "/usr/lib/udev/rules.d/9": "rule"})},
		node:   map[string]string{"/usr/local/lib/x/y": "→ z"},
		want: FileCheck{Files: 2, Differ: []FileDiff{
			{Path: "/usr/lib/udev/rules.d/9", Extension: "tool v1", Wanted: print256("rule")},
			{Path: "/usr/local/bin/tool", Extension: "tool v1", Wanted: print256("good")},
			{Path: "/usr/local/lib/x/y", Found: "link to z"},
		}},
	},
	"extra": {
		node: map[string]string{"/usr/local/bin/backdoor": "evil", "/usr/local/etc/talos/config.yaml": "version: v1alpha1", "/usr/local/share/ca-certificates": "→ /evil"},
		want: FileCheck{Bytes: 21, Differ: []FileDiff{
			{Path: "/usr/local/bin/backdoor", Found: print256("evil")},
			{Path: "/usr/local/etc/talos/config.yaml", Found: print256("version: v1alpha1")},
			{Path: "/usr/local/share/ca-certificates", Found: "link to /evil"},
		}},
	},
	"an embedded configuration is no extra file": {
		node: map[string]string{"/usr/local/etc/talos/config.yaml": "version: v1alpha1"}, embeds: true, want: FileCheck{},
	},
	"a link where a file should be, and the other way round": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good", "/usr/local/b": "→ a"})},
		node:   map[string]string{"/usr/local/a": "→ b", "/usr/local/b": "good"},
		want: FileCheck{Files: 2, Bytes: 4, Differ: []FileDiff{
			{Path: "/usr/local/a", Extension: "tool v1", Found: "link to b", Wanted: print256("good")},
			{Path: "/usr/local/b", Extension: "tool v1", Found: print256("good"), Wanted: "link to a"},
		}},
	},
	"a hard link, which imager makes an empty file": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good", "/usr/local/b": "= good", "/usr/local/c": "= good", "/usr/local/d": "= good"})},
		node:   map[string]string{"/usr/local/a": "", "/usr/local/b": "", "/usr/local/c": "good", "/usr/local/d": "evil"},
		want: FileCheck{Files: 4, Bytes: 8, Differ: []FileDiff{
			{Path: "/usr/local/a", Extension: "tool v1", Found: print256(""), Wanted: print256("good")},
			{Path: "/usr/local/d", Extension: "tool v1", Found: print256("evil"), Wanted: print256("good")},
		}},
	},
	"a directory where a file should be": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good"})},
		node:   map[string]string{"/usr/local/a/b": "good"},
		want: FileCheck{Files: 1, Bytes: 4, Differ: []FileDiff{
			{Path: "/usr/local/a", Extension: "tool v1", Found: "a directory", Wanted: print256("good")},
			{Path: "/usr/local/a/b", Found: print256("good")},
		}},
	},
	"one extension over another": {
		locked: []LockedFiles{
			content("a", map[string]string{"/usr/local/both": "of a", "/usr/local/other": "of a"}),
			content("b", map[string]string{"/usr/local/both": "of b", "/usr/local/other": "of b"}),
		},
		node: map[string]string{"/usr/local/both": "of a", "/usr/local/other": "of c"},
		want: FileCheck{Files: 2, Bytes: 8, Differ: []FileDiff{
			{Path: "/usr/local/other", Extension: "b v1", Found: print256("of c"), Wanted: print256("of b")},
		}},
	},
	"what a service makes while it runs": {
		locked: []LockedFiles{content("agent", map[string]string{"/usr/local/lib/containers/agent/agent": "good", "/usr/local/lib/containers/agent/other": "good"})},
		node: map[string]string{
			"/usr/local/lib/containers/agent/agent": "good", "/usr/local/lib/containers/agent/other": "evil",
			"/usr/local/lib/containers/agent/etc/hosts": "", "/usr/local/lib/containers/agent/run/log": "line", "/usr/local/lib/containersx": "evil",
		},
		want: FileCheck{
			Files: 2, Bytes: 12, NotCompared: []string{"2 files below /usr/local/lib/containers/agent of no extension image: a service makes files there while it runs"},
			Differ: []FileDiff{
				{Path: "/usr/local/lib/containers/agent/other", Extension: "agent v1", Found: print256("evil"), Wanted: print256("good")},
				{Path: "/usr/local/lib/containersx", Found: print256("evil")},
			},
		},
	},
	"what a node does not show": {
		locked: []LockedFiles{content("ucode", map[string]string{
			"/usr/lib/firmware/intel-ucode/06-9e-09": "a", "/lib/firmware/amd-ucode/microcode_amd.bin": "b", "/usr/lib/firmware/amd-ucode/README": "c",
			"/usr/lib/modules/6.18-talos/modules.dep": "d", "/usr/lib/modules/6.18-talos/kernel/modules.ko": "e",
		})},
		node: map[string]string{"/usr/lib/firmware/amd-ucode/README": "c", "/usr/lib/modules/6.18-talos/modules.dep": "D", "/usr/lib/modules/6.18-talos/kernel/modules.ko": "e"},
		want: FileCheck{Files: 2, Bytes: 2, NotCompared: []string{
			"1 file of extension ucode v1: the list of kernel modules: it is generated for every image",
			"2 files of extension ucode v1: CPU microcode: it is loaded before the system starts and is no file on a node",
		}},
	},
	"many": {
		locked: []LockedFiles{content("tool", many)},
		node:   map[string]string{"/usr/local/extra": "x"},
		want: FileCheck{Files: 12, More: 5, Differ: func() (all []FileDiff) {
			for _, name := range slices.Sorted(maps.Keys(many))[:maxFileDiffs] {
				all = append(all, FileDiff{Path: name, Extension: "tool v1", Wanted: print256("x")})
			}
			return all
		}()},
	},
	"a file that can't be read": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good"})},
		node:   map[string]string{"/usr/local/a": "good"}, fail: map[string]error{"/usr/local/a": errors.New("not authorized")},
		err: "read its files: not authorized",
	},
	"a directory that can't be listed": {
		node: map[string]string{"/usr/local/a": "good"}, fail: map[string]error{"/usr/local": errors.New("I/O error")},
		err: "read its files: I/O error",
	},
}

// many is more files than a result names.
var many = func() map[string]string {
	files := map[string]string{}
	for i := range 12 {
		files[fmt.Sprintf("/usr/local/bin/%02d", i)] = "x"
	}
	return files
}()

func print256(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// readOnly is many machines with the same files.
type readOnly struct{ files map[string]string }

func (r readOnly) Files(ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, cluster.MachineFiles) error) error {
	return (&fakeFiles{files: r.files}).Files(ctx, addr, uuid, look)
}
