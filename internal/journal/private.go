package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
)

// stateDepth is how many levels of the state directory CheckPrivate inspects, down to the
// files of a run. The files that an imager's container leaves are deeper.
const stateDepth = 3

// CheckPrivate refuses a state directory if another user could have created or could
// change it, or anything in it: machine configurations are read from it and written to it.
// A missing directory is fine.
func CheckPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = checkOwner(dir, info)
	}
	if err == nil && !info.IsDir() {
		err = fault.WithHint(fault.Refusedf("%s is not a directory", dir), "move it: recast creates a directory of that name")
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(checkOwnersBelow(root, ".", stateDepth), root.Close())
}

func checkOwnersBelow(root *os.Root, name string, depth int) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(name, e.Name())
		info, err := root.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another run has just removed it
		}
		if err == nil {
			err = checkOwner(filepath.Join(root.Name(), path), info)
		}
		if err == nil && info.IsDir() && depth > 1 {
			err = checkOwnersBelow(root, path, depth-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkOwner checks one file or directory.
func checkOwner(path string, info fs.FileInfo) error {
	switch stat, known := info.Sys().(*syscall.Stat_t); {
	case info.Mode()&fs.ModeSymlink != 0:
		return fault.WithHint(fault.Refusedf("%s is a symbolic link: another user may control the files behind it", path),
			"if the link is yours, replace it with its target; otherwise remove it: rm %s", path)
	case !info.IsDir() && !info.Mode().IsRegular():
		return fault.WithHint(fault.Refusedf("%s is neither a file nor a directory", path), "recast does not create such files; remove it: rm %s", path)
	case known && int(stat.Uid) != os.Geteuid():
		return fault.WithHint(fault.Refusedf("%s belongs to user %d, and recast runs as user %d: machine configurations are kept there", path, stat.Uid, os.Geteuid()),
			"run recast as that user, or inspect it and take ownership: sudo chown -R %d %s", os.Geteuid(), path)
	case info.Mode().Perm()&0o022 != 0:
		return fault.WithHint(fault.Refusedf("other users may write to %s (mode %04o): machine configurations are kept there", path, info.Mode().Perm()),
			"inspect its content, then: chmod -R go-w %s", path)
	}
	return nil
}

// lock takes an exclusive lock on a file; it ends with the process at the latest. The file
// stays: if it were removed, two processes could lock two files of the same name.
func lock(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fault.As(fault.Claimed, errors.New("another process has it open")), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// unlock releases the lock. Closing the file is not enough: a child process inherits it
// until its exec, and the lock lasts while any process has the file open.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// KeepOutOfGit creates a directory for state if it is missing, and a .gitignore that
// excludes all of it: it holds machine configurations. It keeps an existing .gitignore
// that is not empty.
func KeepOutOfGit(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep %s out of git: %w", dir, err)
	}
	file := filepath.Join(dir, ".gitignore")
	info, err := os.Lstat(file)
	if err == nil && info.Size() > 0 {
		return nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(file, []byte("*\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep %s out of git: %w", dir, err)
	}
	return nil
}
