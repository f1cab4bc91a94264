// Package command runs a program of the user's, with all that it starts.
package command

import (
	"bytes"
	"context"
	"os/exec"
	"syscall"
	"time"
)

// endWithin is what a program that was told to end gets for it.
const endWithin = 20 * time.Second

// Program is what is run.
type Program struct {
	Args  []string // the program and its arguments
	Dir   string   // where it runs; "": here
	Env   []string // nil: that of this process
	Stdin []byte   // nil: none
	// Stop ends what a signal to the program may not reach, such as a container.
	// It is called when the program is told to end, and once more after that; nil:
	// there is no such thing.
	Stop func()
}

// Run runs the program to its end and has said read what it prints. Where the
// context ends first, so does the program with all that it started, and the error
// is why the context ended.
func (p Program) Run(ctx context.Context, said *Lines) error {
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env = p.Dir, p.Env
	cmd.Stdout, cmd.Stderr = said, said
	if p.Stdin != nil {
		cmd.Stdin = bytes.NewReader(p.Stdin)
	}
	// A group of its own: Ctrl-C on the terminal is for recast to decide about.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		p.stop()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = endWithin
	err := cmd.Run()
	said.End()
	if ctx.Err() == nil {
		return err
	}
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // that nothing is left is the best answer
	}
	p.stop() // what it ends may have been made after the first call
	return context.Cause(ctx)
}

func (p Program) stop() {
	if p.Stop != nil {
		p.Stop()
	}
}
