// Package page shows a fleet in a browser: its clusters, their rolls and the FleetRolls, as far as the objects in the
// operator's cache hold them. The pages can't change anything, and have no login: they are reached by kubectl
// port-forward, so Kubernetes decides who may see them.
package page

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/web/frame"
)

type Site struct {
	frame   *frame.Frame
	objects client.Reader
	address netip.AddrPort
	Now     func() time.Time
}

// Every replica serves the pages: all replicas have the same objects.
var _ interface {
	manager.Runnable
	manager.LeaderElectionRunnable
} = (*Site)(nil)

//go:embed pages
var files embed.FS

// New returns a site that shows the objects in a cache.
func New(objects client.Reader, address netip.AddrPort, version string) (*Site, error) {
	f, err := frame.New(frame.Options{
		Name: "recast-operator", Of: "recast-operator", Ends: "kubectl port-forward", Where: "recast-operator " + version + ", times in UTC", Base: "/",
		Tabs:  [][2]string{{"", "Clusters"}, {"fleets", "Fleet rolls"}, {"runbooks", "Runbooks"}},
		Pages: files, Names: []string{"clusters", "cluster", "roll", "fleets", "fleet"},
		Hide: redact.New(nil).Text,
	})
	return &Site{frame: f, objects: objects, address: address, Now: time.Now}, err
}

func (s *Site) NeedLeaderElection() bool { return false }

// Start serves the pages until ctx ends.
func (s *Site) Start(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address.String())
	if err != nil {
		return err
	}
	return frame.Serve(ctx, l, s.Handler())
}

// Handler answers GET and HEAD, and no other methods.
func (s *Site) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page(look.clusters))
	mux.HandleFunc("GET /clusters/{namespace}/{name}", s.page(look.cluster))
	mux.HandleFunc("GET /rolls/{namespace}/{name}", s.page(look.roll))
	mux.HandleFunc("GET /fleets", s.page(look.fleets))
	mux.HandleFunc("GET /fleets/{namespace}/{name}", s.page(look.fleet))
	s.frame.Handle(mux)
	return frame.Guard("", mux)
}

type look struct {
	*Site
	key client.ObjectKey // the object that the page is about
	at  time.Time
}

// patience limits the time of a read: while the cache is not filled yet, a request waits.
const patience = 10 * time.Second

func (s *Site) page(view func(look, context.Context) (template string, v frame.View, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		l := look{s, client.ObjectKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}, s.Now()}
		template, v, err := view(l, ctx)
		switch {
		case apierrors.IsNotFound(err):
			s.frame.Missing(w, "there is no such object, or it is not in the cache yet")
		case err != nil:
			s.frame.Render(w, http.StatusServiceUnavailable, "missing", frame.View{Title: "Not read", Body: "the objects in the cache could not be read: " + s.frame.Hide(err.Error())})
		default:
			s.frame.Render(w, http.StatusOK, template, v)
		}
	}
}

// list reads objects. They belong to the cache: copies for each page would be most of what the operator allocates.
func (l look) list(ctx context.Context, into client.ObjectList, of ...client.ListOption) error {
	return l.objects.List(ctx, into, append(of, client.UnsafeDisableDeepCopy)...)
}

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

// rollState returns the phase of a roll, and the roll's own message.
func (l look) rollState(r *v1alpha1.ImageRoll) state {
	s := l.state(r.Status.Conditions)
	s.Word = cmp.Or(l.inWords(string(r.Status.Phase)), "not begun")
	if p := r.Status.Plan; p != nil && r.Status.Phase == v1alpha1.PhaseAwaitingApproval {
		s.Why = fmt.Sprintf("plan %s rolls %d nodes", l.text(p.Hash), p.Nodes) // without the commands, which name no namespace
	}
	return s
}

type rollView struct {
	rollLine
	Cluster       string
	Every         int
	Facts         []fact
	Lines         []string // lines of the plan
	Refused       []string
	Progress      *progress
	Tries         []tryLine
	Next, Missing []command
}

type progress struct {
	Done, Total                     int32
	Summary, Node, Message, Updated string
}

type tryLine struct{ Job, Began, Took, Result, Mood, Done string }

func (l look) roll(ctx context.Context) (string, frame.View, error) {
	var r v1alpha1.ImageRoll
	if err := l.objects.Get(ctx, l.key, &r); err != nil {
		return "", frame.View{}, err
	}
	v := l.rollView(&r)
	return "roll", frame.View{Title: r.Name, Again: again(v.Every), Body: v}, nil
}

