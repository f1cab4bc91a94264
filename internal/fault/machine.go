package fault

import (
	"errors"
	"io/fs"
	"syscall"
)

// ofThisMachine is what to do if err came about because this machine lacks something; "" if it did not.
func ofThisMachine(err error) string {
	is := func(list ...error) bool {
		for _, e := range list {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(syscall.EMFILE, syscall.ENFILE):
		return "this machine lets recast open too few files: ulimit -n 1024, then run the same command again"
	case is(syscall.ENOSPC, syscall.EDQUOT):
		return "make room on this machine, where that file is (recast prune --only cache frees some), then run the same command again"
	case is(syscall.EROFS):
		return "recast has to write there: make that file system writable, or work in a copy of the directory; then run the same command again"
	}
	file, ok := errors.AsType[*fs.PathError](err)
	if ok && file.Op != "fork/exec" && errors.Is(file.Err, fs.ErrPermission) { // a program has its own hints
		return "this user may not use " + file.Path + ", or its directory: ls -ld shows whose it is; change that, or run recast as that user"
	}
	return ""
}
