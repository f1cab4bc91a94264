// Package command runs a program of the user's, with all that it starts.
package command

import (
	"context"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	endWithin   = 20 * time.Second // is what a program that was told to end gets for it
	closeWithin = time.Second      // is what the output of one that has ended gets to close
)

// Program is what is run.
type Program struct {
	Args  []string // the program and its arguments
	Dir   string   // where it runs; "": here
	Env   []string // what Environ passes on; nil: nothing at all
	Stdin []byte   // nil: none
	// Stop ends what a signal to the program may not reach, such as a container.
	// It is called when the program is told to end, and once more after that; nil:
	// there is no such thing.
	Stop func()
}

// Run runs the program to its end and has said read what it prints. Nothing that
// it has left running in its process group outlives it. Where the context ends
// first, so does the program, and the error is why the context ended.
func (p Program) Run(ctx context.Context, said *Lines) error {
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env = p.Dir, append([]string{}, p.Env...) // exec takes nil for the whole environment of this process
	// A group of its own: Ctrl-C on the terminal is for recast to decide about.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var told time.Time
	cmd.Cancel = func() error {
		told = time.Now()
		p.stop()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = endWithin
	out, err := p.start(cmd, said)
	if err == nil {
		err = cmd.Wait()
		if !told.IsZero() {
			out.closed(time.Until(told.Add(endWithin))) // whoever was told and still prints is tidying up
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // that nothing is left is the best answer
		out.end()
	}
	if ctx.Err() == nil {
		return err
	}
	p.stop() // what it ends may have been made after the first call
	return context.Cause(ctx)
}

// start starts the program. Its output is a pipe of ours, as Wait would not
// return before every child that has inherited one of its own is gone.
func (p Program) start(cmd *exec.Cmd, said *Lines) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, w
	var stdin io.WriteCloser
	if p.Stdin != nil {
		stdin, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	if stdin != nil {
		go feed(stdin, p.Stdin)
	}
	return readOutput(r, said), nil
}

// feed ends at the latest when Wait closes the pipe. A program need not read all
// of its input.
func feed(stdin io.WriteCloser, input []byte) {
	_, _ = stdin.Write(input)
	_ = stdin.Close()
}

func (p Program) stop() {
	if p.Stop != nil {
		p.Stop()
	}
}
