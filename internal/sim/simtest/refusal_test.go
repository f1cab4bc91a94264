package simtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// refusal is a property of wk1 that prevents recreate, or also reimage.
type refusal struct {
	inPlace bool // what both says is against an upgrade in place, too
	name    string
	bring   edit
	// both are the reasons against recreate and reimage, also those against recreate alone:
	// exactly, in order. With neither nothing is refused.
	both, also []string
	lift       edit     // the remedy in the reasons; nil: only another strategy helps
	lost       []string // what the plan lists as lost afterwards
	undo       edit     // cleans up afterwards; nil: not needed
}

// refusals are groups of them; a group is played sequentially in one lab.
func refusals() map[string][]refusal {
	return map[string][]refusal{
		"kept outside of the VM":  tiedRefusals(),
		"cloud controller":        cloudRefusals(),
		"settings of the VM":      settingRefusals(),
		"occupied":                occupiedRefusals(),
		"disks":                   diskRefusals(),
		"foreign configuration":   preconfiguredRefusals(),
		"data on the system disk": lossRefusals(),
		"data of pods and pools":  localRefusals(),
		"partitions":              partitionRefusals(),
	}
}

// TestEveryRefusal plays everything that prevents the recreation of a node, and then
// applies the remedy in the refusal.
func TestEveryRefusal(t *testing.T) {
	long(t)
	t.Parallel()
	n := 0
	for group, list := range refusals() {
		for _, r := range list {
			n += len(r.both) + len(r.also)
		}
		t.Run(group, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.World.AddMapping("pci", "gpu", "pve1")
				lab.installLonghorn()
				lab.Kube.Define(cephClusters)
				lab.installPiraeus()
				lab.Patch(sim.PatchedExtension)
				for _, r := range list {
					requireRefusal(t, lab, r)
				}
				if _, err := lab.Client().Roll(t.Context(), planning.Policy{}); err != nil {
					t.Fatalf("with everything lifted: %v", err)
				}
				requireInSync(t, lab)
			})
		})
	}
	t.Attr("refusals", strconv.Itoa(n))
	if n < 60 {
		t.Errorf("only %d refusals", n)
	}
}

func requireRefusal(t *testing.T, lab *Lab, r refusal) {
	t.Helper()
	t.Logf("%s", r.name)
	config := lab.Read("recast.yaml")
	r.bring(lab)
	requireAuto(t, lab, r)
	brought := lab.Read("recast.yaml")
	for s, want := range map[cluster.Strategy][]string{cluster.Recreate: slices.Concat(r.both, r.also), cluster.Reimage: r.both} {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
		requireAsked(t, lab, r.name, s, want)
		lab.Write("recast.yaml", brought)
	}
	if r.lift != nil {
		r.lift(lab)
		n := planOf(t, lab, "wk1")
		if diff := cmp.Diff(r.lost, n.WillLose); n.Strategy != cluster.Recreate || len(n.Refused) > 0 || diff != "" {
			t.Errorf("%s: once it is lifted: %s (%s) %q, lost (-want +got):\n%s", r.name, n.Strategy, n.Why, n.Refused, diff)
		}
	}
	if r.undo != nil {
		r.undo(lab)
	}
	lab.Write("recast.yaml", config)
}

// requireAuto checks the result of strategy auto, and the reason.
func requireAuto(t *testing.T, lab *Lab, r refusal) {
	t.Helper()
	n := planOf(t, lab, "wk1")
	if r.inPlace {
		requireNoWayIn(t, lab, r.both...)
		return
	}
	strategy, why := cluster.Recreate, "recreate: possible, every persistent disk can be carried over"
	switch {
	case len(r.both) > 0:
		strategy, why = cluster.InPlace, "in-place: recreate and reimage are impossible ("+strings.Join(r.both, "; ")+")"
		if len(r.also) > 0 {
			why += ", recreate also (" + strings.Join(r.also, "; ") + ")"
		}
	case len(r.also) > 0:
		strategy, why = cluster.Reimage, "reimage: recreate is impossible ("+strings.Join(r.also, "; ")+")"
	}
	if n.Strategy != strategy || len(n.Refused)+len(n.WillLose) > 0 {
		t.Errorf("%s: auto takes %s, want %s; refused %q, lost %q", r.name, n.Strategy, strategy, n.Refused, n.WillLose)
	}
	if diff := cmp.Diff(why, masked(n.Why)); diff != "" {
		t.Errorf("%s: why (-want +got):\n%s", r.name, diff)
	}
}

// requireAsked checks the result of a requested strategy; if it is refused, a roll does
// nothing but say so.
func requireAsked(t *testing.T, lab *Lab, name string, s cluster.Strategy, want []string) {
	t.Helper()
	if len(want) == 0 {
		if n := planOf(t, lab, "wk1"); n.Strategy != s || len(n.Refused) > 0 {
			t.Errorf("%s: %s asked for, planned as %s, refused %q", name, s, n.Strategy, n.Refused)
		}
		return
	}
	before := len(lab.Recorder.Calls())
	rep, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
	var got []string
	for _, n := range rep.Plan.Nodes {
		for _, reason := range n.Refused {
			got = append(got, masked(reason))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s is refused (-want +got):\n%s", name, s, diff)
	}
	text := "the plan can't be carried out:\n  wk1: " + strings.Join(want, "\n  wk1: ")
	if diff := cmp.Diff(text, masked(fmt.Sprint(err))); diff != "" || fault.KindOf(err) != fault.Refused {
		t.Errorf("%s: a roll by %s ended with kind %d (-want +got):\n%s", name, s, fault.KindOf(err), diff)
	}
	for _, call := range lab.Recorder.Calls()[before:] {
		if call.Mutation && !ofClaim(call) {
			t.Errorf("%s: a roll by %s sent %s %s %s all the same", name, s, call.Proto, call.Method, call.Path)
		}
	}
}

func planOf(t *testing.T, lab *Lab, node string) planning.NodePlan {
	t.Helper()
	plan, err := lab.Client().Plan(t.Context(), planning.Policy{Only: []string{node}})
	must(t, err)
	if len(plan.Nodes) != 1 {
		t.Fatalf("a plan for %s: %+v", node, plan.Nodes)
	}
	return plan.Nodes[0]
}
