package ui

import (
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Fared is the result of a run, collected from its events.
type Fared struct {
	Nodes    []NodeFared `json:"nodes,omitempty"`
	Snapshot string      `json:"etcdSnapshot,omitempty"` // where etcd was saved
}

// NodeFared is the result of one node in a run.
type NodeFared struct {
	Node     string      `json:"node"`
	Phase    string      `json:"phase"`
	Strategy string      `json:"strategy"`
	Outcome  NodeOutcome `json:"outcome"`
	Now      string      `json:"now,omitempty"`  // in words, its state at the end
	Kept     string      `json:"kept,omitempty"` // in words, where its old system disk is
	// Gates says at which of the user's gates it ended: "before" the node was touched, or
	// "after" it was back and finished.
	Gates string `json:"gates,omitempty"`
	// Hooks is the same for a hook that failed or was interrupted.
	Hooks string `json:"hooks,omitempty"`
	// AwaySeconds is the time from the end of its drain until it was back, or its branch
	// ended; 0 if it was never down.
	AwaySeconds int `json:"awaySeconds,omitempty"`
}

// NodeOutcome is the result of a node's branch.
type NodeOutcome string

// The outcomes of a node.
const (
	NodeDone       NodeOutcome = "done"
	NodeNotNeeded  NodeOutcome = "not needed" // it was up to date when its turn came
	NodeFailed     NodeOutcome = "failed"
	NodeStopped    NodeOutcome = "stopped" // started, but not finished
	NodeNotStarted NodeOutcome = "not started"
)

// tracker collects the result of a run from its events.
type tracker struct {
	fared Fared
	away  map[string]time.Time // by node, since when
}

func (t *tracker) see(e step.Event) {
	if e.Path == "roll/snapshot-etcd" && (e.Status == step.Done || e.Status == step.Skipped) {
		t.fared.Snapshot = strings.TrimPrefix(e.Text, "saved as ")
	}
	_, name, below := planning.NodeOfStep(e.Path)
	switch {
	case name == "" || e.Status == step.Note:
		return
	case len(below) == 0:
		t.node(name, e)
		return
	}
	n := t.find(name, e.Path)
	switch {
	case e.Status == step.Started && planning.IsBack(below):
		n.back(t.away)
	case e.Status == step.Started && story.TakesAway(below):
		if _, gone := t.away[name]; !gone {
			t.away[name] = time.Now()
		}
	case (below[0] == "ask-gates" || below[0] == "await-storage") && e.Status == step.Failed:
		n.Gates = "before"
	case (below[0] == "ask-gates-again" || below[0] == "await-storage-again") && e.Status == step.Failed:
		n.Gates = "after"
	case below[0] == "run-hooks" && e.Status == step.Failed:
		n.Hooks = "before"
	case below[0] == "run-hooks-again" && e.Status == step.Failed:
		n.Hooks = "after"
	case below[len(below)-1] == "keep" && !cluster.Strategy(n.Strategy).ParksNothing() && (e.Status == step.Done || e.Status == step.Skipped):
		n.Kept = e.Text
	case below[len(below)-1] == "free-disk" && cluster.Strategy(n.Strategy).VM() == cluster.VMGone && (e.Status == step.Done || e.Status == step.Skipped):
		n.Kept = e.Text
	}
}

// node handles the events of a node's branch itself.
func (t *tracker) node(name string, e step.Event) {
	n := t.find(name, e.Path)
	// The first word of a branch's title is its strategy.
	n.Strategy, _, _ = strings.Cut(e.Title, " ")
	switch e.Status {
	case step.Started, step.Stopped, step.Note:
		n.Outcome = NodeStopped
	case step.Done:
		n.Outcome, n.Now = NodeDone, e.Text
	case step.Skipped:
		n.Outcome, n.Now = NodeNotNeeded, e.Text
	case step.Failed:
		n.Outcome = NodeFailed
		if fault.KindOf(e.Err) == fault.Interrupted {
			n.Outcome = NodeStopped
		}
	case step.NotStarted:
		n.Outcome = NodeNotStarted
	}
	if e.Status != step.Started {
		n.back(t.away)
	}
}

// back records how long the node was down, if it was.
func (n *NodeFared) back(away map[string]time.Time) {
	if since, gone := away[n.Node]; gone {
		n.AwaySeconds = int(time.Since(since).Round(time.Second).Seconds())
		delete(away, n.Node)
	}
}

// find returns the entry of a node in one phase: an unfinished node is finished first, and
// may have another turn after that.
func (t *tracker) find(name, path string) *NodeFared {
	if t.away == nil {
		t.away = map[string]time.Time{}
	}
	phase := strings.Split(path, "/")[1]
	for i := range t.fared.Nodes {
		if n := &t.fared.Nodes[i]; n.Node == name && n.Phase == phase {
			return n
		}
	}
	t.fared.Nodes = append(t.fared.Nodes, NodeFared{Node: name, Phase: phase})
	return &t.fared.Nodes[len(t.fared.Nodes)-1]
}
