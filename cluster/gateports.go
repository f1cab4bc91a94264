package cluster

import (
	"context"
)

// Judged is what a look at an ObjectGate's objects saw.
type Judged struct {
	Unserved string // why there can be no such objects: the kind is not installed; "" if it is
	Objects  int    // how many were selected
	Failing  []FailingObject
}

// FailingObject is one of which the expression is not true, or can't be told.
type FailingObject struct {
	Name string // with its namespace: "longhorn-system/pvc-1a2b"
	Why  string // what the expression reads of it: "status.robustness=degraded"; or the error of its evaluation
}

// ObjectJudge evaluates expressions on Kubernetes objects.
type ObjectJudge interface {
	Judge(ctx context.Context, g ObjectGate) (Judged, error)
}

// CommandRunner runs a program once, with env added to its environment. An error
// means that it could not be run, or not to its end.
type CommandRunner interface {
	// RunGate runs that of a gate; said is what it printed last.
	RunGate(ctx context.Context, g CommandGate, env []string) (exit int, said string, err error)
	// RunHook runs that of a hook; line is told what it prints, as it prints it.
	RunHook(ctx context.Context, g CommandGate, env []string, line func(text string)) (HookEnd, error)
}

// HookEnd is how the program of a hook ended.
type HookEnd struct {
	Exit   int
	Said   string // what it printed last, on one line
	Output string // the end of what it printed, HookOutput bytes at most
}

// HookOutput is how much of what a hook prints is kept.
const HookOutput = 64 << 10
