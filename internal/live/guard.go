package live

import (
	"io"
	"os"
	"regexp"
	"sync/atomic"
)

// guard is the terminal as the drawing library gets it. It keeps from it what
// would change how the terminal answers to keys: recast does not read them, and
// Ctrl-C is to stay the signal that the terminal makes of it.
type guard struct {
	file *os.File // no more of it is to be had than is below

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
	if _, err := g.file.Write(append([]byte("\r"), kept...)); err != nil {
		g.dead.Store(true)
	}
	return len(p), nil
}

// WriteString is Write, for io.WriteString.
func (g *guard) WriteString(s string) (int, error) { return g.Write([]byte(s)) }

// Read is the end of input: keys are not the library's.
func (g *guard) Read([]byte) (int, error) { return 0, io.EOF }

// Fd is that of the terminal.
func (g *guard) Fd() uintptr { return g.file.Fd() }

// Close keeps the terminal open: it is not the library's.
func (g *guard) Close() error { return nil }
