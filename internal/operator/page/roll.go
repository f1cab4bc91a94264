package page

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/web/frame"
)

// rollLine is an ImageRoll in a row of a table.
type rollLine struct {
	Namespace, Name         string
	State                   state
	Nodes                   string // "2/5"
	Action, Began, Took, By string
	Attempts                int32
}

func (l look) rollLine(r *v1alpha1.ImageRoll) rollLine {
	out := rollLine{
		Namespace: r.Namespace, Name: r.Name, State: l.rollState(r), Action: l.inWords(string(r.Spec.Action)),
		Began: l.when(r.Status.Started), Took: l.took(r.Status.Started, r.Status.Ended), Attempts: r.Status.Begun, By: l.text(r.Labels[v1alpha1.LabelFleet]),
	}
	if p := r.Status.Progress; p != nil {
		out.Nodes = l.text(p.Summary)
	}
	return out
}

// rollState is the phase, and what the roll says of it.
func (l look) rollState(r *v1alpha1.ImageRoll) state {
	s := l.state(r.Status.Conditions)
	s.Word = cmp.Or(l.inWords(string(r.Status.Phase)), "not begun")
	if p := r.Status.Plan; p != nil && r.Status.Phase == v1alpha1.PhaseAwaitingApproval {
		s.Why = fmt.Sprintf("plan %s rolls %d nodes", l.text(p.Hash), p.Nodes) // not the commands, which name no namespace
	}
	return s
}

// rollView is an ImageRoll.
type rollView struct {
	rollLine
	Cluster       string
	Every         int
	Facts         []fact
	Lines         []string // of the plan
	Refused       []string
	Progress      *progress
	Tries         []tryLine
	Next, Missing []command
}

// progress is what the running attempt does.
type progress struct {
	Done, Total                     int32
	Summary, Node, Message, Updated string
}

// tryLine is an attempt.
type tryLine struct{ Job, Began, Took, Result, Mood, Done string }

func (l look) roll(ctx context.Context) (string, frame.View, error) {
	var r v1alpha1.ImageRoll
	if err := l.objects.Get(ctx, l.key, &r); err != nil {
		return "", frame.View{}, err
	}
	v := l.rollView(&r)
	return "roll", frame.View{Title: r.Name, Again: again(v.Every), Body: v}, nil
}

// again is for a browser without scripts, which loads a page only while something changes.
func again(every int) int {
	if every == seldom {
		return 0
	}
	return 2 * every
}

func (l look) rollView(r *v1alpha1.ImageRoll) rollView {
	s := r.Status
	v := rollView{rollLine: l.rollLine(r), Cluster: l.text(r.Spec.ClusterName), Every: seldom}
	if !s.Phase.Finished() {
		v.Every = running
	}
	v.Facts = facts("rolls", cmp.Or(strings.Join(l.texts(r.Spec.Only), ", "), v.Action), "approval", approval(r), "suspended", given(r.Spec.Suspend, "yes"),
		"began", v.Began, "ended", l.when(s.Ended), "took", v.Took, "not before", l.when(s.NotBefore))
	if p := s.Plan; p != nil {
		v.Facts = append(v.Facts, facts("plan", l.text(p.Hash), "files", l.text(p.Revision), "unfinished", given(p.Unfinished, "the plan only finishes what an earlier run has left; the next ImageRoll does the rest"))...)
		v.Lines, v.Refused = l.texts(p.Lines), l.texts(p.Refused)
	}
	if p := s.Progress; p != nil {
		v.Progress = &progress{p.Done, p.Total, v.Nodes, l.text(p.Node), l.text(p.Message), l.when(p.Updated)}
		v.Facts = append(v.Facts, facts("done", strings.Join(l.texts(p.Finished), ", "))...)
		if strings.HasPrefix(v.State.Why, v.Nodes+" nodes; ") {
			v.State.Why = "" // it is the progress
		}
	}
	for i, a := range s.Attempts {
		v.Tries = append(v.Tries, l.tryLine(a, i == len(s.Attempts)-1, s.Outcome))
	}
	v.Next, v.Missing = next(r), elsewhere(r)
	return v
}

func (l look) tryLine(a v1alpha1.Attempt, last bool, o *v1alpha1.Outcome) tryLine {
	t := tryLine{Job: l.text(a.Job), Began: l.when(a.Started), Took: l.took(a.Started, a.Ended), Result: "runs", Mood: open}
	if a.Ended == nil {
		return t
	}
	t.Done = fmt.Sprint(a.Done)
	if t.Result, t.Mood = l.inWords(a.Reason), bad; a.ExitCode != nil && *a.ExitCode == job.ExitDone {
		t.Mood = good
	}
	if a.ExitCode != nil && *a.ExitCode != job.ExitDone {
		t.Result += fmt.Sprintf(", exit code %d", *a.ExitCode)
	}
	if last && o != nil && o.Job == a.Job && o.Message != "" {
		t.Result += ": " + l.text(o.Message)
	}
	return t
}

func approval(r *v1alpha1.ImageRoll) string {
	if r.Spec.Approved {
		return "approved"
	}
	return "not approved"
}

// next is what a roll waits for a person to type.
func next(r *v1alpha1.ImageRoll) []command {
	in := "kubectl -n " + r.Namespace
	switch r.Status.Phase {
	case v1alpha1.PhaseAwaitingApproval:
		return []command{
			{"approve this plan", in + " patch imageroll " + r.Name + ` --type=merge -p '{"spec":{"approved":true}}'`},
			{"or have another one made", in + " delete imageroll " + r.Name},
		}
	case v1alpha1.PhaseFailed:
		if r.Labels[v1alpha1.LabelFleet] == "" {
			return []command{{"once the cause is gone, delete it, so that drift makes another one", in + " delete imageroll " + r.Name}}
		}
	}
	return nil
}

// elsewhere is what an ImageRoll does not hold.
func elsewhere(r *v1alpha1.ImageRoll) []command {
	in := "kubectl -n " + r.Namespace
	out := []command{{"what recast said, of attempts whose pods are there", in + " logs --prefix --tail=-1 -l " + v1alpha1.LabelRoll + "=" + r.Name}}
	if r.Status.Plan != nil {
		out = append(out, command{"the whole plan", in + " " + configMap(job.PlanName(r.Name), attempt.KeyPlan)})
	}
	if o := r.Status.Outcome; o != nil && o.Report != "" {
		out = append(out, command{"the report of the last attempt", in + " " + configMap(job.ReportName(r.Name), attempt.KeyReport)})
	}
	return append(out, command{"its events", in + " events --for imageroll/" + r.Name})
}

// configMap prints a key of a ConfigMap; a large one is compressed in .binaryData.
func configMap(name, key string) string {
	return fmt.Sprintf(`get configmap %s -o jsonpath='{.data.%s}'`, name, strings.ReplaceAll(key, ".", `\.`))
}
