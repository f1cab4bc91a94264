package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/step"
)

// builder builds a story from lines.
type builder struct {
	Story
	open     map[string]*Stage // by path
	turns    map[string]*Turn  // the latest, by path
	requests map[string]*Requests
}

func (b *builder) add(l line) {
	if b.From.IsZero() {
		b.From, b.Begins = l.Time, l.Msg == "command" || l.Msg == "run"
	}
	switch l.Msg {
	case "command":
		b.command(l)
	case "run":
		if b.cutOff(); len(b.Sessions) == 0 || b.Sessions[len(b.Sessions)-1].Ended {
			b.Sessions = append(b.Sessions, Session{Began: l.Time})
		}
	case "step":
		b.step(l)
	case "request":
		b.request(l)
	case "pulse":
		b.Pulses = append(b.Pulses, Pulse{l.Time, planning.Pulse{
			Kubernetes: l.Kubernetes, Nodes: l.Nodes, NotReady: l.NotReady, Etcd: l.Etcd, Members: l.Members, Unwell: l.Unwell,
		}})
	}
	// Lines from before the run are written when it begins, with their own times.
	if l.Time.After(b.To) {
		b.To = l.Time
	}
}

func (b *builder) command(l line) {
	if l.Status == "started" {
		b.cutOff()
		b.Sessions = append(b.Sessions, Session{Began: l.Time, Command: l.Command, Version: l.Version})
		b.say(l, "", "recast", strings.TrimSpace(l.Command+" "+l.Version)+" started")
		return
	}
	if n := len(b.Sessions); n > 0 {
		s := &b.Sessions[n-1]
		s.Command, s.Ended, s.Exit, s.Error = cmp.Or(s.Command, l.Command), true, l.Exit, l.Error
	}
	b.cutOff()
	b.say(l, "", "recast", fmt.Sprintf("%s ended with exit code %d", l.Command, l.Exit))
}

// cutOff marks what was open as cut off, because its process has ended or another has
// begun.
func (b *builder) cutOff() {
	for _, s := range b.open {
		s.CutOff = true
	}
	for _, turn := range b.turns {
		turn.CutOff = turn.Ended.IsZero()
	}
	clear(b.open)
	clear(b.turns)
}

func (b *builder) request(l line) {
	r := b.requests[l.Server]
	if r == nil {
		r = &Requests{Server: l.Server}
		b.requests[l.Server] = r
	}
	r.Sent++
	if l.Error != "" {
		r.Failed++
	}
}

func (b *builder) say(l line, node, mark, text string) {
	b.Said = append(b.Said, Said{At: l.Time, Node: node, Mark: mark, Text: text})
}

func (b *builder) step(l line) {
	phase, node, below := planning.NodeOfStep(l.Step)
	text := cmp.Or(l.Title, l.Text)
	if l.Text != "" && l.Title != "" {
		text = l.Title + ": " + l.Text
	}
	if l.Error != "" {
		text = cmp.Or(l.Title, l.Step) + ": " + l.Error
	}
	b.say(l, node, l.Status, text)
	switch {
	case node == "":
		b.other(l)
	case len(below) == 0:
		b.branch(l, b.turn(l, phase, node))
	default:
		b.below(l, b.turn(l, phase, node), below)
	}
}

// turn is the turn that a step belongs to.
func (b *builder) turn(l line, phase planning.Phase, node string) *Turn {
	path := planning.StepPath(phase, node)
	turn := b.turns[path]
	again := turn != nil && !turn.Ended.IsZero() && l.Status != step.Note.String()
	if turn == nil || again {
		turn = &Turn{Node: node, Phase: string(phase), path: path}
		b.Turns, b.turns[path] = append(b.Turns, turn), turn
	}
	turn.Heard = l.Time
	return turn
}

func (b *builder) branch(l line, turn *Turn) {
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
		turn.back(l.Time) // after a failure or a stop it is unknown
	}
}

