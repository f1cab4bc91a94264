package page

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/web/frame"
)

// clusterLine is a TalosCluster in a row of the table.
type clusterLine struct {
	Namespace, Name string
	State           state
	Nodes, Uneven   string // how many; how many of them are stale or unread
	Talos           string
	Roll            *rollLine
	Checked, Due    string
	Late, rolling   bool
	Window          string
	rank            int
}

// overdue is how long a check may be due before that is trouble, as for the alert RecastClusterNotChecked.
const overdue = 12 * time.Hour

// The order of clusters in the table.
const (
	rankTrouble = iota
	rankPerson  // someone has to approve
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
		case newest.Status.Phase == v1alpha1.PhaseFailed && out.State.Mood == open: // a FleetRoll's does not stall the cluster
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

// nodes counts them.
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

// versions is "v1.13.8 → v1.13.9", or one of them.
func (l look) versions(v *v1alpha1.Versions) string {
	switch {
	case v == nil:
		return ""
	case v.Current == "" || v.Wanted == "" || v.Is(v.Current):
		return l.text(cmp.Or(v.Current, v.Wanted))
	}
	return l.text(v.Current) + " → " + l.text(v.Wanted)
}

// window is when a roll may begin.
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

// clustersView is the first page.
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

// newestRolls are the ImageRolls that matter most, by cluster: the active one, else the last one.
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

// clusterView is a TalosCluster.
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
		v.State.Why = "" // the roll says it
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

// nextOf is what may be typed, and where the rest is.
func (v *clusterView) nextOf(c *v1alpha1.TalosCluster) {
	in := "kubectl -n " + c.Namespace
	v.Next = []command{{"check it now", in + " annotate taloscluster " + c.Name + " " + v1alpha1.AnnotationCheckRequested + `="$(date)" --overwrite`}}
	v.Missing = []command{
		{"each node, and all that differs", in + " " + configMap(job.Account(c.Name), attempt.KeyDrift)},
		{"its events", in + " events --for taloscluster/" + c.Name},
		{"pods of its Jobs", in + " get pods -l " + v1alpha1.LabelCluster + "=" + c.Name},
	}
}
