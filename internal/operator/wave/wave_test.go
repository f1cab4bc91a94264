package wave

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
			if diff := cmp.Diff(c.want, Decide(f, start.Add(c.now))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}
