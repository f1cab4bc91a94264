// Package story turns the events of a run into a [Story], the history of its nodes and steps. A [Fold] builds it event
// by event, while a run is active; [Read] builds it from the log of a run that has ended, still runs, or was killed.
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

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
)

// Story is the history in a run's log. For a killed run it ends in the middle.
type Story struct {
	From, To time.Time // of the first and the last line
	Sessions []Session // processes that worked on it, in order
	Turns    []*Turn   // of nodes, by beginning
	Steps    []*Stage  // that concern no node, by beginning
	Said     []Said    // all events, in order
	Notes    []Said    // the events that concern the whole run: claims taken over, servers waited for
	Pulses   []Pulse   // the cluster's state over time
	Requests []Requests
	Begins   bool // the log has the run's beginning; else rotation has removed that
	Broken   int  // unreadable lines
}

// Session is one process that worked on the run.
type Session struct {
	Began   time.Time
	Command string // "recast roll"; "": this run was not the first of its process, whose log names the command
	Version string // of recast
	Ended   bool
	Exit    int
	Error   string
}

// Turn is one node's part of the run. If it was cut off and resumed there are two.
type Turn struct {
	Node, Phase string
	Title       string    // "recreate wk1 (VM 9011 on pve1)"
	Began       time.Time // zero: only its preparation has begun
	Ended       time.Time // zero: it was cut off or still runs
	Status      string    // as in the log: "done", "failed", …; "": it has not ended
	Text, Error string
	Hints       []string
	AwayFrom    time.Time // when the node became unavailable; zero: it never did
	AwayTo      time.Time // when it was back; zero, with AwayFrom: it was not
	Stages      []*Stage  // what a person wants to know of its steps; set once a log is read
	Heard       time.Time // time of its latest line
	CutOff      bool      // its process ended first

	Steps       []*Stage // all steps that began; the steps of a branch come after the branch
	Failure     *Stage   // the step that failed first: the innermost; nil: none has failed
	Interrupted bool     // it failed because the user stopped the run; unknown from a log

	path string
}

// Until is when the turn ended, or the time of its latest line.
func (t *Turn) Until() time.Time {
	if t.Ended.IsZero() {
		return t.Heard
	}
	return t.Ended
}

// IsWell says whether the turn ended with a healthy node.
func (t *Turn) IsWell() bool {
	return t.Status == step.Done.String() || t.Status == step.Skipped.String()
}

// Away is how long the node was unavailable: until it was back, or its turn ended. It is 0 if the
// node was always there, or is still away.
func (t *Turn) Away() time.Duration {
	end := cmp.Or(t.AwayTo, t.Ended)
	if t.AwayFrom.IsZero() || end.IsZero() {
		return 0
	}
	return end.Sub(t.AwayFrom)
}

// Below returns the path of a step of the turn, relative to the node's path: "take-down/drain".
func (t *Turn) Below(s *Stage) string { return strings.TrimPrefix(s.Path, t.path+"/") }

// Stage is a step, or a part of a step that waits more than once.
type Stage struct {
	Path   string
	Name   string // "drain", "boot"; of a step that is no stage of a turn, its path
	Title  string
	Began  time.Time
	Ended  time.Time // zero: it was cut off or still runs
	Status string
	Text   string // why it was skipped
	Noted  string // the latest note, of the step or of a step below it
	Error  string
	Hints  []string
	CutOff bool // as in Turn

	Note   string    // its own latest note
	NoteAt time.Time // when that was new
	Branch bool      // it has steps below it

	parts []*Stage  // the step's waits that have ended, see split
	since time.Time // when the wait after those began
}

// Fate says how the turn ended in a run with that result ("done", "running", "killed", …): its status, or, if it has
// none, whether the turn goes on or was cut off.
func (t *Turn) Fate(result string) string { return fate(t.Status, t.CutOff, result) }

func (s *Stage) Fate(result string) string { return fate(s.Status, s.CutOff, result) }

