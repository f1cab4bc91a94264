package page

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// noon is a look without objects.
func noon(t *testing.T) look {
	t.Helper()
	s := browse(t, nil).site
	return look{Site: s, at: s.Now()}
}

func ready(is bool, reason string) []metav1.Condition {
	status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[is]
	return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "so"}}
}

// What a cluster's row says first, and how far up it stands.
func TestClusterLine(t *testing.T) {
	t.Parallel()
	l := noon(t)
	stalled := append(ready(false, v1alpha1.ReasonRefused), metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue})
	roll := func(phase v1alpha1.RollPhase) *v1alpha1.ImageRoll {
		return &v1alpha1.ImageRoll{Status: v1alpha1.ImageRollStatus{Phase: phase, Conditions: ready(phase == v1alpha1.PhaseSucceeded, "Some")}}
	}
	checked := func(hours int) func(*v1alpha1.TalosCluster) {
		return func(c *v1alpha1.TalosCluster) {
			at := new(metav1.NewTime(l.at.Add(-time.Duration(hours) * time.Hour)))
			c.Spec.Drift.Schedule, c.Status.Check = "17 * * * *", &v1alpha1.Check{Started: at, Ended: at}
		}
	}
	cases := map[string]struct {
		conditions []metav1.Condition
		change     func(*v1alpha1.TalosCluster)
		roll       *v1alpha1.ImageRoll
		want       string
		rank       int
	}{
		"new":                    {want: "not looked at yet open", rank: rankOpen},
		"in sync":                {conditions: ready(true, "InSync"), want: "in sync good", rank: rankGood},
		"drifted":                {conditions: ready(false, "Drifted"), want: "drifted open", rank: rankOpen},
		"stalled":                {conditions: stalled, want: "refused bad", rank: rankTrouble},
		"suspended":              {conditions: ready(true, "Suspended"), want: "suspended open", rank: rankOpen},
		"unread":                 {conditions: ready(false, "Drifted"), change: func(c *v1alpha1.TalosCluster) { c.Status.Nodes = &v1alpha1.Nodes{Total: 3, Unread: 1} }, want: "drifted open", rank: rankTrouble},
		"awaiting approval":      {conditions: ready(false, "Rolling"), roll: roll(v1alpha1.PhaseAwaitingApproval), want: "awaiting approval open", rank: rankPerson},
		"rolling":                {conditions: ready(false, "Rolling"), roll: roll(v1alpha1.PhaseRolling), want: "rolling open", rank: rankOpen},
		"rolled":                 {conditions: ready(true, "InSync"), roll: roll(v1alpha1.PhaseSucceeded), want: "in sync good", rank: rankGood},
		"failed in a fleet":      {conditions: ready(false, "Drifted"), roll: roll(v1alpha1.PhaseFailed), want: "roll failed bad", rank: rankTrouble},
		"failed, in sync since":  {conditions: ready(true, "InSync"), roll: roll(v1alpha1.PhaseFailed), want: "in sync good", rank: rankGood},
		"checked":                {conditions: ready(true, "InSync"), change: checked(1), want: "in sync good", rank: rankGood},
		"overdue":                {conditions: ready(true, "InSync"), change: checked(14), want: "in sync good late", rank: rankTrouble},
		"overdue, but is rolled": {conditions: ready(false, "Rolling"), change: checked(14), roll: roll(v1alpha1.PhaseRolling), want: "rolling open", rank: rankOpen},
		"deleted":                {conditions: ready(true, "InSync"), change: func(c *v1alpha1.TalosCluster) { c.DeletionTimestamp = new(metav1.Now()) }, want: "being deleted open", rank: rankOpen},
	}
	for name, c := range cases {
		cluster := &v1alpha1.TalosCluster{Status: v1alpha1.TalosClusterStatus{Conditions: c.conditions}}
		if c.change != nil {
			c.change(cluster)
		}
		line := l.clusterLine(cluster, c.roll)
		got := line.State.Word + " " + line.State.Mood
		if line.Late {
			got += " late"
		}
		if got != c.want || line.rank != c.rank {
			t.Errorf("%s: %s, rank %d, want %s, rank %d", name, got, line.rank, c.want, c.rank)
		}
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	l := noon(t)
	six := metav1.Duration{Duration: 6 * time.Hour}
	for want, windows := range map[string][]v1alpha1.Window{
		"always open":            nil,
		"open until 16:00":       {{Schedule: "0 10 * * *", Duration: six}},
		"opens 22:00":            {{Schedule: "0 22 * * *", Duration: six}},
		"opens 2026-11-29 04:00": {{Schedule: "0 4 * * *", Duration: six}},
		"can't be read":          {{Schedule: "daily at ten", Duration: six}},
		"opens 21:00":            {{Schedule: "0 22 * * 6", Duration: six, TimeZone: "Europe/Oslo"}, {Schedule: "0 1 1 1 *", Duration: six}},
	} {
		if got := l.window(v1alpha1.TalosClusterSpec{Windows: windows}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The state of a wave is that of its FleetRoll while it is the one that runs.
func TestStages(t *testing.T) {
	t.Parallel()
	l := noon(t)
	member := func(stage string, phase v1alpha1.MemberPhase) v1alpha1.Member {
		return v1alpha1.Member{Cluster: stage, Stage: stage, Phase: phase}
	}
	began := new(metav1.NewTime(l.at))
	cases := map[string]struct {
		at     string
		reason string
		phases [2]v1alpha1.MemberPhase
		ended  bool
		want   string
	}{
		"rolling":   {"one", "Rolling", [2]v1alpha1.MemberPhase{v1alpha1.MemberRunning, v1alpha1.MemberWaiting}, false, "rolling open, not begun "},
		"soaking":   {"one", "Soaking", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberWaiting}, false, "soaking open, not begun "},
		"approval":  {"two", "AwaitingApproval", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberWaiting}, false, "done good, awaiting approval open"},
		"paused":    {"two", "Paused", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberRunning}, false, "done good, paused open"},
		"aborted":   {"two", "Aborted", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberFailed}, true, "done good, aborted open"},
		"succeeded": {"two", "Succeeded", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberDone}, true, "done good, done good"},
	}
	for name, c := range cases {
		f := &v1alpha1.FleetRoll{Spec: v1alpha1.FleetRollSpec{Stages: []v1alpha1.Stage{{Name: "one"}, {Name: "two"}}}}
		f.Status = v1alpha1.FleetRollStatus{Started: began, Stage: c.at, Conditions: ready(name == "succeeded", c.reason), Members: []v1alpha1.Member{member("one", c.phases[0]), member("two", c.phases[1])}}
		if c.ended {
			f.Status.Ended = began
		}
		var got []string
		for _, s := range f.Spec.Stages {
			v := l.stage(f, s, nil)
			got = append(got, v.Word+" "+v.Mood)
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A table shows the beginning of a message, and nothing of one that says that all is well.
func TestShort(t *testing.T) {
	t.Parallel()
	for s, want := range map[state]string{
		{Mood: bad, Why: "one\ntwo"}: "one", {Mood: good, Why: "one"}: "", {Mood: open}: "",
		{Mood: bad, Why: strings.Repeat("wörter ", 20)}: strings.TrimSpace(strings.Repeat("wörter ", 15)) + " …",
		{Mood: bad, Why: strings.Repeat("ö", 200)}:      strings.Repeat("ö", 110) + " …",
	} {
		if got := s.Short(); got != want {
			t.Errorf("%q became %q, want %q", s.Why, got, want)
		}
	}
}
