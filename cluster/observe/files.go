package observe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// LockedFile is a regular file or a symbolic link of a locked extension image.
type LockedFile struct {
	Mode      fs.FileMode
	SizeBytes int64
	SHA256    string // hex, of a regular file
	Link      string
	HardLink  bool // imager may have left it empty: see File of internal/bootimage
}

// LockedFiles is what a locked extension installs on a node, by absolute path.
type LockedFiles struct {
	Extension cluster.LockedExtension
	Files     map[string]LockedFile
}

// FileTarget is a machine whose files are compared, and the content that they are compared with.
type FileTarget struct {
	Node         string
	Addr         netip.Addr
	UUID         string
	Content      []LockedFiles
	EmbedsConfig bool // the image contains a machine configuration, as an extra file
}

// FileCheck is how the files of one machine compare with the locked images'.
type FileCheck struct {
	Files       int        `json:"files"` // compared
	Bytes       int64      `json:"bytes"` // read from the machine
	Differ      []FileDiff `json:"differ,omitempty"`
	More        int        `json:"more,omitempty"`        // differences beyond those of Differ
	NotCompared []string   `json:"notCompared,omitempty"` // in words, with the reason
}

// Same reports whether no difference was found.
func (c FileCheck) Same() bool { return len(c.Differ) == 0 && c.More == 0 }

// FileDiff is one file that is not as locked.
type FileDiff struct {
	Path      string `json:"path"`
	Extension string `json:"extension,omitempty"` // name and version; "": no locked extension has the file
	// Found and Wanted are "sha256:…" of regular files, "link to …" of symbolic
	// links, else the kind of file; "": there is none.
	Found  string `json:"found,omitempty"`
	Wanted string `json:"wanted,omitempty"`
}

func (d FileDiff) String() string {
	switch {
	case d.Extension == "":
		return fmt.Sprintf("%s (%s) is of no locked extension", d.Path, shortPrint(d.Found))
	case d.Found == "":
		return fmt.Sprintf("%s of extension %s (%s) is missing", d.Path, d.Extension, shortPrint(d.Wanted))
	}
	return fmt.Sprintf("%s of extension %s: %s → %s", d.Path, d.Extension, shortPrint(d.Found), shortPrint(d.Wanted))
}

// shortPrint shortens a digest; a link keeps its whole target.
func shortPrint(fingerprint string) string {
	if strings.HasPrefix(fingerprint, "sha256:") {
		return words.Short(fingerprint)
	}
	return fingerprint
}

// maxFileDiffs is how many files of one node are named; the others are only counted.
const maxFileDiffs = 8

// fileReads bounds how many machines are read at once.
const fileReads = 4

// CompareFiles reads the files of locked extensions back from each target and compares them. Errors are by target:
// if a machine can't be read, the others still are. say gets one line about each node; its calls do not overlap.
func CompareFiles(ctx context.Context, r cluster.FileReader, targets []FileTarget, say func(node, text string)) (checks []FileCheck, errs []error) {
	checks, errs = make([]FileCheck, len(targets)), make([]error, len(targets))
	var saying sync.Mutex
	g := errgroup.Group{}
	g.SetLimit(fileReads)
	for i, t := range targets {
		g.Go(func() error {
			checks[i], errs[i] = compareFiles(ctx, r, t)
			saying.Lock()
			defer saying.Unlock()
			if errs[i] == nil {
				say(t.Node, checks[i].String())
			} else {
				say(t.Node, "its files could not be read")
			}
			return nil
		})
	}
	_ = g.Wait() // no call returns an error: each is kept with its target
	return checks, errs
}

// String returns the result in one line.
func (c FileCheck) String() string {
	differ := "all are as locked"
	if !c.Same() {
		differ = fmt.Sprintf("%d differ", len(c.Differ)+c.More)
		if len(c.Differ)+c.More == 1 {
			differ = "1 differs"
		}
	}
	return fmt.Sprintf("%s of its extensions compared (%d bytes read): %s", words.Counted(c.Files, "file"), c.Bytes, differ)
}

func (f LockedFile) fingerprint() string {
	if f.Mode.IsRegular() {
		return "sha256:" + f.SHA256
	}
	return kindOf(f.Mode, f.Link)
}

// compareFiles first lists the files, which is cheap. Then it reads every regular file that has a
// locked counterpart: only the content proves anything.
func compareFiles(ctx context.Context, r cluster.FileReader, t FileTarget) (FileCheck, error) {
	c := &fileComparison{target: t, owners: map[string][]int{}, found: map[string]cluster.MachineFile{}}
	c.plan()
	err := r.Files(ctx, t.Addr, t.UUID, func(ctx context.Context, files cluster.MachineFiles) error {
		if err := c.list(ctx, files); err != nil {
			return err
		}
		return c.compare(ctx, files)
	})
	if err != nil {
		return FileCheck{}, fmt.Errorf("read its files: %w", err)
	}
	return c.check, nil
}

const emptyFingerprint = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

type fileComparison struct {
	target FileTarget
	owners map[string][]int // by path: indices into target.Content
	found  map[string]cluster.MachineFile
	check  FileCheck
}