func fate(status string, cutOff bool, result string) string {
	switch {
	case status != "":
		return status
	case cutOff:
		return "cut off"
	case result == "running":
		return "goes on"
	case result == "suspended":
		return "suspended"
	case result == "running or killed":
		return "running, or interrupted"
	}
	return "cut off"
}

type Said struct {
	At   time.Time
	Node string
	Mark string // status of a step: "started", "note", "done", …; "recast": a process
	Text string
}

// Pulse is the cluster's state at a moment.
type Pulse struct {
	At time.Time
	planning.Pulse
}

// Requests counts the mutating requests to one kind of server.
type Requests struct {
	Server string
	Sent   int
	Failed int
}

// Strategy is how the node was rolled: the first word of the title.
func (t *Turn) Strategy() string {
	strategy, _, _ := strings.Cut(t.Title, " ")
	return strategy
}

// Outage is a time when a node was unavailable; it spans turns if the first was cut off.
type Outage struct {
	Node     string
	From, To time.Time
	Open     bool // it was not back when the log ended
}

func (o Outage) Seconds() int { return int(o.To.Sub(o.From).Round(time.Second).Seconds()) }

// Outages lists the outages of all nodes by beginning.
func (s Story) Outages() []Outage {
	var out []Outage
	open := map[string]int{} // index of the node's open outage
	for _, t := range s.Turns {
		at, goesOn := open[t.Node]
		switch {
		case goesOn: // unavailable since an earlier turn
		case t.AwayFrom.IsZero():
			continue
		default:
			out = append(out, Outage{Node: t.Node, From: t.AwayFrom})
			at = len(out) - 1
		}
		back := t.AwayTo
		if goesOn && back.IsZero() && t.IsWell() {
			back = t.Ended // the turn only verified that it was back
		}
		out[at].To, out[at].Open = back, back.IsZero()
		delete(open, t.Node)
		if back.IsZero() {
			open[t.Node], out[at].To = at, s.To
		}
	}
	return out
}

// Longest is the longest outage; false if there was none.
func (s Story) Longest() (longest Outage, any bool) {
	for _, o := range s.Outages() {
		if !any || o.Seconds() > longest.Seconds() {
			longest, any = o, true
		}
	}
	return longest, any
}

// NotBack names the nodes that were unavailable when the log ended.
func (s Story) NotBack() []string {
	open := cluster.Where(s.Outages(), func(o Outage) bool { return o.Open })
	return cluster.Each(open, func(o Outage) string { return o.Node })
}

const pastRuns = 50

