package command

import (
	"context"

	"github.com/recast-sh/recast/cluster"
)

// toldLines are as many as are told of one hook while it runs.
const toldLines = 200

// RunHook runs the program of a hook once, and keeps the end of what it prints
// also where it could not be run to its end. Errors are as of RunGate.
func (g Gates) RunHook(ctx context.Context, hook cluster.CommandGate, env []string, line func(text string)) (cluster.HookEnd, error) {
	var kept tail
	told := 0
	lines := &Lines{Note: func(text string) {
		kept.add(text)
		switch told++; {
		case told <= toldLines:
			line(text)
		case told == toldLines+1:
			line("it prints more than is shown here; the report has the end of it")
		}
	}}
	exit, err := g.run(ctx, hook, env, lines, "roll.hooks")
	return cluster.HookEnd{Exit: exit, Said: lines.Last(), Output: kept.String()}, err
}

// tail is the last lines of a text, cluster.HookOutput bytes of them at most.
type tail struct {
	lines []string
	bytes int
}

func (t *tail) add(line string) {
	line += "\n"
	t.lines, t.bytes = append(t.lines, line), t.bytes+len(line)
	for t.bytes > cluster.HookOutput {
		t.bytes -= len(t.lines[0])
		t.lines = t.lines[1:]
	}
}

func (t *tail) String() string {
	b := make([]byte, 0, t.bytes)
	for _, line := range t.lines {
		b = append(b, line...)
	}
	return string(b)
}
