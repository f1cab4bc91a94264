package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// members reads "a1@oslo:done b1@oslo"; a member's first letter is its stage. Those that ended
// did so at start.
func members(text string) []v1alpha1.Member {
	phases := map[string]v1alpha1.MemberPhase{
		"": v1alpha1.MemberWaiting, "running": v1alpha1.MemberRunning, "done": v1alpha1.MemberDone, "failed": v1alpha1.MemberFailed,
	}
	var all []v1alpha1.Member
	for field := range strings.FieldsSeq(text) {
		who, phase, _ := strings.Cut(field, ":")
		name, site, _ := strings.Cut(who, "@")
		m := v1alpha1.Member{Cluster: name, Stage: name[:1], Site: site, Phase: phases[phase]}
		if m.Phase == v1alpha1.MemberDone || m.Phase == v1alpha1.MemberFailed {
			m.Ended = new(metav1.NewTime(start))
		}
		all = append(all, m)
	}
	return all
}

type decisionCase struct {
	members string
	change  func(*v1alpha1.FleetRollSpec)
	gate    func() []string
	now     time.Duration
	want    decision
}

func decisionCases() map[string]decisionCase {
	type spec = v1alpha1.FleetRollSpec
	rolling := func(stage string, begin ...string) decision {
		return decision{Stage: stage, Reason: v1alpha1.ReasonRolling, Begin: begin}
	}
	return map[string]decisionCase{
		"the first stage":              {members: "a2 a1 b1", want: rolling("a", "a1", "a2")},
		"the fleet's limit":            {members: "a1 a2 a3:running a4", change: func(f *spec) { f.MaxConcurrent = 2 }, want: rolling("a", "a1")},
		"the fleet's limit is reached": {members: "a1 a2:running a3:running", change: func(f *spec) { f.MaxConcurrent = 2 }, want: rolling("a")},
		"the stage's limit":            {members: "a1 a2 a3 a4", change: func(f *spec) { f.Stages[0].MaxConcurrent = 3 }, want: rolling("a", "a1", "a2", "a3")},
		"a larger limit of the stage":  {members: "a1 a2 a3", change: func(f *spec) { f.MaxConcurrent, f.Stages[0].MaxConcurrent = 2, 9 }, want: rolling("a", "a1", "a2")},
		"a site's limit":               {members: "a1@x a2@x a3@y a4@y:running a5@z", change: func(f *spec) { f.MaxConcurrentPerSite = 1 }, want: rolling("a", "a1", "a5")},
		"no site is a site":            {members: "a1 a2 a3@y", change: func(f *spec) { f.MaxConcurrentPerSite = 1 }, want: rolling("a", "a1", "a3")},
		"a limit of 0 is 1":            {members: "a1 a2", change: func(f *spec) { f.MaxConcurrent = 0 }, want: rolling("a", "a1")},
		"some of another stage run":    {members: "a1:running b1@x:running b2@x a2", change: func(f *spec) { f.MaxConcurrent = 3; f.MaxConcurrentPerSite = 9 }, want: rolling("a", "a2")},
		"not before the last ended":    {members: "a1:done a2:running b1", want: rolling("a")},
		"the next stage":               {members: "a1:done a2:done b1 b2", want: rolling("b", "b1", "b2")},
		"failed ones are over, too":    {members: "a1:failed a2:done b1", change: func(f *spec) { f.AbortThreshold = 2 }, want: rolling("b", "b1")},
		"soaking":                      {members: "a1:done b1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, now: 59 * time.Minute, want: decision{Stage: "a", Reason: v1alpha1.ReasonSoaking, Again: start.Add(time.Hour)}},
		"soaked":                       {members: "a1:done b1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, now: time.Hour, want: rolling("b", "b1")},
		"the last stage does not soak": {members: "a1:done b1:done", change: func(f *spec) { f.Stages[1].Soak.Duration = time.Hour }, want: decision{Stage: "b", Reason: v1alpha1.ReasonSucceeded, Over: true}},
		"gate":                         {members: "a1:done b1", gate: func() []string { return []string{"a1: 1 stale"} }, want: decision{Stage: "a", Reason: v1alpha1.ReasonGateClosed, Closed: []string{"a1: 1 stale"}}},
		"an open gate":                 {members: "a1:done b1", gate: func() []string { return nil }, want: rolling("b", "b1")},
		"no gate once the next begun":  {members: "a1:done b1:running b2", gate: func() []string { panic("asked") }, want: rolling("b", "b2")},
		"no gate before the soak":      {members: "a1:done b1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, gate: func() []string { panic("asked") }, want: decision{Stage: "a", Reason: v1alpha1.ReasonSoaking, Again: start.Add(time.Hour)}},
		"unapproved":                   {members: "a1:done b1", change: func(f *spec) { f.Stages[1].Approval = v1alpha1.ApprovalManual }, want: decision{Stage: "b", Reason: v1alpha1.ReasonAwaitingApproval}},
		"the first unapproved":         {members: "a1 b1", change: func(f *spec) { f.Stages[0].Approval = v1alpha1.ApprovalManual }, want: decision{Stage: "a", Reason: v1alpha1.ReasonAwaitingApproval}},
		"approved":                     {members: "a1 b1", change: func(f *spec) { f.Stages[0].Approval, f.ApprovedStages = v1alpha1.ApprovalManual, []string{"a"} }, want: rolling("a", "a1")},
		"approval withdrawn too late":  {members: "a1:running a2", change: func(f *spec) { f.Stages[0].Approval = v1alpha1.ApprovalManual }, want: rolling("a", "a2")},
		"paused":                       {members: "a1:running a2", change: func(f *spec) { f.State = v1alpha1.FleetPaused }, want: decision{Stage: "a", Reason: v1alpha1.ReasonPaused}},
		"paused, all ended":            {members: "a1:done", change: func(f *spec) { f.State = v1alpha1.FleetPaused }, want: decision{Stage: "a", Reason: v1alpha1.ReasonSucceeded, Over: true}},
		"aborted, one runs":            {members: "a1:running a2", change: func(f *spec) { f.State = v1alpha1.FleetAborted }, want: decision{Stage: "a", Reason: v1alpha1.ReasonAborted}},
		"aborted":                      {members: "a1:done a2", change: func(f *spec) { f.State = v1alpha1.FleetAborted }, want: decision{Stage: "a", Reason: v1alpha1.ReasonAborted, Over: true}},
		"threshold, one runs":          {members: "a1:failed a2:running a3", want: decision{Stage: "a", Reason: v1alpha1.ReasonStageFailed}},
		"threshold":                    {members: "a1:failed a2:done b1", want: decision{Stage: "b", Reason: v1alpha1.ReasonStageFailed, Over: true}},
		"threshold at the very end":    {members: "a1:failed", want: decision{Stage: "a", Reason: v1alpha1.ReasonStageFailed, Over: true}},
		"below it at the very end":     {members: "a1:failed b1:done", change: func(f *spec) { f.AbortThreshold = 2 }, want: decision{Stage: "b", Reason: v1alpha1.ReasonSucceeded, Over: true}},
		"a stage without members":      {members: "a1:done c1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, want: decision{Stage: "a", Reason: v1alpha1.ReasonSoaking, Again: start.Add(time.Hour)}},
		"nobody":                       {want: decision{Reason: v1alpha1.ReasonSucceeded, Over: true}},
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	must.Each(t, decisionCases(), func(t *testing.T, c decisionCase) {
		f := newFleet("a", "b", "c")
		f.Spec.MaxConcurrent, f.Spec.MaxConcurrentPerSite = 100, 100
		if c.change != nil {
			c.change(&f.Spec)
		}
		w := wave{f.Spec, members(c.members), func(i int) []string {
			if i > 0 || c.gate == nil {
				return nil
			}
			return c.gate()
		}}
		must.Equal(t, "decision", c.want, w.decide(start.Add(c.now)))
	})
}

// simulation plays a fleet in virtual time. Rolls last random times and some fail, gates open
// late, and a person approves, pauses, continues and perhaps aborts.
type simulation struct {
	r        *rand.Rand
	fleet    wave
	now      time.Time
	ends     []time.Time // of each member that runs
	opens    []time.Time // of each stage's gate
	failing  float64
	approves bool
}

func newSimulation(seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 2))
	s := &simulation{r: r, now: start, failing: []float64{0, 0.05, 0.5}[r.IntN(3)], approves: r.IntN(5) > 0}
	s.fleet.MaxConcurrent, s.fleet.MaxConcurrentPerSite, s.fleet.AbortThreshold = r.Int32N(8), r.Int32N(4), r.Int32N(6)
	for i := range 1 + r.IntN(4) {
		stage := v1alpha1.Stage{Name: string(rune('a' + i)), MaxConcurrent: r.Int32N(5)}
		stage.Soak.Duration = time.Duration(r.IntN(3)) * time.Hour
		if r.IntN(4) == 0 {
			stage.Approval = v1alpha1.ApprovalManual
		}
		s.fleet.Stages = append(s.fleet.Stages, stage)
	}
	s.opens = make([]time.Time, len(s.fleet.Stages))
	s.fleet.gate = func(i int) []string {
		if s.opens[i].IsZero() {
			s.opens[i] = s.now.Add(time.Duration(r.IntN(90)) * time.Minute)
		}
		if s.now.Before(s.opens[i]) {
			return []string{"closed"}
		}
		return nil
	}
	for i := range r.IntN(40) {
		stage := s.fleet.Stages[r.IntN(len(s.fleet.Stages))].Name
		site := string(rune('x' + r.IntN(3)))
		s.fleet.members = append(s.fleet.members, v1alpha1.Member{Cluster: fmt.Sprintf("m%02d", i), Stage: stage, Site: site, Phase: v1alpha1.MemberWaiting})
	}
	s.ends = make([]time.Time, len(s.fleet.members))
	return s
}

// begin carries a decision out, and checks that it could be made.
func (s *simulation) begin(d decision) error {
	failed := s.fleet.count("", v1alpha1.MemberFailed)
	if len(d.Begin) > 0 && (s.fleet.State != "" || failed >= threshold(s.fleet.FleetRollSpec) || d.Reason != v1alpha1.ReasonRolling) {
		return fmt.Errorf("%v begin, though the state is %v, %d failed and the reason is %v", d.Begin, s.fleet.State, failed, d.Reason)
	}
	for _, name := range d.Begin {
		for i := range s.fleet.members {
			m := &s.fleet.members[i]
			if m.Cluster != name {
				continue
			}
			if err := s.mayBegin(*m); err != nil {
				return err
			}
			m.Phase, s.ends[i] = v1alpha1.MemberRunning, s.now.Add(time.Duration(1+s.r.IntN(200))*time.Minute)
		}
	}
	return s.limits()
}

// mayBegin checks a member against its stage and those before.
func (s *simulation) mayBegin(m v1alpha1.Member) error {
	if m.Phase != v1alpha1.MemberWaiting {
		return fmt.Errorf("%s begins again", m.Cluster)
	}
	before := "" // the newest stage before that has members
	for i, stage := range s.fleet.Stages {
		if stage.Name == m.Stage {
			if !s.fleet.begun(m.Stage) && s.fleet.unapproved(stage) {
				return fmt.Errorf("%s begins without approval of %s", m.Cluster, stage.Name)
			}
			return nil
		}
		if s.fleet.count(stage.Name, v1alpha1.MemberWaiting, v1alpha1.MemberRunning) > 0 {
			return fmt.Errorf("%s of %s begins before %s is over", m.Cluster, m.Stage, stage.Name)
		}
		next := i+1 < len(s.fleet.Stages) && s.fleet.Stages[i+1].Name == m.Stage
		if s.fleet.count(stage.Name, v1alpha1.MemberDone, v1alpha1.MemberFailed) > 0 {
			before = stage.Name
		}
		if before == stage.Name && next && (s.now.Before(s.fleet.lastEnd(before).Add(stage.Soak.Duration)) || s.opens[i].IsZero() || s.now.Before(s.opens[i])) {
			return fmt.Errorf("%s begins before %s has soaked or its gate is open", m.Cluster, stage.Name)
		}
	}
	return fmt.Errorf("%s has no stage", m.Cluster)
}

func (s *simulation) limits() error {
	count := map[string]int{}
	for _, m := range s.fleet.members {
		if m.Phase == v1alpha1.MemberRunning {
			count["fleet"]++
			count["site "+m.Site]++
			count["stage "+m.Stage]++
		}
	}
	for what, n := range count {
		most := max(1, int(s.fleet.MaxConcurrent))
		switch what[:5] {
		case "site ":
			most = max(1, int(s.fleet.MaxConcurrentPerSite))
		case "stage":
			if limit := s.fleet.Stages[what[6]-'a'].MaxConcurrent; limit > 0 {
				most = int(limit)
			}
		}
		if n > most {
			return fmt.Errorf("%s: %d at a time, the limit is %d", what, n, most)
		}
	}
	return nil
}

// pass lets time go on to the next thing that happens, and reports whether there is any.
func (s *simulation) pass(d decision) bool {
	next := d.Again
	earlier := func(t time.Time) {
		if t.After(s.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for i, m := range s.fleet.members {
		if m.Phase == v1alpha1.MemberRunning {
			earlier(s.ends[i])
		}
	}
	for _, opens := range s.opens {
		earlier(opens)
	}
	if d.Reason == v1alpha1.ReasonAwaitingApproval && s.approves || d.Reason == v1alpha1.ReasonPaused {
		earlier(s.now.Add(time.Hour))
	}
	if next.IsZero() {
		return false
	}
	s.now = next
	for i := range s.fleet.members {
		if m := &s.fleet.members[i]; m.Phase == v1alpha1.MemberRunning && !s.ends[i].After(s.now) {
			m.Phase, m.Ended = v1alpha1.MemberDone, new(metav1.NewTime(s.now))
			if s.r.Float64() < s.failing {
				m.Phase = v1alpha1.MemberFailed
			}
		}
	}
	s.person(d)
	return true
}

// person changes what people change.
func (s *simulation) person(d decision) {
	if s.approves && d.Reason == v1alpha1.ReasonAwaitingApproval {
		s.fleet.ApprovedStages = append(s.fleet.ApprovedStages, d.Stage)
	}
	switch {
	case s.fleet.State == v1alpha1.FleetPaused && s.r.IntN(2) == 0:
		s.fleet.State = ""
	case s.fleet.State == "" && s.r.IntN(30) == 0:
		s.fleet.State = v1alpha1.FleetPaused
	case s.fleet.State == "" && s.r.IntN(200) == 0:
		s.fleet.State = v1alpha1.FleetAborted
	}
}

// TestSimulation: whatever a fleet looks like, limits, order and threshold are kept, and it
// ends or waits for a person.
func TestSimulation(t *testing.T) {
	t.Parallel()
	ends := map[string]int{}
	for seed := range uint64(2000) {
		s := newSimulation(seed)
		var d decision
		for round := 0; ; round++ {
			d = s.fleet.decide(s.now)
			if err := s.begin(d); err != nil {
				t.Fatalf("seed %d: at %s: %v", seed, s.now.Sub(start), err)
			}
			if d.Over != (s.fleet.count("", v1alpha1.MemberRunning) == 0 && (d.Reason == v1alpha1.ReasonSucceeded || d.Reason == v1alpha1.ReasonAborted || d.Reason == v1alpha1.ReasonStageFailed)) {
				t.Fatalf("seed %d: over is %v with reason %v", seed, d.Over, d.Reason)
			}
			if d.Over || !s.pass(d) {
				break
			}
			if round > 1000 {
				t.Fatalf("seed %d: no end", seed)
			}
		}
		if !d.Over && (d.Reason != v1alpha1.ReasonAwaitingApproval || s.approves) {
			t.Fatalf("seed %d: stuck with %+v", seed, d)
		}
		if d.Reason == v1alpha1.ReasonSucceeded && s.fleet.count("", v1alpha1.MemberWaiting) > 0 {
			t.Fatalf("seed %d: succeeded with %d members that wait", seed, s.fleet.count("", v1alpha1.MemberWaiting))
		}
		ends[d.Reason]++
	}
	t.Log("ends by reason:", ends)
	for _, reason := range []string{v1alpha1.ReasonSucceeded, v1alpha1.ReasonAborted, v1alpha1.ReasonStageFailed, v1alpha1.ReasonAwaitingApproval} {
		if ends[reason] == 0 {
			t.Errorf("no fleet ended with reason %s, so the test does not show what it should", reason)
		}
	}
}
