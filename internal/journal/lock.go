package journal

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/recast-sh/recast/internal/fault"
)

// lock takes an exclusive lock on a file, which ends with the process however it
// ends. The file stays: removing it would let two processes lock two files of
// one name.
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

// unlock gives the lock back. To close the file is not enough: a program that is just
// being started has it open, too, until it runs, and the lock is that of all who have.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
