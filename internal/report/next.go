package report

import (
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/story"
)

// next is what to type now.
func (v view) next() []string {
	switch v.Past.Result {
	case "done":
		return v.nextOfDone()
	case "running":
		return []string{"it goes on: recast status says how it stands, and recast report draws it anew"}
	case "given up":
		return []string{"nothing: it was given up for another one, which recast history lists"}
	}
	status := "recast status says where every disk is, and what is half done"
	const again = " goes on where this one stopped; nothing of it has to be undone by hand before"
	switch v.Past.Command() {
	case "rollback":
		return append([]string{status}, v.nextOfRollback()...)
	case "recover":
		return []string{status, "recast recover " + v.nodes("NODE") + again}
	case "restore":
		return []string{"recast restore FILE --node NODE, as it was typed," + again}
	case "upgrade-k8s":
		return []string{"recast upgrade-k8s" + again}
	}
	return []string{status, "recast roll" + again}
}

func (v view) nextOfDone() []string {
	switch v.Past.Command() {
	case "rollback":
		return []string{"put the recast.lock of before back: by the present one these nodes are stale, and recast roll brings them forward again"}
	case "recover":
		return []string{"recast plan says what a roll would do: by the lock " + v.nodes("the node") + " is as stale as before"}
	}
	return []string{"recast drift says whether every node still runs the lock"}
}

// nextOfRollback names nodes: without any, those that are back would be turned round again.
func (v view) nextOfRollback() []string {
	next := []string{"recast roll finishes a node that is half done, before which no other can go: put the recast.lock of before back first, or it brings the other nodes forward"}
	if v.Past.Fates == nil {
		return append(next, "recast rollback NODE takes a node that was not come to")
	}
	left := slices.DeleteFunc(slices.Clone(v.Past.Fates.Left), v.cameTo) // of those that it was stopped at one may be half done
	if len(left) > 0 {
		next = append(next, "recast rollback "+strings.Join(left, " ")+" takes what was not come to")
	}
	return next
}

// cameTo says whether the turn of a node has come.
func (v view) cameTo(node string) bool {
	return slices.ContainsFunc(v.Story.Turns, func(t *story.Turn) bool {
		return t.Node == node && !t.Began.IsZero() && t.Status != "not started"
	})
}

// nodes are those that were to be worked on, or what stands for them.
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
