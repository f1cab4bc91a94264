package observe

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
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

// CompareFiles reads the files of locked extensions back from each target and compares them. Errors are
// by target: if a machine can't be read, the others still are. say gets one line about each node;
// its calls do not overlap.
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
	_ = g.Wait() // none of them returns an error: each is kept with its target
	return checks, errs
}

// String is the result in one line.
func (c FileCheck) String() string {
	differ := "all are as locked"
	if !c.Same() {
		differ = fmt.Sprintf("%d differ", len(c.Differ)+c.More)
		if len(c.Differ)+c.More == 1 {
			differ = "1 differs"
		}
	}
	return fmt.Sprintf("%d %s of its extensions compared (%d bytes read): %s", c.Files, words.Plural(c.Files, "file"), c.Bytes, differ)
}
