package schedules

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/record"
)

// aim prepares the case's faults.
func (p *play) aim() {
	for _, f := range p.c.Faults {
		k, _ := kindOf(f.Name) // it was parsed or drawn
		s := &struck{Fault: f, kind: k}
		p.list = append(p.list, s)
		if f.Call == 0 {
			p.mu.Lock()
			s.timer = time.AfterFunc(f.After, func() {
				if p.begin(s) {
					p.strike(s)
				}
			})
			p.mu.Unlock()
		}
	}
}

// begin says whether a fault may strike now.
func (p *play) begin(s *struck) bool {
	p.lookAtEtcdBefore(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.begun || p.over {
		return false
	}
	s.begun = true
	p.beside.Add(1)
	return true
}

// strike runs a fault's act, and ends it in time.
func (p *play) strike(s *struck) {
	defer p.beside.Done()
	if s.act == nil {
		p.came(s, nil)
		return
	}
	end, err := s.act(p, s)
	p.came(s, err)
	if err != nil {
		return
	}
	p.mu.Lock()
	s.end, s.since = end, time.Now()
	late := p.calm && !s.foreign || p.over
	if s.For > 0 && !late {
		s.timer = time.AfterFunc(s.For, func() { p.finish(s) })
	}
	p.mu.Unlock()
	if late {
		p.finish(s)
	}
}

func (p *play) came(s *struck, err error) {
	p.tell("%s: %v", s.Fault, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.res.Struck[s.Name]++
	}
}

// finish ends a fault, once.
func (p *play) finish(s *struck) {
	p.mu.Lock()
	end := s.end
	s.end = nil
	p.mu.Unlock()
	if end != nil {
		end()
		p.tell("%s is over", s.Fault)
	}
}

// endAll ends every fault and prevents new ones; people says whether to revert people's
// changes too.
func (p *play) endAll(people bool) {
	p.mu.Lock()
	list := slices.Clone(p.list)
	p.calm = true
	for _, s := range list {
		if s.begun = true; s.timer != nil {
			s.timer.Stop()
		}
	}
	p.mu.Unlock()
	for _, s := range list {
		if people || !s.foreign {
			p.finish(s)
		}
	}
	p.lab.World.NoMoreFailures()
}

// isOurs says whether a call is a change by recast.
func isOurs(call record.Call) bool {
	return call.Mutation && (call.Proto == "proxmox" || call.Proto == "talos" || call.Proto == "kubernetes")
}

// before is the before hook of all servers.
func (p *play) before(call record.Call) error {
	if call.Late { // recast can't prevent it any more
		return nil
	}
	p.deliverBefore(call)
	p.mu.Lock()
	away := p.apiAway > 0 && call.Proto == "kubernetes"
	var due []*struck
	if isOurs(call) && !away {
		p.calls++
		due = p.dueAt(p.calls, call)
	}
	p.mu.Unlock()
	p.lookAtEtcdBefore(due...)
	due = p.beginAt(call, due)
	p.lookBefore(call)
	p.lookAtCall(call)
	if away {
		return errStruck
	}
	var dropped error
	for _, s := range due {
		if s.kind.before != nil {
			if err := s.kind.before(p, s); err != nil {
				dropped = err
			}
		}
	}
	held := dropped
	for _, s := range due {
		switch {
		case s.kind.holds != nil && dropped == nil:
			held = p.hold(s, call)
		case s.kind.after == nil || dropped != nil: // otherwise it strikes after the server has acted
			go p.strike(s)
		}
	}
	return held
}

// dueAt are the faults that strike at call n, including at most one that waits for a
// request to hold; p.mu must be held.
func (p *play) dueAt(n int, call record.Call) (due []*struck) {
	held := false
	for _, s := range p.list {
		switch {
		case s.begun:
		case s.kind.holds == nil && s.Call == n:
			due = append(due, s)
		case s.kind.holds != nil && s.Call <= n && !held && s.mayHold(call):
			held = true
			due = append(due, s)
		}
	}
	return due
}

// beginAt begins the due faults, unless none may begin any more.
func (p *play) beginAt(call record.Call, due []*struck) []*struck {
	p.mu.Lock()
	defer p.mu.Unlock()
	due = slices.DeleteFunc(due, func(s *struck) bool { return s.begun })
	for _, s := range due {
		s.begun, s.call = true, call
		p.beside.Add(1)
	}
	return due
}

// after is the after hook: the server has acted and the answer is not sent yet.
func (p *play) after(call record.Call) {
	p.mu.Lock()
	var due []*struck
	for _, s := range p.list {
		if s.begun && s.kind.after != nil && s.call.Seq == call.Seq && call.Seq != 0 {
			due = append(due, s)
			s.call.Seq = 0
		}
	}
	p.res.Calls++
	p.mu.Unlock()
	for _, s := range due {
		s.kind.after(p, s)
		p.strike(s)
	}
	p.lookAfter(call)
}

// said is an error's text with its hints.
func said(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error() + " | " + strings.Join(fault.Hints(err), " | ")
}

var particular = regexp.MustCompile(`(cp|wk|pve)\d+|\d+[.:\d]*`)

// person counts errors that need a person, and checks that recast says what to do.
func (p *play) person(err error) {
	if err == nil {
		return
	}
	if len(fault.Hints(err)) == 0 {
		p.fail("it needs a person, and does not say what to do: %v", err)
	}
	reason := particular.ReplaceAllString(err.Error(), "N")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.res.Persons[reason[max(0, len(reason)-200):]]++
}
