package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
)

// stateDepth is how deep below the directory of all state CheckPrivate looks: as far
// as the files of a run. What an imager's container leaves is deeper.
const stateDepth = 3

// CheckPrivate refuses a directory for state, or anything in it, that somebody else
// could have put there or could change: machine configurations are read from it, and
// written to it. There need be none.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = private(dir, info)
	}
	if err == nil && !info.IsDir() {
		err = fault.WithHint(fault.Refusedf("%s is no directory", dir), "move it away: recast makes a directory of that name")
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(privateBelow(root, ".", stateDepth), root.Close())
}

func privateBelow(root *os.Root, name string, depth int) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(name, e.Name())
		info, err := root.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another run has removed it meanwhile
		}
		if err == nil {
			err = private(filepath.Join(root.Name(), path), info)
		}
		if err == nil && info.IsDir() && depth > 1 {
			err = privateBelow(root, path, depth-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// private judges one file or directory.
func private(path string, info fs.FileInfo) error {
	switch stat, known := info.Sys().(*syscall.Stat_t); {
	case info.Mode()&fs.ModeSymlink != 0:
		return fault.WithHint(fault.Refusedf("%s is a symbolic link: what recast keeps there would go, and come from, where somebody else may have pointed it", path),
			"where the link is yours, put what it leads to in its place; else remove it: rm %s", path)
	case !info.IsDir() && !info.Mode().IsRegular():
		return fault.WithHint(fault.Refusedf("%s is neither a file nor a directory", path), "recast does not make such: remove it with rm %s", path)
	case known && int(stat.Uid) != os.Geteuid():
		return fault.WithHint(fault.Refusedf("%s belongs to user %d, and recast runs as user %d: machine configurations are kept there", path, stat.Uid, os.Geteuid()),
			"run recast as that user; or look at what is in it, and make it yours: sudo chown -R %d %s", os.Geteuid(), path)
	case info.Mode().Perm()&0o022 != 0:
		return fault.WithHint(fault.Refusedf("other users may write to %s (mode %04o): machine configurations are kept there", path, info.Mode().Perm()),
			"look at what is in it, then: chmod -R go-w %s", path)
	}
	return nil
}
