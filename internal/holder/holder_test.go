package holder

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestDead checks processes of this machine.
func TestDead(t *testing.T) {
	t.Parallel()
	me := This()
	if runtime.GOOS != "linux" {
		t.Skip("no /proc here: no holder is ever known to be dead")
	}
	must.Be(t, me.Boot != "" && me.Namespace != "" && me.Start != "", "this process is %+v", me)
	child := exec.CommandContext(t.Context(), "sleep", "60")
	must.Do(t, child.Start())
	alive := me
	alive.PID, alive.Start = child.Process.Pid, thisMachine().start(child.Process.Pid)
	must.Hold(t, !Dead(alive) && !Suspended(alive), "a running process counts as dead, or as suspended")
	must.Do(t, child.Process.Signal(syscall.SIGSTOP))
	for tries := 0; !Suspended(alive); tries++ {
		must.Be(t, tries <= 1000, "a stopped process does not count as suspended")
		<-time.After(time.Millisecond) // another process is waited for
	}
	another := alive
	another.Start = "1"
	must.Hold(t, !Dead(alive) && !Suspended(another), "a stopped process counts as dead, or another one as suspended")
	_ = child.Process.Kill() // it is ours
	_ = child.Wait()         // "signal: killed"
	must.Hold(t, Dead(alive) && !Suspended(alive), "a process that was killed does not count as dead")
}

// TestDeadMeansDead: only a process that provably does not exist is dead.
func TestDeadMeansDead(t *testing.T) {
	t.Parallel()
	me := claim.Holder{Boot: "b00t", Namespace: "pid:[1]", PID: 7, Start: "70"}
	me.Host, _ = os.Hostname()
	other := me
	other.PID, other.Start = 42, "420"
	cases := map[string]struct {
		other   func(*claim.Holder)
		signal  error             // of kill(42, 0)
		stat    string            // start time in /proc/42/stat; "": there is no such entry
		state   string            // in it; "": S
		threads int               // of it
		proc    map[string]string // links in /proc that are otherwise
		want    bool
	}{
		"it is running":                             {stat: "420"},
		"there is no such process":                  {signal: syscall.ESRCH, want: true},
		"its number is another process's":           {stat: "999", want: true},
		"its number is another user's process":      {signal: syscall.EPERM, stat: "999", want: true},
		"/proc hides it (hidepid)":                  {},
		"another user's, which /proc hides":         {signal: syscall.EPERM},
		"another user's":                            {signal: syscall.EPERM, stat: "420"},
		"it waits to be reaped":                     {stat: "420", state: "Z", threads: 1, want: true},
		"its first thread has ended":                {stat: "420", state: "Z", threads: 2},
		"another one that waits to be reaped":       {stat: "420", state: "Z", threads: 1, other: func(h *claim.Holder) { h.Start = "" }},
		"of another PID namespace":                  {signal: syscall.ESRCH, other: func(h *claim.Holder) { h.Namespace = "pid:[2]" }},
		"of an unknown PID namespace":               {signal: syscall.ESRCH, other: func(h *claim.Holder) { h.Namespace = "" }},
		"of another boot":                           {signal: syscall.ESRCH, other: func(h *claim.Holder) { h.Boot = "other" }},
		"of another host":                           {signal: syscall.ESRCH, other: func(h *claim.Holder) { h.Host = "elsewhere" }},
		"without a number":                          {signal: syscall.ESRCH, other: func(h *claim.Holder) { h.PID = 0 }},
		"its start was not read, and it runs":       {stat: "420", other: func(h *claim.Holder) { h.Start = "" }},
		"its start was not read, and there is none": {signal: syscall.ESRCH, other: func(h *claim.Holder) { h.Start = "" }, want: true},
		"nothing at all":                            {signal: syscall.ESRCH, other: func(h *claim.Holder) { *h = claim.Holder{} }},
		"/proc is of another PID namespace":         {signal: syscall.ESRCH, stat: "999", proc: map[string]string{"self": "3001"}},
		"the own namespace can't be read":           {signal: syscall.ESRCH, proc: map[string]string{"7/ns/pid": ""}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := machine{proc: t.TempDir(), pid: me.PID, signal: func(pid int) error {
				must.Hold(t, pid == 42, "kill(%d, 0)", pid)
				return c.signal
			}}
			m.write(t, "sys/kernel/random/boot_id", "b00t\n")
			m.stat(t, me.PID, "S", me.Start)
			if c.stat != "" {
				m.stat(t, 42, c.state, c.stat)
			}
			for i := range c.threads {
				m.write(t, fmt.Sprintf("42/task/%d/stat", 42+i), "")
			}
			links := map[string]string{"self": strconv.Itoa(me.PID), "7/ns/pid": "pid:[1]"}
			maps.Copy(links, c.proc)
			for path, to := range links {
				m.link(t, path, to)
			}
			o := other
			if c.other != nil {
				c.other(&o)
			}
			got := m.dead(o)
			must.Hold(t, got == c.want, "dead = %t, want %t", got, c.want)
		})
	}
}

func (m machine) write(t *testing.T, path, text string) {
	t.Helper()
	file := filepath.Join(m.proc, path)
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.Do(t, os.WriteFile(file, []byte(text), 0o644))
}

// stat writes the format of proc_pid_stat(5) for a process with a misleading name.
func (m machine) stat(t *testing.T, pid int, state, start string) {
	t.Helper()
	if state == "" {
		state = "S"
	}
	m.write(t, fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (a) S 1) %s%s %s 0 0\n", pid, state, strings.Repeat(" 0", 18), start))
}

func (m machine) link(t *testing.T, path, to string) {
	t.Helper()
	if to == "" {
		return
	}
	file := filepath.Join(m.proc, path)
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.Do(t, os.Symlink(to, file))
}
