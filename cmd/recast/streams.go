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

// streams are where a command reads and writes: out is the answer, err the story.
type streams struct {
	in  io.Reader
	out io.Writer
	err *console

	interrupts *interrupts
	command    string               // that is carried out: "recast roll"
	progress   string               // how its steps are told
	lines      *live.Lines          // nil: not as JSON
	telemetry  *telemetry.Telemetry // nil: of no command yet
}

// interrupts passes the first Ctrl-C to whoever is running, and the second to the context.
type interrupts struct {
	mu   sync.Mutex
	stop func() // of the running roll; nil: the first one cancels
	what string // is done before it stops
}

// onFirst makes the first Ctrl-C call stop instead of cancelling, and say what is
// done before that. The returned func undoes it.
func (i *interrupts) onFirst(stop func(), what string) (undo func() error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stop, i.what = stop, what
	return func() error {
		i.forget()
		return nil
	}
}

// forget has the first Ctrl-C cancel again. It says whether it was pressed before that.
func (i *interrupts) forget() (pressed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	pressed = i.pressed()
	i.stop, i.what = nil, ""
	return pressed
}

// pressed says whether the first Ctrl-C was. The caller holds the lock.
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

// hangUp is the first Ctrl-C for a roll whose terminal goes away, and nothing more:
// nobody has asked to stop it at once. It says whether that is all there is to do.
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
// a stop, or a cancel where there is nothing to be finished.
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
				fmt.Fprintf(s.err, "stopping: %s; press Ctrl-C again to stop at once (the same command again goes on)\n", what)
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
