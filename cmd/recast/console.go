package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/recast-sh/recast/internal/foreign"
)

// console is stderr. While something is drawn on it, or it is JSON, text that is
// written to it goes through there; while steps are told, nobody waits for its reader.
type console struct {
	io.Writer

	mu   sync.Mutex
	take func([]byte) bool // false: it is written as it is; nil: all is
	pump *pump             // nil: whoever writes waits
}

func (c *console) to(take func([]byte) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take = take
}

// Write implements io.Writer. What others have written reaches no terminal as it is.
func (c *console) Write(p []byte) (int, error) {
	if _, err := c.write([]byte(foreign.Lines(string(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Clean is the console for text that is clean, and may have colours.
func (c *console) Clean() io.Writer { return clean{c} }

type clean struct{ *console }

// Write implements io.Writer.
func (c clean) Write(p []byte) (int, error) { return c.write(p) }

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

// beneath is the console for what is to be written as it is.
type beneath struct{ *console }

// Write implements io.Writer.
func (b beneath) Write(p []byte) (int, error) { return b.put(p) }

// flows has nobody wait any more who writes.
func (c *console) flows() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump == nil {
		c.pump = newPump(c.Writer, func(writes int64) {
			fmt.Fprintf(c, "warning: %d lines are missing here: nobody read them in time\n", writes)
		})
	}
}

// flush waits until all is written, for as long as somebody reads.
func (c *console) flush() {
	c.mu.Lock()
	p := c.pump
	c.mu.Unlock()
	if p != nil {
		p.flush()
	}
}

// drain waits until all is written, or ctx ends: somebody may read on later.
func (c *console) drain(ctx context.Context) {
	c.mu.Lock()
	p := c.pump
	c.mu.Unlock()
	if p == nil {
		return
	}
	p.flush() // after Ctrl-C, too
	for p.left.Load() > 0 {
		select {
		case <-p.wrote:
		case <-ctx.Done():
			return
		}
	}
}

// rests has whoever writes wait again, unless nobody reads.
func (c *console) rests() {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pump != nil && c.pump.left.Load() == 0 {
		c.pump.stop()
		c.pump = nil
	}
}

// Fd is that of the file that stderr is; no file's if it is none.
func (c *console) Fd() uintptr {
	if f, ok := c.Writer.(*os.File); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}
