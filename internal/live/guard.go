package live

import (
	"io"
	"os"
	"regexp"
	"sync/atomic"
)

// guard is the terminal for the drawing library. It filters what would change the
// terminal's handling of keys: recast does not read keys, and Ctrl-C must remain a signal.
type guard struct {
	file *os.File // unexported, so that the library sees only the methods below

	drawn atomic.Bool // something was written
	dead  atomic.Bool // writes are dropped
}

// keyModes are queries that the terminal answers as if typed, and changes of its key
// encoding: with Kitty's keyboard protocol Ctrl-C is no longer a signal. bubbletea sends
// them even if it does not read keys (cursed_renderer.go, flush).
var keyModes = regexp.MustCompile("\x1b\\[(?:[<=>?][0-9;]*u|>[0-9;]*m|\\?[0-9;]*\\$p|\\?[0-9;]*n|6n|[0-9]*c|>[0-9]*q)")

// Write starts each frame at the beginning of the cursor's line, because typed keys are
// echoed there. Errors are dropped.
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

// Read returns EOF: the library must not read keys.
func (g *guard) Read([]byte) (int, error) { return 0, io.EOF }

// Fd is that of the terminal.
func (g *guard) Fd() uintptr { return g.file.Fd() }

// Close does nothing: the library must not close the terminal.
func (g *guard) Close() error { return nil }
