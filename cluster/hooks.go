package cluster

import (
	"cmp"
	"strings"
	"time"
)

// Hook is a program of the user's own that runs at a point of a run. It has to end with 0 within its timeout.
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

// Timeout is how long the hook may run.
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

// UserGate is a condition of the user's own. It has to hold before a node is taken out, and again after it is back,
// before the next one goes. It is about objects or about a command.
type UserGate struct {
	Description    string       `json:"description,omitempty"`
	BeforeOnly     bool         `json:"beforeOnly,omitempty"` // not asked after the node is back
	TimeoutSeconds int          `json:"timeoutSeconds"`       // that it may take to hold, each time
	Objects        *ObjectGate  `json:"objects,omitempty"`
	Command        *CommandGate `json:"command,omitempty"`
}

// ObjectGate is an expression that has to be true of every object selected.
type ObjectGate struct {
	APIVersion string `json:"apiVersion"` // "ceph.rook.io/v1"
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"` // "": all
	Name       string `json:"name,omitempty"`      // "": all
	Labels     string `json:"labels,omitempty"`    // selector as the Kubernetes API takes it
	Expr       string `json:"expr"`
	Optional   bool   `json:"optional,omitempty"` // holds without any such object, or kind
}

// CommandGate is a program that has to end with 0. Hooks are such programs as well.
type CommandGate struct {
	Args []string `json:"args"`
	Dir  string   `json:"-"` // where it runs
	Env  []string `json:"-"` // names of variables that it gets of recast's environment, beside those that every program gets
}

// String names the gate: by its description, else by what it looks at.
func (g UserGate) String() string { return cmp.Or(g.Description, g.About()) }

// About is what the gate looks at.
func (g UserGate) About() string {
	if g.Command != nil {
		return g.Command.line()
	}
	o := g.Objects
	about := o.APIVersion + " " + o.Kind
	if where := strings.Trim(o.Namespace+"/"+o.Name, "/"); where != "" {
		about += " " + where
	}
	if o.Labels != "" {
		about += " with " + o.Labels
	}
	return about
}

// line returns the program with its arguments on one line, even if an argument is a script.
func (c CommandGate) line() string {
	var words []string
	for _, arg := range c.Args {
		var lines []string
		for line := range strings.Lines(arg) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		words = append(words, strings.Join(lines, "; "))
	}
	return strings.Join(words, " ")
}

// Timeout is how long a roll waits for the gate.
func (g UserGate) Timeout() time.Duration { return time.Duration(g.TimeoutSeconds) * time.Second }
