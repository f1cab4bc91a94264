// Package page shows a fleet in a browser: its clusters, their rolls and the FleetRolls, as far as the objects in the
// operator's cache hold them. The pages can't change anything, and have no login: they are reached by kubectl
// port-forward, so Kubernetes decides who may see them.
package page

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/web/frame"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
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

// page returns a handler that draws the result of view with the template that view names.
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

func approval(r *v1alpha1.ImageRoll) string {
	if r.Spec.Approved {
		return "approved"
	}
	return "not approved"
}

// next returns the commands that a roll waits for.
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

// text removes secrets from foreign text.
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

// took returns how long something lasted, or has lasted so far.
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

// facts returns the pairs that have a value.
func facts(pairs ...string) (out []fact) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, fact{pairs[i], pairs[i+1]})
		}
	}
	return out
}

// given returns text if is is true, otherwise "".
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
