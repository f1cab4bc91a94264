package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// ExecSync runs a command in a container, for a probe or a hook. After the timeout, 0
// being none, it is killed.
func (r *Runtime) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	c, err := r.container(id)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	spec, pid, running := c.running, c.record.PID, c.state == runtimeapi.ContainerState_CONTAINER_RUNNING
	r.mu.Unlock()
	if !running {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "container %q is not running", id)
	}
	spec.Join, spec.Args = pid, command
	l, err := r.launch(spec, &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		return nil, nil, err
	}
	var out, errs bytes.Buffer
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(&out, l.stdout); _ = l.stdout.Close() }) // what there is is enough
	copying.Go(func() { _, _ = io.Copy(&errs, l.stderr); _ = l.stderr.Close() })
	if err := l.began(); err != nil {
		copying.Wait()
		return nil, nil, err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL) }) // with its child; both may have ended
	err = l.cmd.Wait()
	stop()
	copying.Wait()
	if ctx.Err() != nil {
		return out.Bytes(), errs.Bytes(), status.Errorf(codes.DeadlineExceeded, "command %q timed out", command)
	}
	if code := l.cmd.ProcessState.ExitCode(); code != 0 {
		err = errors.Join(err, errors.New(errs.String()))
		return out.Bytes(), errs.Bytes(), utilexec.CodeExitError{Err: fmt.Errorf("command %q exited with %d: %w", command, code, err), Code: code}
	}
	return out.Bytes(), errs.Bytes(), err
}
