package cri

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/jail"
)

// launched is a process of containerinit.
type launched struct {
	cmd *exec.Cmd
	// stdout and stderr are to be read and closed by the caller.
	stdout, stderr *os.File
	report         *os.File
	err            error // of what it should have read
}

// launch starts containerinit.
func (r *Runtime) launch(spec jail.Spec, attr *syscall.SysProcAttr) (*launched, error) {
	var theirs, ours [4]*os.File // spec, report, stdout, stderr
	for i := range theirs {
		read, write, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, closeAll(theirs[:i]), closeAll(ours[:i]))
		}
		theirs[i], ours[i] = write, read
		if i == 0 {
			theirs[i], ours[i] = read, write
		}
	}
	cmd := exec.Command(r.init)
	cmd.Stdout, cmd.Stderr = theirs[2], theirs[3]
	cmd.ExtraFiles = []*os.File{theirs[0], theirs[1]}
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = attr
	started := make(chan error)
	r.fork <- func() { started <- cmd.Start() }
	err := errors.Join(<-started, closeAll(theirs[:])) // the process has its own
	if err != nil {
		return nil, errors.Join(err, closeAll(ours[:]))
	}
	l := &launched{cmd: cmd, stdout: ours[2], stderr: ours[3], report: ours[1]}
	l.err = errors.Join(json.NewEncoder(ours[0]).Encode(spec), ours[0].Close())
	return l, nil
}

// began waits until the program runs. Otherwise there is no process any more, and the
// error is its report.
func (l *launched) began() error {
	report, err := io.ReadAll(l.report)
	if err = errors.Join(l.err, err, l.report.Close()); err == nil && len(report) == 0 {
		return nil
	}
	_ = l.cmd.Process.Kill() // it may have ended
	_ = l.cmd.Wait()         // the report says why it ended
	if len(report) > 0 {
		return errors.New(string(report))
	}
	return err
}

func closeAll(files []*os.File) (err error) {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
