package simtest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/layouts"
)

var (
	layoutsUpdate = flag.Bool("layouts.update", false, "write the page of layouts anew")
	layoutsDir    = flag.String("layouts.dir", ownLayouts, "where layouts are; those of another directory are compared with no page")
)

const (
	ownLayouts  = "../../../testdata/layouts"
	layoutsPage = ownLayouts + "/README.md"
)

// verdict is recast's result for a layout.
type verdict struct {
	layouts.Layout
	plan   planning.NodePlan
	lifted *planning.NodePlan // after the layout's remedy; nil: not needed, or there is none
}

// TestLayouts plans a roll of every layout, as it is and after its remedy, and compares
// the results with their page.
func TestLayouts(t *testing.T) {
	all := loadLayouts(t)
	verdicts := make([]verdict, len(all))
	t.Run("each", func(t *testing.T) {
		for i, layout := range all {
			t.Run(layout.Name, func(t *testing.T) {
				long(t)
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { verdicts[i] = judge(t, newLayoutLab(t, layout, nil)) })
			})
		}
	})
	if *layoutsDir != ownLayouts || slices.ContainsFunc(verdicts, func(v verdict) bool { return v.Name == "" }) {
		return // only some were requested
	}
	require(t, len(all) >= 25, "only %d layouts", len(all))
	page := layoutPage(verdicts)
	if *layoutsUpdate {
		must(t, os.WriteFile(layoutsPage, []byte(page), 0o644))
		return
	}
	was := readFile(t, layoutsPage)
	requireSame(t, string(was), page, "what is done with a layout has changed; "+
		"go test ./internal/sim/simtest -run TestLayouts -layouts.update writes it afresh (-page +now)")
}

func loadLayouts(t *testing.T) []layouts.Layout {
	t.Helper()
	all := valueOf(layouts.Load(*layoutsDir))(t)
	slices.SortFunc(all, func(a, b layouts.Layout) int { return strings.Compare(a.Name, b.Name) }) // as on the page
	return all
}

// judge plans the node's roll, and if it is not recreated, again after the remedy.
func judge(t *testing.T, l *layoutLab) verdict {
	t.Helper()
	v := verdict{Layout: l.of, plan: planOf(t, l.Lab, l.of.Node)}
	if v.plan.Strategy == cluster.Recreate && len(v.plan.Refused) == 0 || !l.of.Lift.Helps() {
		return v
	}
	if *layoutsDir == ownLayouts {
		l.requirePrinted(v.plan)
	}
	l.lift()
	v.lifted = new(planOf(t, l.Lab, l.of.Node))
	return v
}

// requirePrinted fails the test unless the plan contains all the manual steps, word for word.
func (l *layoutLab) requirePrinted(plan planning.NodePlan) {
	l.t.Helper()
	var commands, config []string
	for _, o := range plan.ToRecreate {
		if o.Command != "" && !slices.Contains(commands, o.Command) {
			commands = append(commands, o.Command)
		}
		config = append(config, o.Config)
	}
	requireSame(l.t, strings.Join(l.of.Lift.Commands, " && "), strings.Join(commands, " && "),
		"commands that lift it (-the layout's +the plan's)")
	if want := l.of.Lift.Config; want != "" && !slices.Contains(config, want) {
		l.t.Errorf("the plan does not say that recast.yaml needs %s: %v", want, config)
	}
}

// TestLayoutsAreRolled rolls every layout as far as recast and the layout's remedy allow,
// kills another such roll once, right after the VM is deleted or half-way, resumes it, and
// compares.
func TestLayoutsAreRolled(t *testing.T) {
	long(t)
	t.Parallel()
	for _, layout := range loadLayouts(t) {
		t.Run(layout.Name, func(t *testing.T) {
			t.Parallel()
			var ref reference
			var strategy cluster.Strategy
			synctest.Test(t, func(t *testing.T) { ref, strategy = rollLayout(t, layout) })
			if strategy == "" || t.Failed() {
				return // refused, with a reason
			}
			synctest.Test(t, func(t *testing.T) { resumeLayout(t, layout, strategy, ref) })
		})
	}
}

