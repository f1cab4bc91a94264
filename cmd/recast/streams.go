package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/telemetry"
)

// streams are where a command reads and writes: out is the answer, err the progress.
type streams struct {
	in  io.Reader
	out io.Writer
	err *console

	interrupts *interrupts
	command    string               // the running command: "recast roll"
	progress   string               // value of --progress
	lines      *live.Lines          // nil: not --progress json
	telemetry  *telemetry.Telemetry // nil: not started yet
}

// interrupts sends the first Ctrl-C to the running roll, and the second to the context.
type interrupts struct {
	mu   sync.Mutex
	stop func() // stops the running roll; nil: the first Ctrl-C cancels
	what string // what is done before it stops
}

// onFirst makes the first Ctrl-C call stop instead of cancelling; what tells the user
// what is still done. The returned func undoes it.
func (i *interrupts) onFirst(stop func(), what string) (undo func() error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stop, i.what = stop, what
	return func() error {
		i.forget()
		return nil
	}
}

// forget makes the first Ctrl-C cancel again. It says whether Ctrl-C was pressed before.
func (i *interrupts) forget() (pressed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	pressed = i.pressed()
	i.stop, i.what = nil, ""
	return pressed
}

// pressed says whether Ctrl-C was pressed once. The caller holds the lock.
func (i *interrupts) pressed() bool { return i.stop == nil && i.what != "" }

func (i *interrupts) first() (what string, stopped bool) {
	i.mu.Lock()
	stop, what := i.stop, i.what
	i.stop = nil
	i.mu.Unlock()
	if stop == nil {
		return "", false
	}
	stop()
	return what, true
}

// hangUp treats the loss of the terminal as the first Ctrl-C, never as the second: the
// user did not ask to stop at once. It returns false if there is no roll to stop.
func (i *interrupts) hangUp() bool {
	i.mu.Lock()
	stop, stopped := i.stop, i.pressed()
	i.stop = nil
	i.mu.Unlock()
	if stop != nil {
		stop()
	}
	return stop != nil || stopped
}

// interruptible turns SIGINT and SIGTERM into a stop, then a cancel, and SIGHUP into
// a stop, or a cancel if there is nothing to finish.
func interruptible(parent context.Context, s *streams) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case got := <-signals:
				if got == syscall.SIGHUP && s.interrupts.hangUp() {
					continue
				}
			}
			if what, stopped := s.interrupts.first(); stopped {
				fmt.Fprintf(s.err, "stopping: %s; press Ctrl-C again to stop at once (run the same command again to continue)\n", what)
				continue
			}
			cancel()
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
		cancel()
	}
}