// Durations returns how long nodes took in earlier runs, newest first. dir is that of the runs.
func Durations(dir string) ([]cluster.Took, error) {
	runs, err := journal.Runs(dir)
	if err != nil {
		return nil, err
	}
	var all []cluster.Took
	var errs []error
	for _, info := range runs[:min(pastRuns, len(runs))] {
		took, err := durationsIn(dir, info.ID)
		all, errs = slices.Concat(all, took), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func durationsIn(dir, run string) (all []cluster.Took, err error) {
	j, err := journal.Open(dir, journal.Options{Run: run, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer j.Close()
	keys, err := j.Keys("")
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if !cluster.IsTookKey(key) {
			continue
		}
		var took cluster.Took
		if _, err := j.Get(key, &took); err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

// Took returns how long the turn of a planned node took, once the turn is done; false if the node was never away:
// only leftovers were cleaned up.
func (t *Turn) Took(n planning.NodePlan) (took cluster.Took, measured bool) {
	if t.Away() == 0 {
		return took, false
	}
	took = cluster.Took{
		Node: n.Node, Role: n.Role, Strategy: n.Strategy, Talos: n.Drift.Talos, Expected: n.OutageSeconds,
		OutageSeconds: wholeSeconds(t.Away()), WholeSeconds: wholeSeconds(t.Ended.Sub(t.Began)),
	}
	for _, s := range t.Steps {
		if seconds := wholeSeconds(s.Ended.Sub(s.Began)); s.Status == step.Done.String() && seconds > 0 {
			if took.Steps == nil {
				took.Steps = map[string]int{}
			}
			took.Steps[t.Below(s)] = seconds
		}
	}
	return took, true
}

func wholeSeconds(d time.Duration) int { return int(d.Round(time.Second).Seconds()) }

// Fold builds the turns and steps of a story from events, one after the other. The zero value has seen no events.
type Fold struct {
	Story
	Phases map[planning.Phase]string // titles of the phases that have begun

	steps map[string]*Stage // the latest, by path
	turns map[string]*Turn  // the latest, by the path of the node's own step
}

// See adds an event. It returns the event's step, nil for a note without a step, and the turn of the event's node,
// nil if the event concerns no node.
func (f *Fold) See(at time.Time, e step.Event) (*Stage, *Turn) {
	if f.steps == nil {
		f.steps, f.turns = map[string]*Stage{}, map[string]*Turn{}
	}
	if f.Phases == nil {
		f.Phases = map[planning.Phase]string{}
	}
	s, begins := f.step(at, e)
	phase, node, below := planning.NodeOfStep(e.Path)
	if node == "" {
		if phase, is := phaseOf(e.Path); is {
			f.Phases[phase] = cmp.Or(e.Title, f.Phases[phase])
		} else if begins && e.Path != "roll" {
			f.Steps = append(f.Steps, s)
		}
		return s, nil
	}
	turn := f.turn(at, begins, phase, node)
	if len(below) == 0 {
		turn.see(at, e)
		return s, turn
	}
	if begins {
		turn.Steps = append(turn.Steps, s)
		if depth(below) == len(below) {
			s.Name = stageName(below)
		}
	}
	switch {
	case e.Status == step.Started:
		turn.goes(at, below)
	case e.Status == step.Failed && turn.Failure == nil:
		turn.Failure = s
	case e.Status == step.Note && len(below) > depth(below): // a note of a deeper step belongs to the stage, too
		if s := f.steps[turn.path+"/"+strings.Join(below[:depth(below)], "/")]; s != nil && s.Ended.IsZero() {
			s.Noted = e.Text
		}
	}
	return s, turn
}

// phaseOf is the phase of a roll whose own step is at a path.
func phaseOf(path string) (phase planning.Phase, is bool) {
	if strings.Count(path, "/") != 1 {
		return "", false
	}
	phase, _, _ = planning.NodeOfStep(path + "/x")
	return phase, phase != ""
}

// step updates the step of an event. It begins a step unless a step with the same path is in progress.
func (f *Fold) step(at time.Time, e step.Event) (s *Stage, begins bool) {
	s = f.steps[e.Path]
	if e.Status == step.Note {
		if s != nil && s.Ended.IsZero() {
			s.note(at, e.Text)
		}
		return s, false
	}
	if begins = s == nil || e.Status == step.Started || !s.Ended.IsZero(); begins {
		s = &Stage{Path: e.Path, Name: e.Path, Began: at, Branch: s != nil && s.Branch}
		f.steps[e.Path] = s
		for up := strings.LastIndexByte(e.Path, '/'); up > 0; up = strings.LastIndexByte(e.Path[:up], '/') {
			if above := f.steps[e.Path[:up]]; above != nil {
				above.Branch = true
			}
		}
	}
	s.Title = cmp.Or(e.Title, s.Title)
	if e.Status != step.Started {
		s.Ended, s.Status, s.Text, s.NoteAt = at, e.Status.String(), e.Text, at
		s.Error, s.Hints = inWords(e.Err)
	}
	return s, begins
}

func inWords(err error) (text string, hints []string) {
	if err == nil {
		return "", nil
	}
	return err.Error(), fault.Hints(err)
}

// note adds a note. It splits a step with two waits into two stages: for the machine to boot and to be
// configured; for the node to join and to stay healthy.
func (s *Stage) note(at time.Time, text string) {
	switch {
	case s.Name == "boot" && strings.HasPrefix(text, roll.BlankAnswers):
		s.split(at, "configure")
	case s.Name == "join" && strings.HasSuffix(text, cluster.Settling):
		s.split(at, "settle")
	case s.Name == "settle" && !strings.HasSuffix(text, cluster.Settling):
		s.split(at, "join")
	}
	s.Noted = text
	if text != s.Note {
		s.Note, s.NoteAt = text, at
	}
}

// split ends a step's wait and begins the next.
func (s *Stage) split(at time.Time, next string) {
	part := *s
	part.Began, part.Ended, part.Status, part.parts = cmp.Or(s.since, s.Began), at, step.Done.String(), nil
	s.parts, s.since, s.Name = append(s.parts, &part), at, next
}

// turn returns the turn that a step belongs to. A step that begins after the turn has ended begins another turn.
func (f *Fold) turn(at time.Time, begins bool, phase planning.Phase, node string) *Turn {
	path := planning.StepPath(phase, node)
	turn := f.turns[path]
	if turn == nil || begins && !turn.Ended.IsZero() {
		turn = &Turn{Node: node, Phase: string(phase), path: path}
		f.Turns, f.turns[path] = append(f.Turns, turn), turn
	}
	turn.Heard = at
	return turn
}

func (t *Turn) see(at time.Time, e step.Event) {
	t.Title = cmp.Or(e.Title, t.Title)
	switch e.Status {
	case step.Note:
		return
	case step.Started:
		t.Began = at
		return
	}
	t.Began = cmp.Or(t.Began, at)
	t.Ended, t.Status, t.Text, t.Interrupted = at, e.Status.String(), e.Text, fault.KindOf(e.Err) == fault.Interrupted
	t.Error, t.Hints = inWords(e.Err)
	if t.IsWell() {
		t.back(at) // after a failure or a stop, the node's state is unknown
	}
}

// goes sets when the node became unavailable, and when it was back. It is called when a step below the node begins. A
// node that is checked, pulls its installer, is drained or tries a configuration is still up.
func (t *Turn) goes(at time.Time, below []string) {
	switch below[0] {
	case "run-hooks-again", "await-storage-again", "await-served-again", "ask-gates-again":
		t.back(at)
		return
	case "ask-gates", "await-storage", "await-served", "run-hooks", "gate", "pull", "remember", "drain", "try", "stage":
		return
	case "take-down", "upgrade":
		if len(below) == 1 || slices.Contains([]string{"remember", "prepare-disk", "drain"}, below[1]) {
			return
		}
	}
	t.AwayFrom = cmp.Or(t.AwayFrom, at)
}

func (t *Turn) back(at time.Time) {
	if !t.AwayFrom.IsZero() {
		t.AwayTo = cmp.Or(t.AwayTo, at)
	}
}

// depth is how deep below a node the stage of a step is: some branches only group stages.
func depth(below []string) int {
	if slices.Contains([]string{"take-down", "bring-up", "upgrade", "put-back", "fallback"}, below[0]) {
		return 2
	}
	return 1
}

func stageName(below []string) string {
	switch name := below[len(below)-1]; {
	case name == "settle":
		return "hand-over" // hand-over of a disk, until it is complete
	case name == "configure" && below[0] == "bring-up":
		return "boot" // until the blank machine answers
	case name == "wait-healthy":
		return "join" // until the node is complete
	default:
		return name
	}
}

// cutOff marks what was open as cut off, because its process has ended or another has begun.
func (f *Fold) cutOff() {
	for _, s := range f.steps {
		s.CutOff = s.Ended.IsZero()
	}
	for _, turn := range f.turns {
		turn.CutOff = turn.Ended.IsZero()
	}
	clear(f.steps)
	clear(f.turns)
}

func (t *Turn) stages() (all []*Stage) {
	for _, s := range t.Steps {
		if s.Name == s.Path {
			continue // too deep, or a group
		}
		all = append(all, s.parts...)
		if len(s.parts) > 0 {
			last := *s
			last.Began = s.since
			s = &last
		}
		all = append(all, s)
	}
	return all
}

const (
	// LogName is the log of a run in the directory of its journal. OlderLogName is the part before the last rotation.
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

// longestLine is more than any log line: an error about a whole cluster is a few kilobytes.
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
	dirs := cluster.Each(names, os.DirFS)
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
