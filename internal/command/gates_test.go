package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestRunHook(t *testing.T) {
	t.Parallel()
	hooks := command.Gates{Env: []string{"PATH=" + os.Getenv("PATH"), "PROXMOX_VE_API_TOKEN=u@pve!t=s3cret"}}
	cases := map[string]struct {
		hook cluster.CommandGate
		end  cluster.HookEnd
		told int
		err  string
		kind fault.Kind
	}{
		"done":            {hook: shell("echo one; echo two >&2"), end: cluster.HookEnd{Said: "one; two", Output: "one\ntwo\n"}, told: 2},
		"failed":          {hook: shell("echo one; exit 3"), end: cluster.HookEnd{Exit: 3, Said: "one", Output: "one\n"}, told: 1},
		"its environment": {hook: shell("echo $RECAST_HOOK ${PROXMOX_VE_API_TOKEN-none}"), end: cluster.HookEnd{Said: "beforeNode none", Output: "beforeNode none\n"}, told: 1},
		"killed":          {hook: shell("echo one; kill -9 $$"), end: cluster.HookEnd{Said: "one", Output: "one\n"}, told: 1, err: "run sh: signal: killed"},
		"not in PATH":     {hook: cluster.CommandGate{Args: []string{"no-such-program"}}, err: "run no-such-program: ", kind: fault.Refused},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := 0
			end, err := hooks.RunHook(t.Context(), c.hook, []string{"RECAST_HOOK=beforeNode"}, func(string) { told++ })
			must.Hold(t, end == c.end && told == c.told, "%+v, told %d lines; want %+v, %d", end, told, c.end, c.told)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err) || fault.KindOf(err) != c.kind) {
				t.Errorf("kind %d: %v", fault.KindOf(err), err)
			}
			if c.kind == fault.Refused && !strings.Contains(strings.Join(fault.Hints(err), ""), "command in roll.hooks") {
				t.Errorf("hints %q", fault.Hints(err))
			}
		})
	}
}

// The end of the output is kept, and the progress shows a limited number of lines.
func TestRunHookWithMuchOutput(t *testing.T) {
	t.Parallel()
	var told []string
	end := must.Get(command.Gates{Env: os.Environ()}.RunHook(t.Context(), shell("seq -f %0300g 1 1000"), nil, func(line string) { told = append(told, line) }))(t)
	if len(told) != 201 || told[0] != fmt.Sprintf("%0300d", 1) || told[200] != "further output is not shown here; the report has the end of it" {
		t.Errorf("told %d lines, the last %q", len(told), told[len(told)-1])
	}
	lines := cluster.HookOutput / 301
	if first := fmt.Sprintf("%0300d\n", 1000-lines+1); !strings.HasPrefix(end.Output, first) || !strings.HasSuffix(end.Output, "01000\n") || len(end.Output) != lines*301 {
		t.Errorf("kept %d bytes, up to %q", len(end.Output), end.Said)
	}
}

// The output of a hook that timed out is kept as well.
func TestRunHookEndsWithItsTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	end, err := command.Gates{Env: os.Environ()}.RunHook(ctx, shell("echo begun; sleep 1000 & wait"), nil, func(string) { cancel(over) })
	must.Hold(t, errors.Is(err, over) && end.Output == "begun\n", "%+v, %v", end, err)
}
