package roll

import (
	"slices"

	"github.com/recast-sh/recast/cluster/parking"
)

// rolledBackTo is the goal of a rollback: the kept disk is no longer parked.
func (n order) rolledBackTo(rec parking.Record) string {
	parked := slices.ContainsFunc(rec.Kept, func(k parking.KeptDisk) bool { return k.Key == n.Plan.Restore.Key && k.Run == n.Plan.Restore.Run })
	if parked {
		return ""
	}
	n.Out.Remove(n.Plan.Node)
	return "it runs its earlier system again"
}
