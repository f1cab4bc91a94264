package story

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

const (
	// LogName is the log of a run in the directory of its journal. OlderLogName is the part
	// before the last rotation.
	LogName      = "log.jsonl"
	OlderLogName = "log.1.jsonl"
)

// Line is one line of a log, as internal/telemetry writes it, or of recast --progress json.
type Line struct {
	Time   time.Time `json:"time"`
	Msg    string    `json:"msg"` // "command", "run", "step", "request", "pulse"; "said": other text
	Step   string    `json:"step,omitempty"`
	Status string    `json:"status,omitempty"`
	Node   string    `json:"node,omitempty"`
	Title  string    `json:"title,omitempty"`
	Text   string    `json:"text,omitempty"`
	Risk   string    `json:"risk,omitempty"`
	Error  string    `json:"error,omitempty"`
	Hints  []string  `json:"hints,omitempty"`

	Command string `json:"command,omitempty"`
	Version string `json:"version,omitempty"`
	Exit    int    `json:"exitCode,omitempty"`
	Server  string `json:"server,omitempty"`

	Kubernetes bool     `json:"kubernetes,omitempty"`
	Nodes      int      `json:"nodes,omitempty"`
	NotReady   []string `json:"notReady,omitempty"`
	Etcd       bool     `json:"etcd,omitempty"`
	Members    int      `json:"members,omitempty"`
	Unwell     []string `json:"unwell,omitempty"`
}

// Event is the event in a line about a step; false if it has none.
func (l Line) Event() (e step.Event, ok bool) {
	status, known := statuses[l.Status]
	if l.Msg != "step" || !known || l.Step == "" {
		return step.Event{}, false
	}
	e = step.Event{Path: l.Step, Title: l.Title, Status: status, Text: l.Text}
	if l.Error != "" {
		e.Err = errors.New(l.Error)
	}
	for _, hint := range slices.Backward(l.Hints) { // the first one is the outermost
		e.Err = fault.WithHint(e.Err, "%s", hint)
	}
	return e, true
}

var statuses = func() map[string]step.Status {
	byName := map[string]step.Status{}
	for s := step.Started; s <= step.Stopped; s++ {
		byName[s.String()] = s
	}
	return byName
}()

// longestLine is more than any log line: an error about a whole cluster is a few
// kilobytes.
const longestLine = 4 << 20

// Read reads the log of a run from its directories, one for each machine that worked on it, in their order. It skips
// a line that a killed process left unfinished. Without a log the story is empty.
func Read(dirs ...fs.FS) (Story, error) {
	r := &reader{requests: map[string]*Requests{}}
	r.Begins = true
	for _, dir := range dirs {
		for _, name := range []string{OlderLogName, LogName} {
			if err := r.readFile(dir, name); err != nil {
				return r.end(), fmt.Errorf("read the log of the run: %w", err)
			}
		}
	}
	return r.end(), nil
}

// ReadDirs is Read for directories by their names, as a past run has them.
func ReadDirs(names []string) (Story, error) {
	var dirs []fs.FS
	for _, name := range names {
		dirs = append(dirs, os.DirFS(name))
	}
	return Read(dirs...)
}

type reader struct {
	Fold
	requests map[string]*Requests // by server
}

func (r *reader) readFile(dir fs.FS, name string) error {
	f, err := dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = r.read(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return fault.Prefix(name, err)
}

func (r *reader) read(file io.Reader) error {
	lines := bufio.NewReaderSize(file, 1<<16)
	for {
		text, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return nil // the process was killed while it wrote this line
		}
		if err != nil {
			return err
		}
		l, ok := Parse(text)
		if behind := bytes.LastIndex(text, []byte(firstKey)); !ok && behind > 0 {
			l, ok = Parse(text[behind:]) // a line after one that a killed process left unfinished
		}
		if !ok {
			r.Broken++
			continue
		}
		r.add(l)
	}
}

// firstKey begins every line.
const firstKey = `{"time":"`

