package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadSpec reads a Spec from a file and closes it.
func ReadSpec(from *os.File) (s Spec, err error) {
	if err := json.NewDecoder(from).Decode(&s); err != nil {
		return s, fmt.Errorf("read the container's spec: %w", err)
	}
	return s, from.Close()
}

// Become executes the container's program; it returns only an error. The process must be
// the first one in new mount, PID and UTS namespaces, and the calling thread locked.
// report is closed when the program is executed.
func (s Spec) Become(report *os.File) error {
	unix.CloseOnExec(int(report.Fd()))
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := s.makeRoot(); err != nil {
		return err
	}
	if err := s.enterDir(); err != nil {
		return err
	}
	if err := s.takeIdentity(); err != nil {
		return err
	}
	program, err := s.lookPath()
	if err != nil {
		return err
	}
	return &fs.PathError{Op: "exec", Path: program, Err: unix.Exec(program, s.Args, s.Env)}
}

// enterDir makes the working directory, as runtimes do, and enters it.
func (s Spec) enterDir() error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	if err := os.Chdir(s.Dir); err != nil {
		return fmt.Errorf("enter the working directory: %w", err)
	}
	return nil
}

// lookPath is the program's path in the container; the errors are in the words of runc.
func (s Spec) lookPath() (string, error) {
	name := s.Args[0]
	if strings.Contains(name, "/") {
		if _, err := os.Stat(name); err != nil {
			return "", fmt.Errorf("exec: %q: %w", name, err)
		}
		return name, nil
	}
	for _, v := range s.Env {
		list, is := strings.CutPrefix(v, "PATH=")
		if !is {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			file := filepath.Join(dir, name)
			if i, err := os.Stat(file); err == nil && i.Mode().IsRegular() && i.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

// takeIdentity gives up what the container may not do. Afterwards the process is the
// container's user, and dies with the kubelet.
func (s Spec) takeIdentity() error {
	keep := map[int]bool{}
	for _, name := range s.Capabilities {
		n, known := capabilities[name]
		if !known {
			return fmt.Errorf("unknown capability %q", name)
		}
		keep[n] = true
	}
	for n := range unix.CAP_LAST_CAP + 1 {
		if keep[n] {
			continue
		}
		// EINVAL: the kernel is older than the capability.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", n, err)
		}
	}
	if err := unix.Setgroups(s.Groups); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	if err := unix.Setresgid(s.GID, s.GID, s.GID); err != nil {
		return fmt.Errorf("become group %d: %w", s.GID, err)
	}
	if err := unix.Setresuid(s.UID, s.UID, s.UID); err != nil {
		return fmt.Errorf("become user %d: %w", s.UID, err)
	}
	if s.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	// The kernel forgets this one with every change of identity.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent's death signal: %w", err)
	}
	return nil
}
