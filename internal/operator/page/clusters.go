package page

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/web/frame"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type clusterLine struct {
	Namespace, Name string
	State           state
	Nodes, Uneven   string // number of nodes; number of stale or unread nodes
	Talos           string
	Roll            *rollLine
	Checked, Due    string
	Late, rolling   bool
	Window          string
	rank            int
}

// overdue is how late a check may be before the page reports trouble: the same as for the alert
// RecastClusterNotChecked.
const overdue = 12 * time.Hour

// The order of clusters in the table, worst first.
const (
	rankTrouble = iota
	rankPerson  // a person has to approve
	rankOpen
	rankGood
)

func (l look) clusterLine(c *v1alpha1.TalosCluster, newest *v1alpha1.ImageRoll) clusterLine {
	out := clusterLine{Namespace: c.Namespace, Name: c.Name, State: l.state(c.Status.Conditions), Talos: l.versions(c.Status.Talos), Window: l.window(c.Spec)}
	out.Nodes, out.Uneven = nodes(c.Status.Nodes)
	if newest != nil {
		roll := l.rollLine(newest)
		out.Roll, out.rolling = &roll, !newest.Status.Phase.Finished()
		switch {
		case out.rolling:
			out.State = roll.State
		case newest.Status.Phase == v1alpha1.PhaseFailed && out.State.Mood == open: // a failed ImageRoll of a FleetRoll does not stall the cluster
			out.State = state{"roll failed", bad, roll.State.Why}
		}
	}
	if k := c.Status.Check; k != nil && !k.Ended.IsZero() {
		out.Checked = l.ago(k.Ended.Time)
	}
	if due := operator.NextCheck(c); !due.IsZero() && !out.rolling {
		out.Due, out.Late = l.ago(due), l.at.Sub(due) > overdue
	}
	if !c.DeletionTimestamp.IsZero() {
		out.State.Word, out.State.Mood = "being deleted", open
	}
	switch {
	case out.State.Mood == bad || out.Late || c.Status.Nodes != nil && c.Status.Nodes.Unread > 0:
		out.rank = rankTrouble
	case out.rolling && newest.Status.Phase == v1alpha1.PhaseAwaitingApproval:
		out.rank = rankPerson
	case out.State.Mood == open:
		out.rank = rankOpen
	default:
		out.rank = rankGood
	}
	return out
}

func nodes(n *v1alpha1.Nodes) (total, uneven string) {
	if n == nil {
		return "", ""
	}
	var parts []string
	if n.Stale > 0 {
		parts = append(parts, fmt.Sprintf("%d stale", n.Stale))
	}
	if n.Unread > 0 {
		parts = append(parts, fmt.Sprintf("%d unread", n.Unread))
	}
	return fmt.Sprint(n.Total), strings.Join(parts, ", ")
}

// versions formats the current and the wanted version: "v1.13.8 → v1.13.9", or one of them.
func (l look) versions(v *v1alpha1.Versions) string {
	switch {
	case v == nil:
		return ""
	case v.Current == "" || v.Wanted == "" || v.Is(v.Current):
		return l.text(cmp.Or(v.Current, v.Wanted))
	}
	return l.text(v.Current) + " → " + l.text(v.Wanted)
}

// window says when a roll may begin.
func (l look) window(spec v1alpha1.TalosClusterSpec) string {
	set, err := operator.Windows(spec)
	isOpen, until := set.Open(l.at)
	next := set.Next(l.at)
	switch {
	case err != nil:
		return "can't be read"
	case len(set) == 0:
		return "always open"
	case isOpen:
		return "open until " + l.clock(until)
	case next.IsZero():
		return "never opens"
	}
	return "opens " + l.clock(next)
}

type clustersView struct {
	fleetsView
	InSync, Trouble, Rolling, Waiting int
	Clusters                          []clusterLine
}