// Parse reads a line of a log; false if text is no such line.
func Parse(text []byte) (l Line, ok bool) {
	err := json.Unmarshal(text, &l)
	return l, err == nil && !l.Time.IsZero()
}

// readLine returns one line. If the line is too long, it returns only a part, which is not valid JSON.
func readLine(r *bufio.Reader) (text []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(text)+len(part) <= longestLine {
			text = append(text, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}

func (r *reader) add(l Line) {
	if r.From.IsZero() {
		r.From, r.Begins = l.Time, l.Msg == "command" || l.Msg == "run"
	}
	switch l.Msg {
	case "command":
		r.command(l)
	case "run":
		if r.cutOff(); len(r.Sessions) == 0 || r.Sessions[len(r.Sessions)-1].Ended {
			r.Sessions = append(r.Sessions, Session{Began: l.Time})
		}
	case "step":
		r.step(l)
	case "request":
		r.request(l)
	case "pulse":
		r.Pulses = append(r.Pulses, Pulse{l.Time, planning.Pulse{
			Kubernetes: l.Kubernetes, Nodes: l.Nodes, NotReady: l.NotReady, Etcd: l.Etcd, Members: l.Members, Unwell: l.Unwell,
		}})
	}
	// Lines from before the run are written when it begins, with their own times.
	if l.Time.After(r.To) {
		r.To = l.Time
	}
}

func (r *reader) command(l Line) {
	if l.Status == "started" {
		r.cutOff()
		r.Sessions = append(r.Sessions, Session{Began: l.Time, Command: l.Command, Version: l.Version})
		r.say(l, "", "recast", strings.TrimSpace(l.Command+" "+l.Version)+" started")
		return
	}
	if n := len(r.Sessions); n > 0 {
		s := &r.Sessions[n-1]
		s.Command, s.Ended, s.Exit, s.Error = cmp.Or(s.Command, l.Command), true, l.Exit, l.Error
	}
	r.cutOff()
	r.say(l, "", "recast", fmt.Sprintf("%s ended with exit code %d", l.Command, l.Exit))
}

func (r *reader) step(l Line) {
	_, node, _ := planning.NodeOfStep(l.Step)
	text := cmp.Or(l.Title, l.Text)
	if l.Text != "" && l.Title != "" {
		text = l.Title + ": " + l.Text
	}
	if l.Error != "" {
		text = cmp.Or(l.Title, l.Step) + ": " + l.Error
	}
	r.say(l, node, l.Status, text)
	if l.Step == "roll" && l.Status == step.Note.String() {
		r.Notes = append(r.Notes, Said{At: l.Time, Mark: l.Status, Text: l.Text})
	}
	if e, ok := l.Event(); ok {
		r.See(l.Time, e)
	}
}

func (r *reader) request(l Line) {
	of := r.requests[l.Server]
	if of == nil {
		of = &Requests{Server: l.Server}
		r.requests[l.Server] = of
	}
	of.Sent++
	if l.Error != "" {
		of.Failed++
	}
}

func (r *reader) say(l Line, node, mark, text string) {
	r.Said = append(r.Said, Said{At: l.Time, Node: node, Mark: mark, Text: text})
}

func (r *reader) end() Story {
	for _, name := range slices.Sorted(maps.Keys(r.requests)) {
		r.Requests = append(r.Requests, *r.requests[name])
	}
	for _, turn := range r.Turns {
		turn.Stages = turn.stages()
	}
	r.Turns = slices.DeleteFunc(r.Turns, func(turn *Turn) bool { return turn.Began.IsZero() && len(turn.Stages) == 0 })
	// Preparations may be done long before their turn; a turn that never began sorts last.
	slices.SortStableFunc(r.Turns, func(a, b *Turn) int {
		if a.Began.IsZero() != b.Began.IsZero() {
			return b.Began.Compare(a.Began)
		}
		return a.Began.Compare(b.Began)
	})
	return r.Story
}
