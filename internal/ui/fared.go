package ui

import (
	"path"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
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

// faredOf is the result of a run by its story.
func faredOf(run story.Story) (fared Fared) {
	for _, s := range run.Steps {
		if s.Path == "roll/snapshot-etcd" && isReached(s) {
			fared.Snapshot = strings.TrimPrefix(s.Text, "saved as ")
		}
	}
	for _, t := range run.Turns {
		if t.Began.IsZero() {
			continue // it only pulled something ahead of its turn
		}
		n := NodeFared{
			Node: t.Node, Phase: t.Phase, Strategy: t.Strategy(), Outcome: outcomeOf(t),
			AwaySeconds: int(t.Away().Round(time.Second).Seconds()),
		}
		if n.Outcome == NodeDone || n.Outcome == NodeNotNeeded {
			n.Now = t.Text
		}
		for _, s := range t.Steps {
			n.see(s, t.Below(s))
		}
		fared.Nodes = append(fared.Nodes, n)
	}
	return fared
}

// see adds what a step of the node says.
func (n *NodeFared) see(s *story.Stage, below string) {
	if s.Status == step.Failed.String() {
		switch first, _, _ := strings.Cut(below, "/"); first {
		case "ask-gates", "await-storage":
			n.Gates = "before"
		case "ask-gates-again", "await-storage-again":
			n.Gates = "after"
		case "run-hooks":
			n.Hooks = "before"
		case "run-hooks-again":
			n.Hooks = "after"
		}
	}
	strategy := cluster.Strategy(n.Strategy)
	switch path.Base(below) {
	case "keep":
		if isReached(s) && !strategy.ParksNothing() {
			n.Kept = s.Text
		}
	case "free-disk":
		if isReached(s) && strategy.VM() == cluster.VMGone {
			n.Kept = s.Text
		}
	}
}

// isReached says whether the goal of a step is reached.
func isReached(s *story.Stage) bool {
	return s.Status == step.Done.String() || s.Status == step.Skipped.String()
}

func outcomeOf(t *story.Turn) NodeOutcome {
	switch t.Status {
	case step.Done.String():
		return NodeDone
	case step.Skipped.String():
		return NodeNotNeeded
	case step.NotStarted.String():
		return NodeNotStarted
	case step.Failed.String():
		if !t.Interrupted {
			return NodeFailed
		}
	}
	return NodeStopped
}
