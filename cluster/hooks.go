package cluster

import (
	"cmp"
	"strings"
	"time"
)

// Hook is a program of the user's own that runs at a point of a run. It has to
// end with 0 within its timeout.
type Hook struct {
	Description    string      `json:"description,omitempty"`
	TimeoutSeconds int         `json:"timeoutSeconds"`
	Command        CommandGate `json:"command"`
}

// Hooks are those of a run, by point, each list in the order in which it runs.
type Hooks struct {
	BeforeRun   []Hook `json:"beforeRun,omitempty"`
	AfterRun    []Hook `json:"afterRun,omitempty"`
	BeforeBatch []Hook `json:"beforeBatch,omitempty"`
	AfterBatch  []Hook `json:"afterBatch,omitempty"`
	BeforeNode  []Hook `json:"beforeNode,omitempty"`
	AfterNode   []Hook `json:"afterNode,omitempty"`
}

// HookPoint is when hooks run.
type HookPoint string

// The points of a run. A batch is a phase of its plan.
const (
	BeforeRun   HookPoint = "beforeRun"
	AfterRun    HookPoint = "afterRun"
	BeforeBatch HookPoint = "beforeBatch"
	AfterBatch  HookPoint = "afterBatch"
	BeforeNode  HookPoint = "beforeNode"
	AfterNode   HookPoint = "afterNode"
)

// String names the hook: by its description, else by what it runs.
func (h Hook) String() string { return cmp.Or(h.Description, h.About()) }

// About is what the hook runs.
func (h Hook) About() string { return h.Command.line() }

// Timeout is how long it may run.
func (h Hook) Timeout() time.Duration { return time.Duration(h.TimeoutSeconds) * time.Second }

// At lists the hooks of one point.
func (h Hooks) At(p HookPoint) []Hook {
	return map[HookPoint][]Hook{
		BeforeRun: h.BeforeRun, AfterRun: h.AfterRun, BeforeBatch: h.BeforeBatch, AfterBatch: h.AfterBatch,
		BeforeNode: h.BeforeNode, AfterNode: h.AfterNode,
	}[p]
}

// HookPoints lists the points in the order in which a run reaches them.
func HookPoints() []HookPoint {
	return []HookPoint{BeforeRun, BeforeBatch, BeforeNode, AfterNode, AfterBatch, AfterRun}
}

// IsHookKey says whether a key of a run's journal is for a planning.HookRun.
func IsHookKey(key string) bool {
	return strings.HasPrefix(key, "hooks/") || strings.Contains(key, "/hooks/")
}
