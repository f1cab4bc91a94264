package cluster

import (
	"fmt"
	"strings"
)

// Phase is a part of a roll that ends before the next begins.
type Phase string

// The phases of a roll. The last two change places where workers go first.
const (
	Unfinished    Phase = "unfinished" // what an earlier run left
	Reset         Phase = "reset"      // machines that somebody has reset
	Canary        Phase = "canary"     // one node, because none runs the new build yet
	ControlPlanes Phase = "control-planes"
	Workers       Phase = "workers"
)

// StepPath is the path of the step that is about a node.
func StepPath(p Phase, node string) string { return "roll/" + string(p) + "/" + node }

// NodeOfStep finds the node that a step is about in its path, and which steps below the
// node's own the path goes through. What is about hosts, scratch VMs or a phase as
// a whole has none: an ID of the last has an underscore, which no name of a node has.
func NodeOfStep(path string) (phase Phase, node string, below []string) {
	parts := strings.Split(path, "/")
	if len(parts) < 3 || parts[0] != "roll" || strings.Contains(parts[2], "_") {
		return "", "", nil
	}
	switch phase := Phase(parts[1]); phase {
	case Unfinished, Reset, Canary, ControlPlanes, Workers:
		return phase, parts[2], parts[3:]
	default:
		return "", "", nil
	}
}

func (p Phase) Title(nodes, limit int) string {
	switch p {
	case Unfinished:
		return "finish what an earlier run left"
	case Reset:
		return "give machines that were reset their configuration back"
	case Canary:
		return "one node first, since none runs the new build yet"
	case ControlPlanes:
		if nodes == 1 {
			return "one control plane"
		}
		return fmt.Sprintf("%d control planes, one at a time", nodes)
	}
	if nodes == 1 {
		return "one worker"
	}
	return fmt.Sprintf("%d workers, at most %d at a time", nodes, limit)
}
