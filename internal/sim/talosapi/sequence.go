package talosapi

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// sequence is what machined is in the middle of, told in its events and in the
// kernel's log (v1alpha1_controller.go). It is the boot's own goroutine's.
type sequence struct {
	b      *boot
	name   string
	actor  string // who wanted it, if anybody did
	phases []phase
	at     int // of the phase that runs; -1 before the first one

	began, phaseBegan time.Time
}

// errCanceled ends a sequence that another one takes the place of.
var errCanceled = errors.New("context canceled")

// sequence begins one. That which runs, if one does, is canceled.
func (b *boot) sequence(actor, name string, phases []phase) {
	if b.seq != nil {
		b.seq.fail(errCanceled)
	}
	s := &sequence{b: b, name: name, actor: actor, phases: phases, at: -1, began: time.Now()}
	b.seq = s
	b.tell(actor, &machineapi.SequenceEvent{Sequence: name, Action: machineapi.SequenceEvent_START})
	b.m.say("%s sequence: %d phase(s)", name, len(phases))
}

// to goes through the phases up to the named one, which is under way then; one that
// is over, or that the sequence does not have, changes nothing.
func (s *sequence) to(name string) {
	if s == nil { // machined has failed
		return
	}
	later := slices.IndexFunc(s.phases[s.at+1:], func(p phase) bool { return p.name == name })
	for wanted := s.at + 1 + later; s.at < wanted; {
		s.next()
	}
}

// next ends the phase that runs and begins the one after it.
func (s *sequence) next() {
	if s.at >= 0 {
		s.tellPhase(machineapi.PhaseEvent_STOP, fmt.Sprintf("done, %s", time.Since(s.phaseBegan)))
		s.b.m.say("%s: done, %s", s, time.Since(s.phaseBegan))
	}
	s.at++
	for s.at < len(s.phases) && s.phases[s.at].skip {
		s.at++
	}
	if s.at == len(s.phases) {
		return
	}
	s.phaseBegan = time.Now()
	s.b.m.say("%s: %d tasks(s)", s, len(s.phases[s.at].tasks))
	s.tellPhase(machineapi.PhaseEvent_START, "starting")
}

// String is how the log names the phase that runs.
func (s *sequence) String() string {
	return fmt.Sprintf("phase %s (%d/%d)", s.phases[s.at].name, s.at+1, len(s.phases))
}

// tellPhase tells of the phase that runs and of its tasks, which begin after it and
// end before it; said is how.
func (s *sequence) tellPhase(action machineapi.PhaseEvent_Action, said string) {
	p := s.phases[s.at]
	e := &machineapi.PhaseEvent{Phase: p.name, Action: action}
	if action == machineapi.PhaseEvent_START {
		s.b.tell(s.actor, e)
	}
	for i, task := range p.tasks {
		s.b.tell(s.actor, &machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_Action(action)})
		s.b.m.say("task %s (%d/%d): %s", task, i+1, len(p.tasks), said)
	}
	if action == machineapi.PhaseEvent_STOP {
		s.b.tell(s.actor, e)
	}
}

// end goes through what is left of the sequence.
func (s *sequence) end() {
	for s.at < len(s.phases) {
		s.next()
	}
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: done: %s", s.name, time.Since(s.began))
}

// fail ends the sequence in the phase that runs, and is how machined words that.
func (s *sequence) fail(err error) error {
	s.tellPhase(machineapi.PhaseEvent_STOP, "failed: "+err.Error())
	err = fmt.Errorf("error running phase %d in %s sequence: task 1/%d: failed, %w", s.at+1, s.name, len(s.phases[s.at].tasks), err)
	s.b.m.say("%s: failed", s)
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: failed", s.name)
	code := common.Code_FATAL
	if errors.Is(err, errCanceled) {
		code = common.Code_CANCELED
	}
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_NOOP, Error: &common.Error{
		Code: code, Message: "sequence failed: " + err.Error(),
	}})
	return err
}