func (c *fileComparison) compare(ctx context.Context, files cluster.MachineFiles) error {
	for _, name := range sortedKeys(c.owners) {
		c.check.Files++
		f, there := c.found[name]
		found := ""
		if there {
			var err error
			if found, err = c.read(ctx, files, f); err != nil {
				return err
			}
		}
		c.judge(name, found)
	}
	for _, name := range sortedKeys(c.found) {
		if _, ours := c.owners[name]; ours {
			continue
		}
		if len(c.check.Differ) >= maxFileDiffs {
			c.check.More++
			continue
		}
		found, err := c.read(ctx, files, c.found[name])
		if err != nil {
			return err
		}
		c.differs(FileDiff{Path: name, Found: found})
	}
	return nil
}

func (c *fileComparison) differs(d FileDiff) {
	if len(c.check.Differ) >= maxFileDiffs {
		c.check.More++
		return
	}
	c.check.Differ = append(c.check.Differ, d)
}

// judge compares what was found at a path with what its extensions have there.
func (c *fileComparison) judge(name, found string) {
	for _, i := range c.owners[name] {
		if f := c.target.Content[i].Files[name]; f.fingerprint() == found || f.HardLink && found == emptyFingerprint {
			return
		}
	}
	last := c.target.Content[c.owners[name][len(c.owners[name])-1]]
	c.differs(FileDiff{Path: name, Extension: last.Extension.Title(), Found: found, Wanted: last.Files[name].fingerprint()})
}

// list records what the machine has at the locked paths, and all files below local.
func (c *fileComparison) list(ctx context.Context, files cluster.MachineFiles) error {
	dirs, running := map[string]bool{local: true}, map[string]int{}
	for name := range c.owners {
		if !strings.HasPrefix(name, local+"/") {
			dirs[path.Dir(name)] = false
		}
	}
	for _, dir := range sortedKeys(dirs) {
		err := files.List(ctx, dir, dirs[dir], func(f cluster.MachineFile) error {
			_, ours := c.owners[f.Path]
			extra := !ours && dirs[dir] && !f.Mode.IsDir() && !c.expected(f)
			switch {
			case extra && strings.HasPrefix(f.Path, services):
				name, _, _ := strings.Cut(strings.TrimPrefix(f.Path, services), "/")
				running[name]++
			case ours || extra:
				c.found[f.Path] = f
			}
			return nil
		})
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
	}
	for _, name := range sortedKeys(running) {
		c.check.NotCompared = append(c.check.NotCompared, fmt.Sprintf("%s below %s%s of no extension image: a service makes files there while it runs", words.Counted(running[name], "file"), services, name))
	}
	return nil
}

// expected reports whether a file below local belongs there although no extension image has it.
func (c *fileComparison) expected(f cluster.MachineFile) bool {
	switch {
	case path.Dir(f.Path) == local+"/share/schematic": // the schematic's own entry
		return true
	case f.Path == local+"/share/ca-certificates" && f.Link == "/etc/ssl": // Dockerfile of Talos
		return true
	}
	return c.target.EmbedsConfig && f.Path == local+"/etc/talos/config.yaml" // constants.EmbeddedConfigDirectory
}

// plan finds the owners of each file. If several extensions have the same file, one hides the
// others, so any of them may match.
func (c *fileComparison) plan() {
	for i, content := range c.target.Content {
		hidden := map[string]int{}
		for name := range content.Files {
			if why := unseen(name); why != "" {
				hidden[why]++
				continue
			}
			c.owners[name] = append(c.owners[name], i)
		}
		for why, n := range hidden {
			c.check.NotCompared = append(c.check.NotCompared, fmt.Sprintf("%s of extension %s: %s", words.Counted(n, "file"), content.Extension.Title(), why))
		}
	}
	slices.Sort(c.check.NotCompared)
}

// read returns the fingerprint of a file on the machine.
func (c *fileComparison) read(ctx context.Context, files cluster.MachineFiles, f cluster.MachineFile) (string, error) {
	if !f.Mode.IsRegular() {
		return kindOf(f.Mode, f.Link), nil
	}
	h := sha256.New()
	if err := files.Read(ctx, f.Path, f.SizeBytes, h); err != nil {
		return "", err
	}
	c.check.Bytes += f.SizeBytes
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func kindOf(mode fs.FileMode, link string) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "link to " + link
	case mode.IsDir():
		return "a directory"
	}
	return "neither a file nor a link"
}

// local is where extensions install nearly all their files. It is read-only while a node runs,
// except for services, and Talos itself has only one link there.
const local = "/usr/local"

// services is where the services of extensions run. Each has a writable overlay over its files. containerd makes mount
// points there. The service may write files there if its container.security.writeableRootfs is set (PreFunc and
// getOCIOptions of Talos' internal/app/machined/pkg/system/services/extension.go).
const services = local + "/lib/containers/"

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// unseen says why a node does not show a file as its extension image has it; "" if the node does.
// See Compress and GenerateKernelModuleDependencyTreeExtension of Talos' internal/pkg/extensions.
func unseen(name string) string {
	rest, lib := strings.CutPrefix(strings.TrimPrefix(name, "/usr"), "/lib/")
	if !lib {
		return ""
	}
	dir, base := path.Split(rest)
	microcode := dir == "firmware/intel-ucode/" || dir == "firmware/amd-ucode/" && strings.HasPrefix(base, "microcode_amd") && strings.HasSuffix(base, ".bin")
	switch {
	case microcode:
		return "CPU microcode: it is loaded before the system starts and is no file on a node"
	case strings.HasPrefix(dir, "modules/") && strings.Count(dir, "/") == 2 && strings.HasPrefix(base, "modules."):
		return "the list of kernel modules: it is generated for every image"
	}
	return ""
}
