package wave

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// members reads "a1@oslo:done b1@oslo"; a member's first letter is its stage. Those that ended
// did so at start.
func members(text string) []Member {
	phases := map[string]Phase{"": Waiting, "running": Running, "done": Done, "failed": Failed}
	var all []Member
	for field := range strings.FieldsSeq(text) {
		who, phase, _ := strings.Cut(field, ":")
		name, site, _ := strings.Cut(who, "@")
		m := Member{Name: name, Stage: name[:1], Site: site, Phase: phases[phase]}
		if m.Phase == Done || m.Phase == Failed {
			m.Ended = start
		}
		all = append(all, m)
	}
	return all
}

type decisionCase struct {
	members string
	change  func(*Fleet)
	now     time.Duration
	want    Decision
}

func decisionCases() map[string]decisionCase {
	rolling := func(stage string, begin ...string) Decision {
		return Decision{Stage: stage, Reason: Rolling, Begin: begin}
	}
	return map[string]decisionCase{
		"the first stage":              {members: "a2 a1 b1", want: rolling("a", "a1", "a2")},
		"the fleet's limit":            {members: "a1 a2 a3:running a4", change: func(f *Fleet) { f.MaxConcurrent = 2 }, want: rolling("a", "a1")},
		"the fleet's limit is reached": {members: "a1 a2:running a3:running", change: func(f *Fleet) { f.MaxConcurrent = 2 }, want: rolling("a")},
		"the stage's limit":            {members: "a1 a2 a3 a4", change: func(f *Fleet) { f.Stages[0].MaxConcurrent = 3 }, want: rolling("a", "a1", "a2", "a3")},
		"a larger limit of the stage":  {members: "a1 a2 a3", change: func(f *Fleet) { f.MaxConcurrent, f.Stages[0].MaxConcurrent = 2, 9 }, want: rolling("a", "a1", "a2")},
		"a site's limit":               {members: "a1@x a2@x a3@y a4@y:running a5@z", change: func(f *Fleet) { f.MaxConcurrentPerSite = 1 }, want: rolling("a", "a1", "a5")},
		"no site is a site":            {members: "a1 a2 a3@y", change: func(f *Fleet) { f.MaxConcurrentPerSite = 1 }, want: rolling("a", "a1", "a3")},
		"a limit of 0 is 1":            {members: "a1 a2", change: func(f *Fleet) { f.MaxConcurrent = 0 }, want: rolling("a", "a1")},
		"some of another stage run":    {members: "a1:running b1@x:running b2@x a2", change: func(f *Fleet) { f.MaxConcurrent = 3; f.MaxConcurrentPerSite = 9 }, want: rolling("a", "a2")},
		"not before the last ended":    {members: "a1:done a2:running b1", want: rolling("a")},
		"the next stage":               {members: "a1:done a2:done b1 b2", want: rolling("b", "b1", "b2")},
		"failed ones are over, too":    {members: "a1:failed a2:done b1", change: func(f *Fleet) { f.AbortThreshold = 2 }, want: rolling("b", "b1")},
		"soaking":                      {members: "a1:done b1", change: func(f *Fleet) { f.Stages[0].Soak = time.Hour }, now: 59 * time.Minute, want: Decision{Stage: "a", Reason: Soaking, Again: start.Add(time.Hour)}},
		"soaked":                       {members: "a1:done b1", change: func(f *Fleet) { f.Stages[0].Soak = time.Hour }, now: time.Hour, want: rolling("b", "b1")},
		"the last stage does not soak": {members: "a1:done b1:done", change: func(f *Fleet) { f.Stages[1].Soak = time.Hour }, want: Decision{Stage: "b", Reason: Succeeded, Over: true}},
		"gate":                         {members: "a1:done b1", change: func(f *Fleet) { f.Stages[0].Gate = func() []string { return []string{"a1: 1 stale"} } }, want: Decision{Stage: "a", Reason: Gated, Closed: []string{"a1: 1 stale"}}},
		"an open gate":                 {members: "a1:done b1", change: func(f *Fleet) { f.Stages[0].Gate = func() []string { return nil } }, want: rolling("b", "b1")},
		"no gate once the next begun":  {members: "a1:done b1:running b2", change: func(f *Fleet) { f.Stages[0].Gate = func() []string { panic("asked") } }, want: rolling("b", "b2")},
		"no gate before the soak":      {members: "a1:done b1", change: func(f *Fleet) { f.Stages[0].Soak, f.Stages[0].Gate = time.Hour, func() []string { panic("asked") } }, want: Decision{Stage: "a", Reason: Soaking, Again: start.Add(time.Hour)}},
		"unapproved":                   {members: "a1:done b1", change: func(f *Fleet) { f.Stages[1].Manual = true }, want: Decision{Stage: "b", Reason: Unapproved}},
		"the first unapproved":         {members: "a1 b1", change: func(f *Fleet) { f.Stages[0].Manual = true }, want: Decision{Stage: "a", Reason: Unapproved}},
		"approved":                     {members: "a1 b1", change: func(f *Fleet) { f.Stages[0].Manual, f.Stages[0].Approved = true, true }, want: rolling("a", "a1")},
		"approval withdrawn too late":  {members: "a1:running a2", change: func(f *Fleet) { f.Stages[0].Manual = true }, want: rolling("a", "a2")},
		"paused":                       {members: "a1:running a2", change: func(f *Fleet) { f.State = Pause }, want: Decision{Stage: "a", Reason: Paused}},
		"paused, all ended":            {members: "a1:done", change: func(f *Fleet) { f.State = Pause }, want: Decision{Stage: "a", Reason: Succeeded, Over: true}},
		"aborted, one runs":            {members: "a1:running a2", change: func(f *Fleet) { f.State = Abort }, want: Decision{Stage: "a", Reason: Aborted}},
		"aborted":                      {members: "a1:done a2", change: func(f *Fleet) { f.State = Abort }, want: Decision{Stage: "a", Reason: Aborted, Over: true}},
		"threshold, one runs":          {members: "a1:failed a2:running a3", want: Decision{Stage: "a", Reason: Threshold}},
		"threshold":                    {members: "a1:failed a2:done b1", want: Decision{Stage: "b", Reason: Threshold, Over: true}},
		"threshold at the very end":    {members: "a1:failed", want: Decision{Stage: "a", Reason: Threshold, Over: true}},
		"below it at the very end":     {members: "a1:failed b1:done", change: func(f *Fleet) { f.AbortThreshold = 2 }, want: Decision{Stage: "b", Reason: Succeeded, Over: true}},
		"a stage without members":      {members: "a1:done c1", change: func(f *Fleet) { f.Stages[0].Soak = time.Hour }, want: Decision{Stage: "a", Reason: Soaking, Again: start.Add(time.Hour)}},
		"nobody":                       {want: Decision{Reason: Succeeded, Over: true}},
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range decisionCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := Fleet{
				Stages: []Stage{{Name: "a"}, {Name: "b"}, {Name: "c"}}, Members: members(c.members),
				MaxConcurrent: 100, MaxConcurrentPerSite: 100, AbortThreshold: 1,
			}
			if c.change != nil {
				c.change(&f)
			}
			must.Equal(t, "decision", c.want, Decide(f, start.Add(c.now)))
		})
	}
}

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
