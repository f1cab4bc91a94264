package jail

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces of a process are joined in this order: afterwards, /proc is the container's.
var namespaces = []struct {
	name string
	flag int
}{{"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}

// Exec runs the program in a container that runs already, and returns its exit code. The
// calling thread must be locked. report is closed when the program has been started.
func (s Spec) Exec(report *os.File) (code int, err error) {
	unix.CloseOnExec(int(report.Fd()))
	// A thread that shares its root and working directory with others can't change the
	// mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return 0, fmt.Errorf("unshare: %w", err)
	}
	var open []*os.File
	for _, ns := range namespaces {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", s.Join, ns.name))
		if err != nil {
			return 0, err
		}
		open = append(open, f)
	}
	for i, ns := range namespaces {
		if err := unix.Setns(int(open[i].Fd()), ns.flag); err != nil {
			return 0, &fs.PathError{Op: "join", Path: open[i].Name(), Err: err}
		}
	}
	runtime.KeepAlive(open) // they are closed on exec
	if err := os.Chdir(s.Dir); err != nil {
		return 0, fmt.Errorf("enter the working directory: %w", err)
	}
	if err := s.takeIdentity(); err != nil {
		return 0, err
	}
	program, err := s.lookPath()
	if err != nil {
		return 0, err
	}
	// Only children are in the PID namespace. This one ends with the container.
	child, err := os.StartProcess(program, s.Args, &os.ProcAttr{Env: s.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	if err := report.Close(); err != nil {
		return 0, err
	}
	ended, err := child.Wait()
	if err != nil {
		return 0, err
	}
	w := ended.Sys().(syscall.WaitStatus)
	if w.Signaled() {
		return 128 + int(w.Signal()), nil
	}
	return w.ExitStatus(), nil
}
