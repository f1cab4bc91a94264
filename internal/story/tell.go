package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// teller makes a story of lines.
type teller struct {
	Story
	open     map[string]*Stage // by path
	turns    map[string]*Turn  // the latest, by path
	requests map[string]*Requests
}

func (t *teller) hear(l line) {
	if t.From.IsZero() {
		t.From, t.Begins = l.Time, l.Msg == "command" || l.Msg == "run"
	}
	switch l.Msg {
	case "command":
		t.command(l)
	case "run":
		if t.cutOff(); len(t.Sessions) == 0 || t.Sessions[len(t.Sessions)-1].Ended {
			t.Sessions = append(t.Sessions, Session{Began: l.Time})
		}
	case "step":
		t.step(l)
	case "request":
		t.request(l)
	case "pulse":
		t.Pulses = append(t.Pulses, Pulse{l.Time, cluster.Pulse{
			Kubernetes: l.Kubernetes, Nodes: l.Nodes, NotReady: l.NotReady, Etcd: l.Etcd, Members: l.Members, Unwell: l.Unwell,
		}})
	}
	// What came before the run was begun is written then, with the time when it was said.
	if l.Time.After(t.To) {
		t.To = l.Time
	}
}

func (t *teller) command(l line) {
	if l.Status == "started" {
		t.cutOff()
		t.Sessions = append(t.Sessions, Session{Began: l.Time, Command: l.Command, Version: l.Version})
		t.say(l, "", "recast", strings.TrimSpace(l.Command+" "+l.Version)+" started")
		return
	}
	if n := len(t.Sessions); n > 0 {
		s := &t.Sessions[n-1]
		s.Command, s.Ended, s.Exit, s.Error = cmp.Or(s.Command, l.Command), true, l.Exit, l.Error
	}
	t.cutOff()
	t.say(l, "", "recast", fmt.Sprintf("%s ended with exit code %d", l.Command, l.Exit))
}

// cutOff is where a process has ended, or another goes on: what had not ended never will.
func (t *teller) cutOff() {
	for _, s := range t.open {
		s.CutOff = true
	}
	for _, turn := range t.turns {
		turn.CutOff = turn.Ended.IsZero()
	}
	clear(t.open)
	clear(t.turns)
}

func (t *teller) request(l line) {
	r := t.requests[l.Server]
	if r == nil {
		r = &Requests{Server: l.Server}
		t.requests[l.Server] = r
	}
	r.Sent++
	if l.Error != "" {
		r.Failed++
	}
}

func (t *teller) say(l line, node, mark, text string) {
	t.Said = append(t.Said, Said{At: l.Time, Node: node, Mark: mark, Text: text})
}

func (t *teller) step(l line) {
	phase, node, below := cluster.NodeOfStep(l.Step)
	text := cmp.Or(l.Title, l.Text)
	if l.Text != "" && l.Title != "" {
		text = l.Title + ": " + l.Text
	}
	if l.Error != "" {
		text = cmp.Or(l.Title, l.Step) + ": " + l.Error
	}
	t.say(l, node, l.Status, text)
	switch {
	case node == "":
		t.other(l)
	case len(below) == 0:
		t.branch(l, t.turn(l, phase, node))
	default:
		t.below(l, t.turn(l, phase, node), below)
	}
}

// turn is that of a node which a step is about.
func (t *teller) turn(l line, phase cluster.Phase, node string) *Turn {
	path := cluster.StepPath(phase, node)
	turn := t.turns[path]
	again := turn != nil && !turn.Ended.IsZero() && l.Status != step.Note.String()
	if turn == nil || again {
		turn = &Turn{Node: node, Phase: string(phase), path: path}
		t.Turns, t.turns[path] = append(t.Turns, turn), turn
	}
	turn.Heard = l.Time
	return turn
}

func (t *teller) branch(l line, turn *Turn) {
	turn.Title = cmp.Or(l.Title, turn.Title)
	switch l.Status {
	case step.Note.String():
		return
	case step.Started.String():
		turn.Began = l.Time
		return
	}
	turn.Began = cmp.Or(turn.Began, l.Time)
	turn.Ended, turn.Status, turn.Text, turn.Error, turn.Hints = l.Time, l.Status, l.Text, l.Error, l.Hints
	if turn.isWell() {
		turn.back(l.Time) // of one that failed or was stopped that is not known
	}
}

