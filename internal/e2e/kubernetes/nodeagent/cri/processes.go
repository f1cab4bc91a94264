package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/jail"
)

// StartContainer starts a container's program. It fails as other runtimes do if there is
// no such program: the container has exited, with 128.
func (r *Runtime) StartContainer(_ context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	spec, err := c.spec(r.apiHost, r.apiPort)
	if err == nil {
		err = r.start(c, spec)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("unable to start container process: error during container init: %w", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state == runtimeapi.ContainerState_CONTAINER_CREATED {
		c.reason, c.message, c.record.ExitCode, c.record.FinishedAt = "StartError", err.Error(), 128, time.Now()
		c.state = runtimeapi.ContainerState_CONTAINER_EXITED
		close(c.ended)
		err = errors.Join(err, r.store.container(c))
	}
	return status.Error(codes.Unknown, err.Error())
}

// start starts the process of a container and waits until it executes its program.
func (r *Runtime) start(c *container, spec jail.Spec) error {
	p, err := r.launch(spec, &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true,
	})
	if err != nil {
		return err
	}
	var copying sync.WaitGroup
	copying.Go(func() { c.log.copy("stdout", p.stdout) })
	copying.Go(func() { c.log.copy("stderr", p.stderr) })
	if err := p.began(); err != nil {
		copying.Wait()
		return err
	}
	r.mu.Lock()
	c.process, c.running, c.state = p.cmd.Process, spec, runtimeapi.ContainerState_CONTAINER_RUNNING
	c.record.PID, c.record.StartedAt = p.cmd.Process.Pid, time.Now()
	err = r.store.container(c)
	r.mu.Unlock()
	go r.await(c, p.cmd, &copying)
	return err
}

// await keeps what becomes of a container.
func (r *Runtime) await(c *container, cmd *exec.Cmd, copying *sync.WaitGroup) {
	_ = cmd.Wait() // ProcessState has it all
	finished := time.Now()
	copying.Wait() // with the first process of a PID namespace, all others in it have ended
	r.mu.Lock()
	defer r.mu.Unlock()
	w := cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := int32(w.ExitStatus())
	if w.Signaled() {
		code = 128 + int32(w.Signal())
	}
	c.reason = "Completed"
	if code != 0 {
		c.reason = "Error"
	}
	if _, err := os.Stat(r.config.OOM(c.record.ID)); err == nil && w.Signaled() {
		c.reason = "OOMKilled"
	}
	c.record.ExitCode, c.record.FinishedAt = code, finished
	c.state = runtimeapi.ContainerState_CONTAINER_EXITED
	if err := r.store.container(c); err != nil {
		fmt.Fprintln(os.Stderr, "store a container:", err)
	}
	close(c.ended)
}

// StopContainer asks a container to end, and kills it after that many seconds.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	c, err := r.container(id)
	if err != nil {
		return nil // as runtimes do
	}
	r.signal(c, syscall.SIGTERM)
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(timeout) * time.Second):
	}
	r.kill(c)
	return nil
}

// kill kills a container and waits for its end.
func (r *Runtime) kill(c *container) {
	if r.signal(c, syscall.SIGKILL) {
		<-c.ended
	}
}

// signal reports whether there was a process to send the signal to. One of a container
// that was never started is over.
func (r *Runtime) signal(c *container, s syscall.Signal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch c.state {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		_ = c.process.Signal(s) // it may have ended just now
		return true
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.state = runtimeapi.ContainerState_CONTAINER_EXITED
		close(c.ended)
	}
	return false
}
