package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/sim/must"
)

// ordinary is a copy of this program that an ordinary user may run, and the attributes of that user's process. Root can
// read everything, so a test that runs as root needs another user.
func ordinary(t *testing.T) (self string, as *syscall.SysProcAttr) {
	t.Helper()
	self = must.Get(os.Executable())(t)
	if os.Geteuid() != 0 {
		return self, nil
	}
	dir := must.Get(os.MkdirTemp("", "recast-hidden-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	from := must.Get(os.Open(self))(t)
	defer from.Close()
	self = filepath.Join(dir, "recast")
	to, err := os.OpenFile(self, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close(), os.Chmod(dir, 0o755))
	}
	must.Do(t, err)
	const nobody = 65534
	return self, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// TestTokensAreHidden starts recast, which waits for its configuration, and inspects it
// from another process of the same user.
func TestTokensAreHidden(t *testing.T) {
	self, as := ordinary(t)
	pipe := filepath.Join(t.TempDir(), "recast.yaml")
	must.Do(t, syscall.Mkfifo(pipe, 0o644))
	for dir := filepath.Dir(pipe); dir != os.TempDir(); dir = filepath.Dir(dir) {
		must.Do(t, os.Chmod(dir, 0o755))
	}
	c := exec.CommandContext(t.Context(), self, "-c", pipe, "status")
	c.SysProcAttr, c.Dir = as, os.TempDir()
	c.Env = []string{"RECAST_TEST_MAIN=1", "PROXMOX_VE_API_TOKEN=planted"}
	must.Do(t, c.Start())
	defer func() { _ = c.Wait() }() // what it makes of an empty configuration is of no interest
	var config *os.File
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		var err error
		if config, err = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // once someone reads
			break
		}
		must.Be(t, time.Since(began) <= time.Minute, "%v", err)
	}
	defer config.Close() // before Wait, which waits for this
	read := func(file string) ([]byte, error) {
		cat := exec.CommandContext(t.Context(), "cat", fmt.Sprintf("/proc/%d/%s", c.Process.Pid, file))
		cat.SysProcAttr, cat.Dir = as, os.TempDir()
		return cat.CombinedOutput()
	}
	for _, file := range []string{"environ", "mem", "maps"} {
		if b, err := read(file); err == nil || bytes.Contains(b, []byte("planted")) || !bytes.Contains(b, []byte("Permission denied")) {
			t.Errorf("%s can be read: %v, %d bytes, the token among them: %t", file, err, len(b), bytes.Contains(b, []byte("planted")))
		}
	}
	if b, err := read("stat"); err != nil { // by which a claim's holder is found dead
		t.Errorf("stat can't be read: %v: %s", err, b)
	}
}

// TestHiddenHolder: a hidden process can still identify the holder of a claim, and its child processes are not hidden.
func TestHiddenHolder(t *testing.T) {
	self, as := ordinary(t)
	c := exec.CommandContext(t.Context(), self)
	c.SysProcAttr, c.Dir = as, os.TempDir()
	c.Env = []string{"RECAST_TEST_HOLDER=1", "PATH=" + os.Getenv("PATH")}
	out := must.Get(c.Output())(t)
	var got struct {
		Holder claim.Holder
		Dead   bool
		Child  string
	}
	err := json.Unmarshal(out, &got)
	must.Be(t, err == nil, "%v: %s", err, out)
	if got.Holder.Start == "" || got.Holder.Boot == "" || !strings.HasPrefix(got.Holder.Namespace, "pid:[") || got.Dead || !strings.HasPrefix(got.Child, "PATH=") {
		t.Errorf("%+v", got)
	}
}