// back ends a turn's outage.
func (turn *Turn) back(at time.Time) {
	if !turn.AwayFrom.IsZero() && turn.AwayTo.IsZero() {
		turn.AwayTo = at
	}
}

// groups are branches below a node whose steps are its stages.
var groups = []string{"take-down", "bring-up", "upgrade", "put-back", "fallback"}

func (t *teller) below(l line, turn *Turn, below []string) {
	if l.Status == step.Started.String() {
		switch {
		case below[0] == "ask-gates-again", below[0] == "run-hooks-again":
			turn.back(l.Time)
		case turn.AwayFrom.IsZero() && pipeline.TakesAway(below):
			turn.AwayFrom = l.Time
		}
	}
	grouped := slices.Contains(groups, below[0])
	switch {
	case !grouped && len(below) == 1, grouped && len(below) == 2:
		t.stage(l, &turn.Stages, stageName(below))
	case l.Status == step.Note.String():
		depth := 1
		if grouped {
			depth = 2
		}
		// What is deeper tells its stage what it sees.
		path := strings.Join(append([]string{turn.path}, below[:min(depth, len(below))]...), "/")
		if s := t.open[path]; s != nil {
			s.Noted = l.Text
		}
	}
}

// stageName is what a step below a node is called among the stages.
func stageName(below []string) string {
	switch name := below[len(below)-1]; {
	case name == "settle":
		return "hand-over" // of a disk, to be seen to its end
	case name == "configure" && below[0] == "bring-up":
		return "boot" // until the blank machine answers
	case name == "wait-healthy":
		return "join" // until nothing is lacking any more
	default:
		return name
	}
}

func (t *teller) other(l line) {
	if l.Step == "roll" && l.Status == step.Note.String() {
		t.Notes = append(t.Notes, Said{At: l.Time, Mark: l.Status, Text: l.Text})
	}
	if l.Step == "roll" || strings.Count(l.Step, "/") == 1 && isPhase(l.Step) {
		return
	}
	t.stage(l, &t.Steps, l.Step)
}

func isPhase(path string) bool {
	_, node, _ := cluster.NodeOfStep(path + "/x")
	return node != ""
}

// stage hears of one stage among others of its kind.
func (t *teller) stage(l line, all *[]*Stage, name string) {
	s := t.open[l.Step]
	switch l.Status {
	case step.Note.String():
		if s != nil {
			t.note(l, s, all)
		}
		return
	case step.Started.String():
		s = &Stage{Name: name, Title: l.Title, Began: l.Time, path: l.Step}
		*all, t.open[l.Step] = append(*all, s), s
		return
	}
	if s == nil {
		s = &Stage{Name: name, Began: l.Time, path: l.Step}
		*all = append(*all, s)
	}
	s.Title = cmp.Or(l.Title, s.Title)
	s.Ended, s.Status, s.Text, s.Error, s.Hints = l.Time, l.Status, l.Text, l.Error, l.Hints
	delete(t.open, l.Step)
}

// note splits what is one step and two waits: for the machine to boot and what is done
// with it then; for the node to join and to stay healthy.
func (t *teller) note(l line, s *Stage, all *[]*Stage) {
	next := s.Name
	switch {
	case s.Name == "boot" && strings.HasPrefix(l.Text, cluster.BlankAnswers):
		next = "configure"
	case s.Name == "join" && strings.HasSuffix(l.Text, cluster.Settling):
		next = "settle"
	case s.Name == "settle" && !strings.HasSuffix(l.Text, cluster.Settling):
		next = "join"
	}
	if next != s.Name {
		s.Ended, s.Status = l.Time, step.Done.String()
		s = &Stage{Name: next, Title: s.Title, Began: l.Time, path: s.path}
		*all, t.open[l.Step] = append(*all, s), s
	}
	s.Noted = l.Text
}

// end completes the story.
func (t *teller) end() Story {
	for _, name := range slices.Sorted(maps.Keys(t.requests)) {
		t.Requests = append(t.Requests, *t.requests[name])
	}
	t.Turns = slices.DeleteFunc(t.Turns, func(turn *Turn) bool { return turn.Began.IsZero() && len(turn.Stages) == 0 })
	// What goes ahead of a turn may be done long before it; a turn that never came is the last.
	slices.SortStableFunc(t.Turns, func(a, b *Turn) int {
		if a.Began.IsZero() != b.Began.IsZero() {
			return b.Began.Compare(a.Began)
		}
		return a.Began.Compare(b.Began)
	})
	return t.Story
}
