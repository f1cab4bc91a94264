package cluster

import (
	"strings"
)

// PauseMark is the annotation by which a person keeps a node from being taken
// out. Its value says why.
const PauseMark = "recast.dev/pause"

// Pause reads the mark among a Node's annotations; "" without one.
func Pause(annotations map[string]string) string {
	text, paused := annotations[PauseMark]
	why := strings.Join(strings.Fields(text), " ")
	if paused && why == "" {
		return "no reason given"
	}
	return why
}

func Unpause(node string) string {
	return "kubectl annotate node " + node + " " + PauseMark + "- lifts that"
}
