package journal

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
)

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
