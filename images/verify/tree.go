package verify

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/bootimage"
)

// maxNamed is how many differing files a message names; the others are counted.
const maxNamed = 3

// treeDiff says which files of a tree differ from the wanted one; "" if none do. It
// does not compare owners, because imager gives every file to root, nor directories,
// times and extended attributes, which imager sets itself (see Untar in pkg/archiver
// and Compress in internal/pkg/extensions of siderolabs/talos).
func treeDiff(want, got bootimage.Tree, same func(want, got bootimage.File) string) string {
	var found []string
	all := maps.Clone(want)
	if all == nil {
		all = bootimage.Tree{}
	}
	maps.Copy(all, got)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		w, wanted := want[path]
		g, there := got[path]
		switch {
		case !there:
			found = append(found, path+" is missing")
		case !wanted:
			found = append(found, path+" is not in the locked one")
		default:
			if why := same(w, g); why != "" {
				found = append(found, path+" "+why)
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	text := strings.Join(found[:min(len(found), maxNamed)], "; ")
	if more := len(found) - maxNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if len(found) == 1 {
		return "1 file differs: " + text
	}
	return fmt.Sprintf("%d files differ: %s", len(found), text)
}

// sameFile compares kind, target, content and permissions.
func sameFile(want, got bootimage.File) string {
	if why := sameContent(want, got); why != "" {
		return why
	}
	if want.HardLink && got.SHA256 == emptySum { // imager has neither followed it nor taken its file's mode
		want.Mode = want.LinkMode
	}
	if w, g := permissions(want), permissions(got); w != g {
		return fmt.Sprintf("has mode %v, locked is %v", g, w)
	}
	return ""
}

// sameContent compares everything except permissions: those of files that imager
// moves into the initramfs depend on the umask of the process that ran it.
func sameContent(want, got bootimage.File) string {
	switch {
	case want.Mode.Type() != got.Mode.Type():
		return fmt.Sprintf("is a %s, locked is a %s", kindOf(got), kindOf(want))
	case want.Link != got.Link:
		return fmt.Sprintf("points to %q, locked is %q", got.Link, want.Link)
	case want.HardLink && got.SHA256 == emptySum: // imager has not followed it: see bootimage.File
	case want.SHA256 != got.SHA256 || want.SizeBytes != got.SizeBytes:
		return fmt.Sprintf("has %d bytes with SHA-256 %s, locked are %d with %s",
			got.SizeBytes, shortSum(got.SHA256), want.SizeBytes, shortSum(want.SHA256))
	}
	return ""
}

// permissions are those of a regular file; a link's mean nothing.
func permissions(f bootimage.File) fs.FileMode {
	if f.Mode.Type() != 0 {
		return 0
	}
	return f.Mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

func kindOf(f bootimage.File) string {
	switch f.Mode.Type() {
	case 0:
		return "file"
	case fs.ModeSymlink:
		return "link"
	default:
		return "special file"
	}
}

func shortSum(sha256 string) string { return sha256[:min(len(sha256), 12)] }
