package command

import (
	"context"

	"github.com/recast-sh/recast/cluster"
)

// maxHookLines limits the lines that a running hook can report.
const maxHookLines = 200

// RunHook runs a hook's program once. It returns the end of its output even on an error.
// Errors are those of RunGate.
func (g Gates) RunHook(ctx context.Context, hook cluster.CommandGate, env []string, line func(text string)) (cluster.HookEnd, error) {
	var kept tail
	count := 0
	lines := &Lines{Note: func(text string) {
		kept.add(text)
		switch count++; {
		case count <= maxHookLines:
			line(text)
		case count == maxHookLines+1:
			line("further output is not shown here; the report has the end of it")
		}
	}}
	exit, err := g.run(ctx, hook, env, lines, "roll.hooks")
	return cluster.HookEnd{Exit: exit, Said: lines.Last(), Output: kept.String()}, err
}

// tail is the last lines of a text, at most cluster.HookOutput bytes.
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
