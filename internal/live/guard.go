package live

import (
	"os"
	"regexp"
	"sync/atomic"
)

// guard is the terminal as the drawing library gets it. It keeps from it what
// would change how the terminal answers to keys: recast does not read them, and
// Ctrl-C is to stay the signal that the terminal makes of it.
type guard struct {
	*os.File

	drawn atomic.Bool // something was written
	dead  atomic.Bool // nothing is written any more
}

// keyModes are requests that the terminal answers as if somebody had typed, and
// those to encode keys otherwise: with Kitty's keyboard protocol Ctrl-C is no
// signal any more. bubbletea sends them whether or not it reads keys
// (cursed_renderer.go, flush).
var keyModes = regexp.MustCompile("\x1b\\[(?:[<=>?][0-9;]*u|>[0-9;]*m|\\?[0-9;]*\\$p|\\?[0-9;]*n|6n|[0-9]*c|>[0-9]*q)")

// Write draws, from the beginning of the line where each frame leaves the cursor:
// what somebody types there in vain is echoed. A terminal that is gone takes all.
func (g *guard) Write(p []byte) (int, error) {
	if g.dead.Load() {
		return len(p), nil
	}
	kept := keyModes.ReplaceAll(p, nil)
	if len(kept) == 0 {
		return len(p), nil
	}
	g.drawn.Store(true)
	if _, err := g.File.Write(append([]byte("\r"), kept...)); err != nil {
		g.dead.Store(true)
	}
	return len(p), nil
}

// Close keeps the terminal open: it is not the library's.
func (g *guard) Close() error { return nil }
