// Package process runs programs for as long as a test.
package process

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Process is a program that runs. It is killed when the test ends, and then, if the test
// has failed, the end of its output is logged.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}

	// Said has its output.
	Said *Tail
}

// Start starts a program, which is called name in messages.
func Start(t *testing.T, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, ended: make(chan struct{}), Said: new(Tail)}
	cmd.Stdout, cmd.Stderr = p.Said, p.Said
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() { _ = cmd.Wait(); close(p.ended) }() // how it ended is in its output
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of what %s said:\n%s", name, p.Said)
		}
	})
	return p
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// PID is its process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process, which may have ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill kills the process, unless it has ended, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// Built is the path of a program that internal/tools/build has built.
func Built(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.Getwd() // that of the test's package
	if err != nil {
		t.Fatal(err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		path := filepath.Join(at, "bin", "e2e", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		if at == filepath.Dir(at) {
			t.Fatalf("no directory above %s has bin/e2e/%s: make e2e-k8s builds it", dir, name)
		}
	}
}

// Tail keeps the end of what is written to it.
type Tail struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (l *Tail) Write(b []byte) (int, error) {
	const kept = 64 << 10
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said.Len() > 2*kept {
		l.said.Next(l.said.Len() - kept)
	}
	return l.said.Write(b)
}

// String is the last lines.
func (l *Tail) String() string {
	const lines = 30
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.SplitAfter(l.said.String(), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// FreeAddress is an address of the loopback interface on which nothing listens. Its port is below the system's ephemeral
// ports, one of which a connection could take before a server listens there, and below those that labs take.
func FreeAddress(t *testing.T) string {
	t.Helper()
	const first, last, tries = 10000, 20000, 100
	var lc net.ListenConfig
	for range tries {
		l, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first)))
		if err != nil {
			continue // taken
		}
		defer l.Close()
		return l.Addr().String()
	}
	t.Fatalf("no free port at 127.0.0.1 between %d and %d", first, last)
	return ""
}
