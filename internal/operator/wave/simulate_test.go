package wave

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// simulation plays a fleet in virtual time. Rolls last random times and some fail, gates open
// late, and a person approves, pauses, continues and perhaps aborts.
type simulation struct {
	r        *rand.Rand
	fleet    Fleet
	now      time.Time
	ends     []time.Time // of each member that runs
	opens    []time.Time // of each stage's gate
	failing  float64
	approves bool
}

func newSimulation(seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 2))
	s := &simulation{r: r, now: start, failing: []float64{0, 0.05, 0.5}[r.IntN(3)], approves: r.IntN(5) > 0}
	s.fleet = Fleet{MaxConcurrent: r.IntN(8), MaxConcurrentPerSite: r.IntN(4), AbortThreshold: r.IntN(6)}
	for i := range 1 + r.IntN(4) {
		stage := Stage{Name: string(rune('a' + i)), MaxConcurrent: r.IntN(5), Soak: time.Duration(r.IntN(3)) * time.Hour, Manual: r.IntN(4) == 0}
		s.opens = append(s.opens, time.Time{})
		stage.Gate = func() []string {
			if s.opens[i].IsZero() {
				s.opens[i] = s.now.Add(time.Duration(r.IntN(90)) * time.Minute)
			}
			if s.now.Before(s.opens[i]) {
				return []string{"closed"}
			}
			return nil
		}
		s.fleet.Stages = append(s.fleet.Stages, stage)
	}
	for i := range r.IntN(40) {
		stage := s.fleet.Stages[r.IntN(len(s.fleet.Stages))].Name
		s.fleet.Members = append(s.fleet.Members, Member{Name: fmt.Sprintf("m%02d", i), Stage: stage, Site: string(rune('x' + r.IntN(3)))})
	}
	s.ends = make([]time.Time, len(s.fleet.Members))
	return s
}

// begin carries a decision out, and checks that it could be made.
func (s *simulation) begin(d Decision) error {
	failed := s.fleet.count("", Failed)
	if len(d.Begin) > 0 && (s.fleet.State != Run || failed >= max(1, s.fleet.AbortThreshold) || d.Reason != Rolling) {
		return fmt.Errorf("%v begin, though the state is %v, %d failed and the reason is %v", d.Begin, s.fleet.State, failed, d.Reason)
	}
	for _, name := range d.Begin {
		for i := range s.fleet.Members {
			m := &s.fleet.Members[i]
			if m.Name != name {
				continue
			}
			if err := s.mayBegin(*m); err != nil {
				return err
			}
			m.Phase, s.ends[i] = Running, s.now.Add(time.Duration(1+s.r.IntN(200))*time.Minute)
		}
	}
	return s.limits()
}

// mayBegin checks a member against its stage and those before.
func (s *simulation) mayBegin(m Member) error {
	if m.Phase != Waiting {
		return fmt.Errorf("%s begins again", m.Name)
	}
	before := "" // the newest stage before that has members
	for i, stage := range s.fleet.Stages {
		if stage.Name == m.Stage {
			if first := s.fleet.count(m.Stage, Running, Done, Failed) == 0; first && stage.Manual && !stage.Approved {
				return fmt.Errorf("%s begins without approval of %s", m.Name, stage.Name)
			}
			return nil
		}
		if s.fleet.count(stage.Name, Waiting, Running) > 0 {
			return fmt.Errorf("%s of %s begins before %s is over", m.Name, m.Stage, stage.Name)
		}
		next := i+1 < len(s.fleet.Stages) && s.fleet.Stages[i+1].Name == m.Stage
		if s.fleet.count(stage.Name, Done, Failed) > 0 {
			before = stage.Name
		}
		if before == stage.Name && next && (s.now.Before(s.fleet.lastEnd(before).Add(stage.Soak)) || s.opens[i].IsZero() || s.now.Before(s.opens[i])) {
			return fmt.Errorf("%s begins before %s has soaked or its gate is open", m.Name, stage.Name)
		}
	}
	return fmt.Errorf("%s has no stage", m.Name)
}

