package command

import (
	"io"
	"os"
	"time"
)

// output is what a program and its children print, being read.
type output struct {
	pipe *os.File
	said *Lines
	done chan struct{} // is closed when there is no more to read
}

func readOutput(pipe *os.File, said *Lines) *output {
	o := &output{pipe: pipe, said: said, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		_, _ = io.Copy(said, pipe) // ends with the last writer, or when the pipe is closed
	}()
	return o
}

// closed waits so long for all who print to be gone.
func (o *output) closed(within time.Duration) {
	select {
	case <-o.done:
	case <-time.After(within):
	}
}

// end reads the rest. A child that has left the process group may hold the pipe
// for ever.
func (o *output) end() {
	o.closed(closeWithin)
	_ = o.pipe.Close() // it was only read
	<-o.done
	o.said.End()
}
