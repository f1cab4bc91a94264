package command

import (
	"io"
	"os"
	"time"
)

// output reads what a program and its children print.
type output struct {
	pipe *os.File
	said *Lines
	done chan struct{} // closed at the end of the output
}

func readOutput(pipe *os.File, said *Lines) *output {
	o := &output{pipe: pipe, said: said, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		_, _ = io.Copy(said, pipe) // ends with the last writer, or when the pipe is closed
	}()
	return o
}

// waitClosed waits until all writers are gone, for that long at most.
func (o *output) waitClosed(within time.Duration) {
	select {
	case <-o.done:
	case <-time.After(within):
	}
}

// end reads the rest. It closes the pipe after closeTimeout: a child outside the process
// group may hold it open.
func (o *output) end() {
	o.waitClosed(closeTimeout)
	_ = o.pipe.Close() // it was only read
	<-o.done
	o.said.End()
}