func (s *simulation) limits() error {
	count := map[string]int{}
	for _, m := range s.fleet.Members {
		if m.Phase == Running {
			count["fleet"]++
			count["site "+m.Site]++
			count["stage "+m.Stage]++
		}
	}
	for what, n := range count {
		most := max(1, s.fleet.MaxConcurrent)
		switch what[:5] {
		case "site ":
			most = max(1, s.fleet.MaxConcurrentPerSite)
		case "stage":
			if limit := s.fleet.Stages[what[6]-'a'].MaxConcurrent; limit > 0 {
				most = limit
			}
		}
		if n > most {
			return fmt.Errorf("%s: %d at a time, the limit is %d", what, n, most)
		}
	}
	return nil
}

// pass lets time go on to the next thing that happens, and reports whether there is any.
func (s *simulation) pass(d Decision) bool {
	next := d.Again
	earlier := func(t time.Time) {
		if t.After(s.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for i, m := range s.fleet.Members {
		if m.Phase == Running {
			earlier(s.ends[i])
		}
	}
	for _, opens := range s.opens {
		earlier(opens)
	}
	if d.Reason == Unapproved && s.approves || d.Reason == Paused {
		earlier(s.now.Add(time.Hour))
	}
	if next.IsZero() {
		return false
	}
	s.now = next
	for i := range s.fleet.Members {
		if m := &s.fleet.Members[i]; m.Phase == Running && !s.ends[i].After(s.now) {
			m.Phase, m.Ended = Done, s.now
			if s.r.Float64() < s.failing {
				m.Phase = Failed
			}
		}
	}
	s.person(d)
	return true
}

// person changes what people change.
func (s *simulation) person(d Decision) {
	for i := range s.fleet.Stages {
		if s.approves && s.fleet.Stages[i].Name == d.Stage && d.Reason == Unapproved {
			s.fleet.Stages[i].Approved = true
		}
	}
	switch {
	case s.fleet.State == Pause && s.r.IntN(2) == 0:
		s.fleet.State = Run
	case s.fleet.State == Run && s.r.IntN(30) == 0:
		s.fleet.State = Pause
	case s.fleet.State == Run && s.r.IntN(200) == 0:
		s.fleet.State = Abort
	}
}

// TestSimulation: whatever a fleet looks like, limits, order and threshold are kept, and it
// ends or waits for a person.
func TestSimulation(t *testing.T) {
	t.Parallel()
	ends := map[Reason]int{}
	for seed := range uint64(2000) {
		s := newSimulation(seed)
		var d Decision
		for round := 0; ; round++ {
			d = Decide(s.fleet, s.now)
			if err := s.begin(d); err != nil {
				t.Fatalf("seed %d: at %s: %v", seed, s.now.Sub(start), err)
			}
			if d.Over != (s.fleet.count("", Running) == 0 && (d.Reason == Succeeded || d.Reason == Aborted || d.Reason == Threshold)) {
				t.Fatalf("seed %d: over is %v with reason %v", seed, d.Over, d.Reason)
			}
			if d.Over || !s.pass(d) {
				break
			}
			if round > 1000 {
				t.Fatalf("seed %d: no end", seed)
			}
		}
		if !d.Over && (d.Reason != Unapproved || s.approves) {
			t.Fatalf("seed %d: stuck with %+v", seed, d)
		}
		if d.Reason == Succeeded && s.fleet.count("", Waiting) > 0 {
			t.Fatalf("seed %d: succeeded with %d members that wait", seed, s.fleet.count("", Waiting))
		}
		ends[d.Reason]++
	}
	t.Log("ends by reason:", ends)
	for _, reason := range []Reason{Succeeded, Aborted, Threshold, Unapproved} {
		if ends[reason] == 0 {
			t.Errorf("no fleet ended with reason %d, so the test does not show what it should", reason)
		}
	}
}
