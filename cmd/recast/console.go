package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/pump"
)

// console is stderr. While a live view or JSON output is active, text written to it is
// passed to that; while steps are reported, a slow reader does not block writers.
type console struct {
	io.Writer

	mu   sync.Mutex
	take func([]byte) bool // false: write the text unchanged; nil: write everything unchanged
	pump *pump.Pump        // nil: writers wait for the reader
}

func (c *console) to(take func([]byte) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take = take
}

// Write implements io.Writer. It removes escape sequences.
func (c *console) Write(p []byte) (int, error) {
	if _, err := c.write([]byte(foreign.Lines(string(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Clean is the console for text that is safe already; it may have colours.
func (c *console) Clean() io.Writer { return unchanged{c, c.write} }

// beneath is the console for text that is passed to no live view or JSON output.
func (c *console) beneath() io.Writer { return unchanged{c, c.put} }

// unchanged is the console, with its Fd, for text to be written unchanged.
type unchanged struct {
	*console
	to func([]byte) (int, error)
}

// Write implements io.Writer.
func (u unchanged) Write(p []byte) (int, error) { return u.to(p) }

func (c *console) write(text []byte) (int, error) {
	c.mu.Lock()
	take := c.take
	c.mu.Unlock()
	if take != nil && take(text) {
		return len(text), nil
	}
	return c.put(text)
}

func (c *console) put(p []byte) (int, error) {
	c.mu.Lock()
	if c.pump != nil {
		defer c.mu.Unlock()
		return c.pump.Write(p)
	}
	c.mu.Unlock()
	return c.Writer.Write(p)
}

// buffer makes writes return at once, from now on.
func (c *console) buffer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump == nil {
		c.pump = pump.New(c.Writer, func(writes int64) {
			fmt.Fprintf(c, "warning: %d lines are missing here: nobody read them in time\n", writes)
		})
	}
}

// flush waits until everything is written, as long as someone reads.
func (c *console) flush() {
	if p := c.pumped(); p != nil {
		p.Flush()
	}
}

// drain waits until everything is written or ctx ends: a stalled reader may continue.
func (c *console) drain(ctx context.Context) {
	if p := c.pumped(); p != nil {
		p.Drain(ctx)
	}
}

func (c *console) pumped() *pump.Pump {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pump
}

// unbuffer makes writes wait for the reader again, unless nobody reads.
func (c *console) unbuffer() {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump != nil && c.pump.Empty() {
		c.pump.Stop()
		c.pump = nil
	}
}

// Fd is the file descriptor of stderr; an invalid one if stderr is not a file.
func (c *console) Fd() uintptr {
	if f, ok := c.Writer.(*os.File); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}
