package imager

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
)

// stopWithin bounds the time to stop a container.
const stopWithin = 10 * time.Second

// run runs the program to its end. If the context ends first, the program and all
// that it started end, too.
func (p program) run(ctx context.Context, timeout time.Duration, stdin []byte, note func(string)) error {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it was stopped because it had not ended after %v", timeout))
	defer cancel()
	said := newLines(note)
	err := command.Program{Args: p.args, Env: p.env, Stdin: stdin, Stop: func() { p.stopContainer(ctx) }}.Run(limited, said)
	if limited.Err() == nil {
		return p.explain(err, said)
	}
	return errors.Join(err, last(said))
}

// stopContainer ends the container, if there is one: the program only asked a daemon
// to run it. An error means that the container, or the daemon, is gone.
func (p program) stopContainer(ctx context.Context) {
	if p.stop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.stop[0], p.stop[1:]...)
	cmd.Env = p.env
	_ = cmd.Run()
}

// explain adds the program's last line to how it ended.
func (p program) explain(err error, said *command.Lines) error {
	if err == nil {
		return nil
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	if last := last(said); last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	// docker-run(1), podman-run(1): 125 is the engine's own failure, not the container's.
	if p.stop != nil && ended && exit.ExitCode() == 125 {
		return fault.WithHint(fault.BuildFailed.Of(err), "%s itself failed: see whether `%s info` works for this user, and whether the image can be pulled", p.args[0], p.args[0])
	}
	return err
}
