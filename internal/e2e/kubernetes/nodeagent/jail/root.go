package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// devices are those of /dev that every container has.
var devices = []string{"null", "zero", "full", "random", "urandom"}

// makeRoot makes the container's file system and enters it.
func (s Spec) makeRoot() error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"make mounts private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"mount the root", func() error { return unix.Mount(s.Root, s.Root, "", unix.MS_BIND, "") }},
		{"make directories", s.makeDirs},
		{"mount /proc", s.mountProc},
		{"mount /dev", s.mountDev},
		{"mount volumes", s.mountAll},
		{"restrict paths", s.restrict},
		{"change the root", s.pivot},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

func (s Spec) makeDirs() error {
	for _, dir := range s.EmptyDirs {
		dir = filepath.Join(s.Root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	return nil
}

func (s Spec) mountProc() error {
	dir := filepath.Join(s.Root, "proc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return unix.Mount("proc", dir, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

func (s Spec) mountDev() error {
	dev := filepath.Join(s.Root, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_STRICTATIME, "mode=755,size=65536k"); err != nil {
		return err
	}
	for _, name := range devices {
		if err := bind("/dev/"+name, filepath.Join(dev, name), false); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	shm := filepath.Join(dev, "shm")
	if err := os.Mkdir(shm, 0o755); err != nil {
		return err
	}
	return unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=65536k")
}

func (s Spec) mountAll() error {
	for _, m := range s.Mounts {
		if err := bind(m.Source, filepath.Join(s.Root, m.Target), m.ReadOnly); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts a file or directory, for which it makes the mount point.
func bind(source, target string, readOnly bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else {
		err = touch(target)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &fs.PathError{Op: "mount " + source + " to", Path: target, Err: err}
	}
	if readOnly {
		return seal(target)
	}
	return nil
}

// seal makes a mount read-only. A mount's other flags must be given again, since the
// kernel takes those that are missing as cleared, which it may refuse.
func seal(target string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(target, &s); err != nil {
		return &fs.PathError{Op: "statfs", Path: target, Err: err}
	}
	const kept = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME // statfs has the same bits
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|uintptr(s.Flags)&kept, ""); err != nil {
		return &fs.PathError{Op: "make read-only", Path: target, Err: err}
	}
	return nil
}

func touch(file string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, nil, 0o644)
}

// restrict hides masked paths and makes others read-only.
func (s Spec) restrict() error {
	for _, path := range s.ReadOnlyPaths {
		path = filepath.Join(s.Root, path)
		if err := bind(path, path, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, path := range s.MaskedPaths {
		path = filepath.Join(s.Root, path)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && info.IsDir():
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY, "")
		case err == nil:
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return &fs.PathError{Op: "mask", Path: path, Err: err}
		}
	}
	return nil
}

// pivot leaves the machine's root for the container's.
func (s Spec) pivot() error {
	// The working directory is made before its file system is read-only.
	if err := os.MkdirAll(filepath.Join(s.Root, s.Dir), 0o755); err != nil {
		return err
	}
	if s.ReadOnlyRoot {
		if err := seal(s.Root); err != nil {
			return err
		}
	}
	if err := unix.Chdir(s.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	// Both roots are at the same place now, the old one on top.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}
