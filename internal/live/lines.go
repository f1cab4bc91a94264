package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
)

// line is an event as JSON, in a run's log and with --progress json.
type line struct {
	Time   time.Time `json:"time"`
	Msg    string    `json:"msg"` // "step", or "said" for other text
	Step   string    `json:"step,omitempty"`
	Status string    `json:"status,omitempty"`
	Node   string    `json:"node,omitempty"`
	Title  string    `json:"title,omitempty"`
	Text   string    `json:"text,omitempty"`
	Risk   string    `json:"risk,omitempty"`
	Error  string    `json:"error,omitempty"`
	Hints  []string  `json:"hints,omitempty"`
}

// Lines writes events and other text as JSON: one object a line.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLines writes to w.
func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

// Emit writes one event.
func (l *Lines) Emit(e step.Event) {
	out := line{Time: time.Now(), Msg: "step", Step: e.Path, Status: e.Status.String(), Title: e.Title, Text: e.Text}
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
			l.write(line{Time: time.Now(), Msg: "said", Text: text})
		}
	}
	return len(p), nil
}

func (l *Lines) write(out line) {
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

// event is the event in a line; ok is false if it has none.
func (l line) event() (at time.Time, e step.Event, ok bool) {
	status, known := statuses[l.Status]
	if l.Msg != "step" || !known || l.Step == "" {
		return time.Time{}, step.Event{}, false
	}
	e = step.Event{Path: l.Step, Title: l.Title, Status: status, Text: l.Text}
	if l.Error != "" {
		e.Err = errors.New(l.Error)
	}
	return l.Time, e, true
}

// statuses are the statuses of steps, by name.
var statuses = func() map[string]step.Status {
	byName := map[string]step.Status{}
	for s := step.Started; s <= step.Stopped; s++ {
		byName[s.String()] = s
	}
	return byName
}()
