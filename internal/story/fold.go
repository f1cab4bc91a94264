package story

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Fold builds the turns and steps of a story from events, one after the other. Its zero value has seen none.
type Fold struct {
	Story
	Phases map[planning.Phase]string // titles of the phases that have begun

	steps map[string]*Stage // the latest, by path
	turns map[string]*Turn  // the latest, by the path of the node's own step
}

// See adds an event. It returns the event's step, nil if only a note came of it, and the turn of
// its node, nil if it concerns none.
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
	case e.Status == step.Note && len(below) > depth(below): // a deeper note belongs to its stage, too
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

// step updates the step of an event. It begins if there is none at its path that goes on.
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

// turn is the turn that a step belongs to. A step that begins after a turn has ended begins another.
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

// see adds an event of the node's own step.
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
		t.back(at) // after a failure or a stop it is unknown
	}
}

// goes sets when the node became unavailable, and when it was back, as a step below it begins. While the
// node is checked, pulls its installer, is drained and tries a configuration, it is still up.
func (t *Turn) goes(at time.Time, below []string) {
	switch below[0] {
	case "run-hooks-again", "await-storage-again", "ask-gates-again":
		t.back(at)
		return
	case "ask-gates", "await-storage", "run-hooks", "gate", "pull", "remember", "drain", "try", "stage":
		return
	case "take-down", "upgrade":
		if len(below) == 1 || slices.Contains([]string{"remember", "prepare-disk", "drain"}, below[1]) {
			return
		}
	}
	t.AwayFrom = cmp.Or(t.AwayFrom, at)
}

// back ends a turn's outage.
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

// cutOff marks what was open as cut off, because its process has ended or another has
// begun.
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

// stages lists the stages of a turn's steps.
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
