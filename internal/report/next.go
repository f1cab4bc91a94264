package report

import (
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/story"
)

// next returns what to do next.
func (v view) next() []string {
	switch v.Past.Result {
	case "done":
		return v.nextOfDone()
	case "running":
		return []string{"the run is active: recast status shows its state, and recast history --open updates this report"}
	case "given up":
		return []string{"nothing: another run replaced it, see recast history"}
	}
	status := "recast status shows where every disk is, and what is unfinished"
	const again = " continues where this one stopped; nothing has to be undone by hand first"
	switch v.Past.Command() {
	case "undo --previous":
		return append([]string{status}, v.nextOfRollback()...)
	case "undo --cancel":
		return []string{status, "recast undo " + v.nodes("NODE") + again}
	case "restore":
		return []string{"recast restore FILE --node NODE, the same command," + again}
	case "upgrade-k8s":
		return []string{"recast upgrade-k8s" + again}
	}
	return []string{status, "recast roll" + again}
}

func (v view) nextOfDone() []string {
	switch v.Past.Command() {
	case "undo --previous":
		return []string{"restore the previous recast.lock: by the current one these nodes are stale, and recast roll brings them forward again"}
	case "undo --cancel":
		return []string{"recast plan shows what a roll would do: by the lock " + v.nodes("the node") + " is as stale as before"}
	}
	return []string{"recast drift checks whether every node still runs the lock"}
}

// nextOfRollback names the nodes: a rollback of all would turn finished nodes round again.
func (v view) nextOfRollback() []string {
	next := []string{"recast roll finishes an unfinished node, which must come first: before that, restore the previous recast.lock, or it brings the other nodes forward"}
	if v.Past.Fates == nil {
		return append(next, "recast undo NODE rolls back a node that was not started")
	}
	left := slices.DeleteFunc(slices.Clone(v.Past.Fates.Left), v.cameTo) // of the nodes at which it was stopped, one may be unfinished
	if len(left) > 0 {
		next = append(next, "recast undo "+strings.Join(left, " ")+" rolls back the nodes that were not started")
	}
	return next
}

// cameTo says whether a node had a turn.
func (v view) cameTo(node string) bool {
	return slices.ContainsFunc(v.Story.Turns, func(t *story.Turn) bool {
		return t.Node == node && !t.Began.IsZero() && t.Status != "not started"
	})
}

// nodes lists the planned nodes, or a placeholder for them.
func (v view) nodes(none string) string {
	var names []string
	if v.Past.Plan != nil {
		for _, n := range v.Past.Plan.Work() {
			names = append(names, n.Node)
		}
	}
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, " ")
}