// rollLayout rolls undisturbed; an empty strategy means that the plan refuses.
func rollLayout(t *testing.T, layout layouts.Layout) (ref reference, strategy cluster.Strategy) {
	l := newLayoutLab(t, layout, nil)
	n := readyLayout(t, l)
	if len(n.Refused) > 0 {
		return ref, ""
	}
	before := l.shape()
	points, _ := l.finish(t, rolls(l.policy()))
	l.requireRolled(before)
	return reference{points, l.settledDump(), l.Talos}, n.Strategy
}

// resumeLayout kills a roll in its middle and runs it again.
func resumeLayout(t *testing.T, layout layouts.Layout, strategy cluster.Strategy, ref reference) {
	l := newLayoutLab(t, layout, ref.secrets)
	readyLayout(t, l)
	before := l.shape()
	at := ref.points[len(ref.points)/2]
	if strategy == cluster.Recreate {
		at = namedPoint(t, ref.points, fmt.Sprintf("DELETE /api2/json/nodes/%s/qemu/%d", l.node.Host, l.node.VMID))
	}
	l.diesAt(t, at, rolls(l.policy()))
	l.finish(t, rolls(l.policy()))
	l.requireRolled(before)
	requireSame(t, ref.dump, l.settledDump(),
		"killed at %s: the world differs from an undisturbed one (-undisturbed +resumed)", at)
}

// readyLayout plans, applies a remedy if it helps, and returns the final plan.
func readyLayout(t *testing.T, l *layoutLab) planning.NodePlan {
	t.Helper()
	v := judge(t, l)
	if v.lifted != nil {
		return *v.lifted
	}
	return v.plan
}

func (l *layoutLab) policy() planning.Policy { return planning.Policy{Only: []string{l.of.Node}} }

// requireRolled fails the test unless the node runs the new build on the same VM, and no
// promise was broken.
func (l *layoutLab) requireRolled(before map[string]string) {
	l.t.Helper()
	l.RequireIntact()
	plan := l.plan(l.policy())
	requireNone(l.t, plan.Work(), "after the roll there is still something to do")
	requireSame(l.t, before, l.shape(), "the VM is not what it was (-before +now)")
}

// layoutPage is testdata/layouts/README.md.
func layoutPage(all []verdict) string {
	var rows strings.Builder
	now, after := 0, 0
	for _, v := range all {
		switch {
		case v.recreated():
			now++
		case v.liftedToRecreate():
			after++
		}
		rows.WriteString(v.row())
	}
	n := len(all)
	return fmt.Sprintf(`# Clusters as people have them

Each file here is a world of the lab, made from the public sources that it names. A test plans a roll of one node, does what the last column
says, plans again, rolls, kills the roll in its middle, resumes it and compares. This page is what it saw: %s writes it afresh.

**%d of %d are recreated as they are, %d after what the last column says: %d %%.** The plan itself prints these commands, word for word.

| layout | strategy | why | what lifts it to recreate |
|---|---|---|---|
%s`, "`go test ./internal/sim/simtest -run TestLayouts -layouts.update`", now, n, after, (now+after)*100/n, rows.String())
}

func (v verdict) recreated() bool {
	return v.plan.Strategy == cluster.Recreate && len(v.plan.Refused) == 0
}

func (v verdict) liftedToRecreate() bool {
	return v.lifted != nil && v.lifted.Strategy == cluster.Recreate && len(v.lifted.Refused) == 0
}

func (v verdict) row() string {
	strategy, why := string(v.plan.Strategy), v.plan.Why
	if len(v.plan.Refused) > 0 {
		strategy, why = "refused", strings.Join(v.plan.Refused, "; ")
	}
	_, reason, _ := strings.Cut(why, ": ")
	command := "–"
	switch {
	case v.recreated():
		command = ""
	case v.liftedToRecreate():
		command = "`" + strings.Join(v.Lift.Commands, "`, `") + "`"
		if v.Lift.Config != "" {
			command += ", `" + v.Lift.Config + "` in recast.yaml and `recast lock`"
		}
		if v.Lift.Recast != "" {
			command += ", `" + v.Lift.Recast + "` on its line in recast.yaml"
		}
		command = strings.TrimPrefix(command, "``, ")
	case v.lifted != nil:
		command = "– (not even with its remedy)"
	}
	return fmt.Sprintf("| [%s](%s.yaml) | %s | %s | %s |\n", v.Name, v.Name, strategy, cell(masked(reason)), cell(command))
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