// back ends a turn's outage.
func (turn *Turn) back(at time.Time) {
	if !turn.AwayFrom.IsZero() && turn.AwayTo.IsZero() {
		turn.AwayTo = at
	}
}

// groups are a node's branches whose steps are its stages.
var groups = []string{"take-down", "bring-up", "upgrade", "put-back", "fallback"}

func (b *builder) below(l line, turn *Turn, below []string) {
	if l.Status == step.Started.String() {
		switch {
		case planning.IsBack(below):
			turn.back(l.Time)
		case turn.AwayFrom.IsZero() && TakesAway(below):
			turn.AwayFrom = l.Time
		}
	}
	grouped := slices.Contains(groups, below[0])
	switch {
	case !grouped && len(below) == 1, grouped && len(below) == 2:
		b.stage(l, &turn.Stages, stageName(below))
	case l.Status == step.Note.String():
		depth := 1
		if grouped {
			depth = 2
		}
		// Deeper notes belong to their stage.
		path := strings.Join(append([]string{turn.path}, below[:min(depth, len(below))]...), "/")
		if s := b.open[path]; s != nil {
			s.Noted = l.Text
		}
	}
}

// stageName is the stage of a step below a node.
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

func (b *builder) other(l line) {
	if l.Step == "roll" && l.Status == step.Note.String() {
		b.Notes = append(b.Notes, Said{At: l.Time, Mark: l.Status, Text: l.Text})
	}
	if l.Step == "roll" || strings.Count(l.Step, "/") == 1 && isPhase(l.Step) {
		return
	}
	b.stage(l, &b.Steps, l.Step)
}

func isPhase(path string) bool {
	_, node, _ := planning.NodeOfStep(path + "/x")
	return node != ""
}

// stage adds a line to one of the stages in all.
func (b *builder) stage(l line, all *[]*Stage, name string) {
	s := b.open[l.Step]
	switch l.Status {
	case step.Note.String():
		if s != nil {
			b.note(l, s, all)
		}
		return
	case step.Started.String():
		s = &Stage{Name: name, Title: l.Title, Began: l.Time, path: l.Step}
		*all, b.open[l.Step] = append(*all, s), s
		return
	}
	if s == nil {
		s = &Stage{Name: name, Began: l.Time, path: l.Step}
		*all = append(*all, s)
	}
	s.Title = cmp.Or(l.Title, s.Title)
	s.Ended, s.Status, s.Text, s.Error, s.Hints = l.Time, l.Status, l.Text, l.Error, l.Hints
	delete(b.open, l.Step)
}

// note splits a step with two waits into two stages: for the machine to boot and to be
// configured; for the node to join and to stay healthy.
func (b *builder) note(l line, s *Stage, all *[]*Stage) {
	next := s.Name
	switch {
	case s.Name == "boot" && strings.HasPrefix(l.Text, roll.BlankAnswers):
		next = "configure"
	case s.Name == "join" && strings.HasSuffix(l.Text, cluster.Settling):
		next = "settle"
	case s.Name == "settle" && !strings.HasSuffix(l.Text, cluster.Settling):
		next = "join"
	}
	if next != s.Name {
		s.Ended, s.Status = l.Time, step.Done.String()
		s = &Stage{Name: next, Title: s.Title, Began: l.Time, path: s.path}
		*all, b.open[l.Step] = append(*all, s), s
	}
	s.Noted = l.Text
}

// end completes the story.
func (b *builder) end() Story {
	for _, name := range slices.Sorted(maps.Keys(b.requests)) {
		b.Requests = append(b.Requests, *b.requests[name])
	}
	b.Turns = slices.DeleteFunc(b.Turns, func(turn *Turn) bool { return turn.Began.IsZero() && len(turn.Stages) == 0 })
	// Preparations may be done long before their turn; a turn that never began sorts last.
	slices.SortStableFunc(b.Turns, func(a, b *Turn) int {
		if a.Began.IsZero() != b.Began.IsZero() {
			return b.Began.Compare(a.Began)
		}
		return a.Began.Compare(b.Began)
	})
	return b.Story
}
