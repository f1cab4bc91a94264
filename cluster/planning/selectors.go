package planning

import (
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// planSelectors says what the node's file selects of its disks for volumes that are not there, and refuses what would
// leave the node without one.
func (n *NodePlan) planSelectors() {
	if n.Found.File == nil || n.Found.File.Err != nil || !n.AppliesConfig() || n.Resume && n.Strategy.From() != cluster.Blank {
		return
	}
	selectors := n.Found.Selectors(n.volumeStays)
	var stuck []cluster.DiskSelector
	selectors = slices.DeleteFunc(selectors, func(s cluster.DiskSelector) bool {
		if !n.stuckAlready(s) {
			return false
		}
		stuck = append(stuck, s)
		return true
	})
	notes, refused := cluster.TellSelectors(selectors, n.Found.MachineName())
	n.Notes, n.Refused = append(n.Notes, notes...), append(n.Refused, refused...)
	notes, refused = cluster.TellSelectors(stuck, n.Found.MachineName())
	n.Notes = append(append(n.Notes, notes...), refused...)
}

// volumeStays says whether a volume is there, and does not leave with the system disk.
func (n *NodePlan) volumeStays(id string) bool {
	m := n.Found.Machine
	if m == nil {
		return n.Found.HasVolume(id)
	}
	if s, there := m.VolumeStatus(id); there && s.Location != "" {
		_, leaves := n.whereIs(s)
		return !leaves
	}
	return slices.ContainsFunc(m.DisksWith(id), func(disk string) bool {
		return disk != m.SystemDisk || !n.Strategy.SwapsSystem()
	})
}

// stuckAlready says whether Talos can't make the volume now either, by the same selector: the node is as whole with the
// file as without.
func (n *NodePlan) stuckAlready(s cluster.DiskSelector) bool {
	if n.Found.Machine == nil {
		return false
	}
	is, there := n.Found.Machine.VolumeStatus(s.ID)
	was, known := volumeOf(n.Found.Volumes.Runs, s.ID)
	return there && is.Stuck() != "" && (known && was.Place == s.Match || !known && !n.Found.File.Differs())
}
