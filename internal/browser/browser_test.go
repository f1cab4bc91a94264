package browser

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// recast does not wait for a browser that the opener leaves behind, whatever it has
// inherited, and it gets no Ctrl-C from recast.
func TestShow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opener := filepath.Join(dir, "opener") // sh stands for the program, this for the report
	must.Do(t, os.WriteFile(opener, []byte("sleep 100 &\necho $! >"+dir+"/pid\necho opened\n"), 0o600))
	began := time.Now()
	must.Do(t, Show(t.Context(), "sh", opener))
	took := time.Since(began)
	must.Hold(t, took <= 20*time.Second, "it took %s", took)
	text := must.Get(os.ReadFile(filepath.Join(dir, "pid")))(t)
	pid := must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t)
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }() // or it ends by itself
	if group, err := syscall.Getpgid(pid); err != nil || group == syscall.Getpgrp() {
		t.Errorf("the browser is in group %d, as recast is; %v", group, err)
	}
}

func TestShowFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	none, wrong := filepath.Join(dir, "no-such-opener"), filepath.Join(dir, "wrong")
	must.Do(t, os.WriteFile(wrong, []byte("exit 3\n"), 0o600))
	if err := Show(t.Context(), "sh", wrong); err == nil || !strings.Contains(err.Error(), "open "+wrong+": sh: exit status 3") {
		t.Errorf("one that can't: %v", err)
	}
	if err := Show(t.Context(), none, wrong); err == nil || len(fault.Hints(err)) != 1 {
		t.Errorf("none: %v", err)
	}
}