// again returns the reload interval for a browser without scripts: 0, no reload, unless something is changing.
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
	v.Facts = facts("rolls", cmp.Or(strings.Join(l.texts(r.Spec.Only), ", "), v.Action), "approval", approval(r.Spec.Approved), "suspended", given(r.Spec.Suspend, "yes"),
		"began", v.Began, "ended", l.when(s.Ended), "took", v.Took, "not before", l.when(s.NotBefore))
	if p := s.Plan; p != nil {
		v.Facts = append(v.Facts, facts("plan", l.text(p.Hash), "files", l.text(p.Revision), "unfinished", given(p.Unfinished, "the plan only finishes what an earlier run has left; the next ImageRoll does the rest"))...)
		v.Lines, v.Refused = l.texts(p.Lines), l.texts(p.Refused)
	}
	if p := s.Progress; p != nil {
		v.Progress = &progress{p.Done, p.Total, v.Nodes, l.text(p.Node), l.text(p.Message), l.when(p.Updated)}
		v.Facts = append(v.Facts, facts("done", strings.Join(l.texts(p.Finished), ", "))...)
		if strings.HasPrefix(v.State.Why, v.Nodes+" nodes; ") {
			v.State.Why = "" // the progress is shown already
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
	if t.Result, t.Mood = l.inWords(a.Reason), bad; a.ExitCode != nil && *a.ExitCode == attempt.ExitDone {
		t.Mood = good
	}
	if a.ExitCode != nil && *a.ExitCode != attempt.ExitDone {
		t.Result += fmt.Sprintf(", exit code %d", *a.ExitCode)
	}
	if last && o != nil && o.Job == a.Job && o.Message != "" {
		t.Result += ": " + l.text(o.Message)
	}
	return t
}

func approval(is bool) string { return map[bool]string{true: "approved", false: "not approved"}[is] }

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

// elsewhere returns commands that show what an ImageRoll does not hold.
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

// configMap returns the kubectl arguments that print a key of a ConfigMap. A large text is not under that key, but
// compressed in .binaryData.
func configMap(name, key string) string {
	return fmt.Sprintf(`get configmap %s -o jsonpath='{.data.%s}'`, name, strings.ReplaceAll(key, ".", `\.`))
}

type state struct {
	Word, Mood string // Mood: "good", "open", "bad"
	Why        string
}

const (
	good = "good"
	open = "open"
	bad  = "bad"
)

func (l look) state(of []metav1.Condition) state {
	ready := meta.FindStatusCondition(of, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return state{Word: "not looked at yet", Mood: open}
	case meta.IsStatusConditionTrue(of, v1alpha1.ConditionStalled):
		return state{l.inWords(ready.Reason), bad, l.text(ready.Message)}
	case ready.Status == metav1.ConditionTrue && ready.Reason != v1alpha1.ReasonSuspended:
		return state{l.inWords(ready.Reason), good, l.text(ready.Message)}
	}
	return state{l.inWords(ready.Reason), open, l.text(ready.Message)}
}

// inWords turns AwaitingApproval into "awaiting approval".
func (l look) inWords(reason string) string {
	var out strings.Builder
	for i, r := range l.text(reason) {
		if unicode.IsUpper(r) && i > 0 {
			out.WriteByte(' ')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

func (l look) text(s string) string { return l.frame.Hide(s) }

func (l look) texts(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = l.text(s)
	}
	return out
}

// Short returns the beginning of an object's message, for tables; "" if all is well.
func (s state) Short() string {
	const most = 110 // characters
	line, _, _ := strings.Cut(s.Why, "\n")
	switch text := []rune(line); {
	case s.Mood == good:
		return ""
	case len(text) > most:
		line = string(text[:most])
		return line[:cmp.Or(max(strings.LastIndex(line, " "), 0), len(line))] + " …"
	}
	return line
}

// ago returns how long ago a time was, or how far off it is, in kubectl's format.
func (l look) ago(t time.Time) string {
	if d := l.at.Sub(t); d >= 0 {
		return duration.HumanDuration(d) + " ago"
	}
	return "in " + duration.HumanDuration(t.Sub(l.at))
}

// when formats a time; "" if there is none.
func (l look) when(t *metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return l.clock(t.Time) + ", " + l.ago(t.Time)
}

// clock formats a time, with the day unless it is today.
func (l look) clock(t time.Time) string {
	if t.UTC().Format(time.DateOnly) != l.at.UTC().Format(time.DateOnly) {
		return t.UTC().Format("2006-01-02 15:04")
	}
	return t.UTC().Format("15:04")
}

func (l look) took(from, to *metav1.Time) string {
	switch {
	case from.IsZero():
		return ""
	case to.IsZero():
		return duration.HumanDuration(l.at.Sub(from.Time)) + " so far"
	}
	return duration.HumanDuration(to.Sub(from.Time))
}

type fact struct{ Name, Value string }

func facts(pairs ...string) (out []fact) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, fact{pairs[i], pairs[i+1]})
		}
	}
	return out
}

func given(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// command is a command that a person may type. People copy it into a shell, so it has no foreign text: only names of
// objects, which Kubernetes has checked.
type command struct{ What, Line string }

// The intervals at which a page is loaded again, in seconds: while a roll on the page is active, and otherwise.
const (
	running = 5
	seldom  = 15
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
	err := l.list(ctx, &clusters)
	if err == nil {
		err = l.list(ctx, &rolls)
	}
	if err != nil {
		return "", frame.View{}, err
	}
	fleets, err := l.fleetLines(ctx, func(f *v1alpha1.FleetRoll) bool { return !over(f) })
	if err != nil {
		return "", frame.View{}, err
	}
	newest := newestRolls(rolls.Items)
	v := clustersView{fleetsView: fleetsView{seldom, "FleetRolls that are not finished", fleets}}
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
	v := stageView{Name: l.text(s.Name), Facts: facts(
		"soak time", given(s.Soak.Duration != 0, s.Soak.Duration.String()), "gates", strings.Join(l.texts(s.Gates), "; "),
		"approval", given(s.Approval == v1alpha1.ApprovalManual, approval(slices.Contains(f.Spec.ApprovedStages, s.Name))),
	)}
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

func (l look) stageState(f *v1alpha1.FleetRoll, stage string, v stageView) (word, mood string) {
	switch s := l.state(f.Status.Conditions); {
	case f.Status.Started != nil && f.Status.Stage == stage && s.Mood != good && (f.Status.Ended == nil || v.Done < v.All):
		return s.Word, s.Mood
	case v.All > 0 && v.Done == v.All:
		return "done", good
	}
	return "not begun", ""
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
		v.Next = append(v.Next, patch("continue", `{"state":"Running"}`))
	case c.Reason == v1alpha1.ReasonStageFailed:
		v.Next = append(v.Next, patch("continue, once it is known why they failed", fmt.Sprintf(`{"abortThreshold":%d}`, f.Status.Failed+1)))
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
