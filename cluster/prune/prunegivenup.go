package prune

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// judgeGivenUp judges a disk of a cancelled replacement, and reports whether it is one. Nothing
// boots it, so it can be freed if nothing prevents that. It stays while the node has an unfinished
// replacement, or if it belongs to another recast.yaml.
func (j *judgement) judgeGivenUp(i int) bool {
	v := &j.kept[i]
	if !v.GivenUp {
		return false
	}
	open := slices.IndexFunc(j.parkings, func(p parking.Parking) bool { return p.Record.Node == v.Node && p.Record.Open })
	switch vm := j.vmOf(v.Parking); {
	case open >= 0 && j.parkings[open].VM.ID != v.Parking:
		v.Keep = append(v.Keep, fmt.Sprintf("%s holds the unfinished replacement of node %s", j.parkings[open].VM, v.Node))
	case len(v.Keep) > 0:
	case !slices.Contains(j.Nodes, v.Node) && vm != nil:
		v.Keep = append(v.Keep, j.notOurs(v.Node, *vm))
	default:
		v.Goes = fmt.Sprintf("run %s had made it and was given up: nothing boots it", v.Run)
	}
	return true
}

// notOurs says why a disk stays if recast.yaml does not have its node but the node's VM exists.
func (j *judgement) notOurs(node string, vm cluster.VM) string {
	return fmt.Sprintf("recast.yaml has no node %s, but its VM is there: %s. Another recast.yaml may say cluster: %s as well", node, vm, j.Cluster)
}
