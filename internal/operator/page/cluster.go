package page

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/web/frame"
)

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
