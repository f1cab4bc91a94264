package talosapi

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// sequence is machined's running sequence, as reported in its events and in the kernel's
// log (v1alpha1_controller.go). Only the boot's own goroutine uses it.
type sequence struct {
	b      *boot
	name   string
	actor  string // ID of the request, if any
	phases []phase
	at     int // index of the running phase; -1 before the first

	began, phaseBegan time.Time
}

// errCanceled ends a sequence that another one replaces.
var errCanceled = errors.New("context canceled")

// sequence begins a sequence and cancels the running one.
func (b *boot) sequence(actor, name string, phases []phase) {
	if b.seq != nil {
		b.seq.fail(errCanceled)
	}
	s := &sequence{b: b, name: name, actor: actor, phases: phases, at: -1, began: time.Now()}
	b.seq = s
	b.tell(actor, &machineapi.SequenceEvent{Sequence: name, Action: machineapi.SequenceEvent_START})
	b.m.say("%s sequence: %d phase(s)", name, len(phases))
}

// to advances to the named phase, which then runs; a phase that is over, or that the
// sequence lacks, changes nothing.
func (s *sequence) to(name string) {
	if s == nil { // machined has failed
		return
	}
	later := slices.IndexFunc(s.phases[s.at+1:], func(p phase) bool { return p.name == name })
	for wanted := s.at + 1 + later; s.at < wanted; {
		s.next()
	}
}

// next ends the running phase and begins the next one.
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

// String is the running phase in the log's form.
func (s *sequence) String() string {
	return fmt.Sprintf("phase %s (%d/%d)", s.phases[s.at].name, s.at+1, len(s.phases))
}

// tellPhase reports the start or end of the running phase and of its tasks, which start
// after it and end before it; said is the log's word.
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

// end runs the rest of the sequence.
func (s *sequence) end() {
	for s.at < len(s.phases) {
		s.next()
	}
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: done: %s", s.name, time.Since(s.began))
}

// fail ends the sequence in the running phase and returns machined's error.
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