func (l look) clusters(ctx context.Context) (string, frame.View, error) {
	var clusters v1alpha1.TalosClusterList
	var rolls v1alpha1.ImageRollList
	if err := l.list(ctx, &clusters); err != nil {
		return "", frame.View{}, err
	}
	if err := l.list(ctx, &rolls); err != nil {
		return "", frame.View{}, err
	}
	fleets, err := l.fleetLines(ctx, func(f *v1alpha1.FleetRoll) bool { return !over(f) })
	if err != nil {
		return "", frame.View{}, err
	}
	newest := newestRolls(rolls.Items)
	v := clustersView{fleetsView: fleetsView{seldom, "FleetRolls that are not over", fleets}}
	for i := range clusters.Items {
		c := &clusters.Items[i]
		line := l.clusterLine(c, newest[client.ObjectKeyFromObject(c)])
		switch {
		case line.rank == rankTrouble:
			v.Trouble++
		case line.rank == rankPerson:
			v.Waiting++
		case line.rank == rankGood:
			v.InSync++
		case line.rolling:
			v.Rolling++
		}
		v.Clusters = append(v.Clusters, line)
	}
	slices.SortFunc(v.Clusters, func(a, b clusterLine) int {
		return cmp.Or(a.rank-b.rank, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return "clusters", frame.View{Title: "Clusters", Body: v}, nil
}

// newestRolls returns, by cluster, the ImageRoll that matters most: the active one, else the last one.
func newestRolls(list operator.History) map[client.ObjectKey]*v1alpha1.ImageRoll {
	list.Sort()
	out := map[client.ObjectKey]*v1alpha1.ImageRoll{}
	for i := range list {
		key := client.ObjectKey{Namespace: list[i].Namespace, Name: list[i].Spec.ClusterName}
		if out[key] == nil || out[key].Status.Phase.Finished() {
			out[key] = &list[i]
		}
	}
	return out
}

type clusterView struct {
	clusterLine
	Every             int
	Count             *v1alpha1.Nodes
	Facts             []fact
	Reasons, Problems []string
	Active            *rollView
	Past              []rollLine
	Next, Missing     []command
}

func (l look) cluster(ctx context.Context) (string, frame.View, error) {
	var c v1alpha1.TalosCluster
	if err := l.objects.Get(ctx, l.key, &c); err != nil {
		return "", frame.View{}, err
	}
	rolls, err := operator.RollsOf(ctx, l.objects, c.Namespace, c.Name)
	if err != nil {
		return "", frame.View{}, err
	}
	s, newest := c.Status, rolls.Newest()
	v := clusterView{clusterLine: l.clusterLine(&c, newest), Every: seldom, Count: s.Nodes}
	v.State = l.state(s.Conditions)
	v.Facts = facts("Talos", v.Talos, "a newer Talos", l.text(newer(s.Talos)), "Kubernetes", l.versions(s.Kubernetes), "a newer Kubernetes", l.text(newer(s.Kubernetes)),
		"checked", v.Checked, "next check", v.Due, "last in sync", l.when(s.LastInSync), "maintenance window", v.Window, "suspended", given(c.Spec.Suspend, "yes"),
		"rolls are made", l.inWords(c.Spec.Rolls.Create), "approval", l.inWords(c.Spec.Rolls.Approval))
	for _, b := range s.Builds {
		v.Facts = append(v.Facts, fact{"build of " + l.text(b.Schematic), l.text(b.ID)})
	}
	if k := s.Check; k != nil {
		v.Facts = append(v.Facts, facts("files", l.text(k.Revision))...)
		v.Reasons, v.Problems = l.texts(k.Reasons), l.texts(k.Problems)
	}
	for _, r := range slices.Backward(rolls) {
		if newest != nil && r.Name == newest.Name && !r.Status.Phase.Finished() {
			continue
		}
		v.Past = append(v.Past, l.rollLine(&r))
	}
	if newest != nil && !newest.Status.Phase.Finished() {
		active := l.rollView(newest)
		v.Active, v.Every = &active, running
		v.State.Why = "" // the view of the roll shows the reason
	}
	v.nextOf(&c)
	return "cluster", frame.View{Title: c.Name, Again: again(v.Every), Body: v}, nil
}

func newer(v *v1alpha1.Versions) string {
	if v == nil {
		return ""
	}
	return v.Available
}

// nextOf sets the commands that a person may type, and those that show what the page leaves out.
func (v *clusterView) nextOf(c *v1alpha1.TalosCluster) {
	in := "kubectl -n " + c.Namespace
	v.Next = []command{{"check it now", in + " annotate taloscluster " + c.Name + " " + v1alpha1.AnnotationCheckRequested + `="$(date)" --overwrite`}}
	v.Missing = []command{
		{"each node, and all that differs", in + " " + configMap(job.Account(c.Name), attempt.KeyDrift)},
		{"its events", in + " events --for taloscluster/" + c.Name},
		{"pods of its Jobs", in + " get pods -l " + v1alpha1.LabelCluster + "=" + c.Name},
	}
}

type fleetLine struct {
	Namespace, Name   string
	State             state
	Stage             string
	Done, Failed, All int
	Running, Waiting  int
	Began, Took       string
	began             int64
}

func (l look) fleetLine(f *v1alpha1.FleetRoll) fleetLine {
	s := f.Status
	out := fleetLine{
		Namespace: f.Namespace, Name: f.Name, State: l.state(s.Conditions), Stage: l.text(s.Stage), All: len(s.Members),
		Done: int(s.Done), Failed: int(s.Failed), Running: int(s.Running), Began: l.when(s.Started), Took: l.took(s.Started, s.Ended), began: f.CreationTimestamp.Unix(),
	}
	out.Waiting = out.All - out.Done - out.Failed - out.Running
	return out
}

// over says whether a FleetRoll has ended for good. A FleetRoll that its threshold stopped has not: it continues when
// the threshold is raised.
func over(f *v1alpha1.FleetRoll) bool {
	return f.Status.Ended != nil && (f.Spec.State == v1alpha1.FleetAborted || meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ConditionReady))
}

// fleetLines lists the FleetRolls for which of is true, newest first.
func (l look) fleetLines(ctx context.Context, of func(*v1alpha1.FleetRoll) bool) (out []fleetLine, err error) {
	var list v1alpha1.FleetRollList
	if err := l.list(ctx, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if of(&list.Items[i]) {
			out = append(out, l.fleetLine(&list.Items[i]))
		}
	}
	slices.SortFunc(out, func(a, b fleetLine) int {
		return cmp.Or(cmp.Compare(b.began, a.began), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

type fleetsView struct {
	Every   int
	Caption string
	Fleets  []fleetLine
}

func (l look) fleets(ctx context.Context) (string, frame.View, error) {
	all, err := l.fleetLines(ctx, func(*v1alpha1.FleetRoll) bool { return true })
	return "fleets", frame.View{Title: "Fleet rolls", Body: fleetsView{seldom, "Every FleetRoll, the newest first", all}}, err
}

type fleetView struct {
	fleetLine
	Every         int
	Facts         []fact
	Stages        []stageView
	Next, Missing []command
}

type stageView struct {
	Name, Word, Mood string
	Facts            []fact
	Done, All        int
	Members          []memberLine
}

type memberLine struct {
	Namespace, Cluster, Site string
	Word, Mood               string
	Roll                     *rollLine
	Ended                    string
}

func (l look) fleet(ctx context.Context) (string, frame.View, error) {
	var f v1alpha1.FleetRoll
	if err := l.objects.Get(ctx, l.key, &f); err != nil {
		return "", frame.View{}, err
	}
	var rolls v1alpha1.ImageRollList
	if err := l.list(ctx, &rolls, client.InNamespace(f.Namespace), client.MatchingLabels{v1alpha1.LabelFleet: f.Name}); err != nil {
		return "", frame.View{}, err
	}
	of := map[string]*v1alpha1.ImageRoll{}
	for i := range rolls.Items {
		of[rolls.Items[i].Name] = &rolls.Items[i]
	}
	v := fleetView{fleetLine: l.fleetLine(&f), Every: seldom}
	if !over(&f) {
		v.Every = running
	}
	spec := f.Spec
	v.Facts = facts("spec.state", l.text(string(spec.State)), "Talos", l.text(spec.TalosVersion), "stage", v.Stage, "began", v.Began, "ended", l.when(f.Status.Ended), "took", v.Took,
		"at a time", fmt.Sprintf("%d, of a site %d", spec.MaxConcurrent, spec.MaxConcurrentPerSite), "site", l.text(spec.SiteLabel), "stops at", fmt.Sprintf("%d failed", max(1, spec.AbortThreshold)))
	for _, s := range spec.Stages {
		v.Stages = append(v.Stages, l.stage(&f, s, of))
	}
	v.nextOf(&f)
	return "fleet", frame.View{Title: f.Name, Again: again(v.Every), Body: v}, nil
}

func (l look) stage(f *v1alpha1.FleetRoll, s v1alpha1.Stage, rolls map[string]*v1alpha1.ImageRoll) stageView {
	v := stageView{Name: l.text(s.Name), Facts: facts("soak time", soak(s), "gates", strings.Join(l.texts(s.Gates), "; "), "approval", stageApproval(f, s))}
	for _, m := range f.Status.Members {
		if m.Stage != s.Name {
			continue
		}
		line := memberLine{Namespace: f.Namespace, Cluster: l.text(m.Cluster), Site: l.text(m.Site), Word: l.inWords(string(m.Phase)), Mood: memberMoods[m.Phase], Ended: l.when(m.Ended)}
		if r := rolls[m.Roll]; r != nil {
			roll := l.rollLine(r)
			line.Roll = &roll
		}
		v.All++
		if m.Phase == v1alpha1.MemberDone {
			v.Done++
		}
		v.Members = append(v.Members, line)
	}
	slices.SortStableFunc(v.Members, func(a, b memberLine) int { return memberRank(a) - memberRank(b) })
	v.Word, v.Mood = l.stageState(f, s.Name, v)
	return v
}

var memberMoods = map[v1alpha1.MemberPhase]string{v1alpha1.MemberRunning: open, v1alpha1.MemberDone: good, v1alpha1.MemberFailed: bad}

// memberRank sorts failed clusters first, then rolling, then waiting, then finished ones.
func memberRank(m memberLine) int { return slices.Index([]string{bad, open, "", good}, m.Mood) }

// stageState returns how far a stage is.
func (l look) stageState(f *v1alpha1.FleetRoll, stage string, v stageView) (word, mood string) {
	switch s := l.state(f.Status.Conditions); {
	case f.Status.Started != nil && f.Status.Stage == stage && s.Mood != good && (f.Status.Ended == nil || v.Done < v.All):
		return s.Word, s.Mood
	case v.All > 0 && v.Done == v.All:
		return "done", good
	}
	return "not begun", ""
}

func soak(s v1alpha1.Stage) string {
	if s.Soak.Duration == 0 {
		return ""
	}
	return s.Soak.Duration.String()
}

func stageApproval(f *v1alpha1.FleetRoll, s v1alpha1.Stage) string {
	switch {
	case s.Approval != v1alpha1.ApprovalManual:
		return ""
	case slices.Contains(f.Spec.ApprovedStages, s.Name):
		return "approved"
	}
	return "not approved"
}

// nextOf sets the commands that a person may type, and those that show what the page leaves out.
func (v *fleetView) nextOf(f *v1alpha1.FleetRoll) {
	in := "kubectl -n " + f.Namespace
	patch := func(what, spec string) command {
		return command{what, in + " patch fleetroll " + f.Name + " --type=merge -p '{\"spec\":" + spec + "}'"}
	}
	c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil || over(f):
	case c.Reason == v1alpha1.ReasonAwaitingApproval:
		v.Next = append(v.Next, patch("begin stage "+v.Stage, approved(f)))
	case f.Spec.State == v1alpha1.FleetPaused:
		v.Next = append(v.Next, patch("go on", `{"state":"Running"}`))
	case c.Reason == v1alpha1.ReasonStageFailed:
		v.Next = append(v.Next, patch("go on, once it is known why they failed", fmt.Sprintf(`{"abortThreshold":%d}`, f.Status.Failed+1)))
	default:
		v.Next = append(v.Next, patch("begin nothing more for now", `{"state":"Paused"}`))
	}
	v.Missing = []command{{"its events", in + " events --for fleetroll/" + f.Name}}
}

// approved returns a patch that approves the waiting stage in addition to the approved stages. It has only names of
// stages: the API allows any text in approvedStages, and people copy the patch into a shell.
func approved(f *v1alpha1.FleetRoll) string {
	names := []string{}
	for _, s := range f.Spec.Stages {
		if s.Name == f.Status.Stage || slices.Contains(f.Spec.ApprovedStages, s.Name) {
			names = append(names, s.Name)
		}
	}
	text, _ := json.Marshal(map[string]any{"approvedStages": names}) // strings can always be encoded
	return string(text)
}
