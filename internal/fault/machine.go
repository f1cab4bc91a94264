package fault

import (
	"errors"
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
	return ""
}
