package simtest

import (
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
)

// matrixLate is a request of a dead process, which Proxmox processes during the next one:
// right before the n-th of its changes. If that makes fewer changes, the request is
// dropped.
type matrixLate struct {
	call record.Call
	held *record.Held
	of   *matrixLife
	left int
}

// lateFaults are requests that Proxmox processes after their sender has stopped waiting.
func lateFaults() []matrixFault {
	killed := func(n int) matrixFault {
		return matrixFault{
			name: fmt.Sprintf("late-killed-%d", n), kills: true, meets: func(call record.Call) bool { return onNode(call) && !keepsOff(call) },
			before: func(life *matrixLife, call record.Call) error {
				life.kill()
				l := &matrixLate{call: call, held: record.Hold(record.NoAnswer), of: life, left: n}
				life.mu.Lock()
				defer life.mu.Unlock()
				life.late = append(life.late, l)
				return l.held
			},
		}
	}
	fault := func(name string, a record.Answer, late time.Duration) matrixFault {
		return matrixFault{name: name, meets: onNode, before: func(life *matrixLife, _ record.Call) error {
			held := record.Hold(a)
			life.later(late, held.Deliver)
			return held
		}}
	}
	return []matrixFault{
		killed(2), killed(7),
		fault("late-lost", record.NoAnswer, 3*time.Second),
		fault("late-504", record.GatewayTimeout, record.GatewayTimeout.After+3*time.Second),
	}
}

// keepsOff says whether a call removes a VM's onboot. If the exchange was cancelled
// meanwhile, a late one finds exactly the configuration that it expects:
// docs/notes/proxmox.md, requests that come late.
func keepsOff(call record.Call) bool {
	return lockedVM(call) == matrixVM && len(call.Params) == 2 && call.Params["onboot"] == "0"
}

// deliverBefore processes the requests that are due right before this change of the
// process.
func (life *matrixLife) deliverBefore(call record.Call) {
	if !call.Mutation {
		return
	}
	var due []*matrixLate
	life.mu.Lock()
	for _, l := range life.late {
		if l.of == life {
			continue
		}
		if l.left--; l.left == 0 {
			due = append(due, l)
		}
	}
	life.mu.Unlock()
	for _, l := range due {
		l.held.Deliver()
		for _, task := range life.world.Tasks() {
			life.world.WaitTask(task.UPID)
		}
	}
}

// cameLate says whether every held request was processed.
func (l *matrixLab) cameLate() bool { return len(l.late) > 0 && l.pending() == "" }

// pending are the unprocessed requests, in words.
func (l *matrixLab) pending() (text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, late := range l.late {
		if late.left > 0 {
			text += fmt.Sprintf("\nlate, in %d changes: %s %s %v", late.left, late.call.Method, late.call.Path, late.call.Params)
		}
	}
	return text
}
