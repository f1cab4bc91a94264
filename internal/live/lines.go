package live

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Lines writes events and other text as JSON: one object a line.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLines writes to w.
func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

// Emit writes one event.
func (l *Lines) Emit(e step.Event) {
	out := story.Line{Time: time.Now(), Msg: "step", Step: e.Path, Status: e.Status.String(), Title: e.Title, Text: e.Text}
	if _, node, _ := planning.NodeOfStep(e.Path); node != "" {
		out.Node = node
	}
	if e.Status == step.Started {
		out.Risk = e.Risk.String()
	}
	if e.Err != nil {
		out.Error, out.Hints = e.Err.Error(), fault.Hints(e.Err)
	}
	l.write(out)
}

// Write writes other text: warnings, errors, hints.
func (l *Lines) Write(p []byte) (int, error) {
	for text := range strings.Lines(string(p)) {
		if text = strings.TrimRight(text, "\r\n"); text != "" {
			l.write(story.Line{Time: time.Now(), Msg: "said", Text: text})
		}
	}
	return len(p), nil
}

func (l *Lines) write(out story.Line) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(foreign.JSON(text.Bytes())) // a closed output must not stop the run
}
