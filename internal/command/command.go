// Package command runs a user's [Program] and all that it starts, with an environment
// without secrets. [Gates] runs those of gates and hooks.
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
	stopTimeout  = 20 * time.Second // from SIGTERM until the program is killed
	closeTimeout = time.Second      // for the output of an ended program to close
)

// Program is a program to run.
type Program struct {
	Args  []string // program and arguments
	Dir   string   // working directory; "": the current one
	Env   []string // result of Environ; nil: empty
	Stdin []byte   // nil: none
	// Stdout gets what the program writes to its standard output, instead of said; may be nil.
	Stdout io.Writer
	// Stop ends what a signal to the program may not reach, such as a container. It is called
	// with the signal and once more after the program has ended; may be nil.
	Stop func()
}

// Run runs the program to its end and writes its output to said. It kills whatever is left
// in the program's process group. If the context ends first, the program is stopped and
// the error is the context's cause.
func (p Program) Run(ctx context.Context, said *Lines) error {
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env = p.Dir, append([]string{}, p.Env...) // exec takes nil for this process's environment
	// Its own process group: recast itself handles Ctrl-C.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stopped time.Time
	cmd.Cancel = func() error {
		stopped = time.Now()
		p.stop()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = stopTimeout
	out, err := p.start(cmd, said)
	if err == nil {
		err = cmd.Wait()
		if !stopped.IsZero() {
			out.waitClosed(time.Until(stopped.Add(stopTimeout))) // it may still print while it cleans up
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually nothing is left
		out.end()
	}
	if ctx.Err() == nil {
		return err
	}
	p.stop() // the first call may have come before there was anything to end
	return context.Cause(ctx)
}

// start starts the program. Its output is a pipe of ours, since Wait would not return
// before every child that inherited exec's own pipe is gone.
func (p Program) start(cmd *exec.Cmd, said *Lines) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if p.Stdout != nil {
		cmd.Stdout = p.Stdout
	}
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

// feed ends at the latest when Wait closes the pipe. A program need not read all of its
// input.
func feed(stdin io.WriteCloser, input []byte) {
	_, _ = stdin.Write(input)
	_ = stdin.Close()
}

func (p Program) stop() {
	if p.Stop != nil {
		p.Stop()
	}
}
