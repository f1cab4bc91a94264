package planning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
)

// FreesOn lists the storages of the disks that are freed.
func (n NodePlan) FreesOn() []string {
	var out []string
	for _, f := range n.Frees {
		if storage, _, ok := strings.Cut(f.Volid, ":"); ok && !slices.Contains(out, storage) {
			out = append(out, storage)
		}
	}
	if !n.Wanted.Surge {
		return out
	}
	for _, d := range n.Wanted.Shape.Disks { // the surge node's system disk, when the node is removed
		if d.Storage != "" && !slices.Contains(out, d.Storage) {
			out = append(out, d.Storage)
		}
	}
	return out
}

// planFrees shows which old system disks are superseded once the node's roll has succeeded: all but the newest
// keep, counting the present one. Disks that were given up (KeptDisk.GivenUp) are no way back: they are superseded
// and do not count. An in-place upgrade supersedes no disk; it only completes what an earlier roll began to free.
func (n *NodePlan) planFrees(o observe.Observation, keep int) {
	p := n.Found.Parking
	if p == nil || len(n.Refused) > 0 {
		return
	}
	replaces := n.Strategy.Replaces()
	if !replaces && !n.Strategy.KeepsVM() {
		return
	}
	there := 0
	for _, k := range p.Record.Kept {
		if _, found := p.VM.Config[k.Key]; found && !k.GivenUp && !k.Removed {
			there++
		}
	}
	for _, k := range p.Record.Kept {
		if k.Removed {
			continue // no roll frees a disk of a removed node
		}
		f := parking.FreePlan{Parking: p.VM.ID, Key: k.Key, Run: k.Run, GivenUp: k.GivenUp, Talos: k.Talos}
		disk, against := p.Freeable(k, o.VMs)
		f.Volid, f.Size = disk.Volid, disk.Option("size")
		switch superseded := replaces && (f.Volid == "" || k.GivenUp || there >= max(1, keep)); {
		case !superseded && !k.Going:
			continue
		case !k.Going && len(against) > 0:
			n.Notes = append(n.Notes, fmt.Sprintf("%s stays, although it is superseded: %s", f, strings.Join(against, "; ")))
		default:
			n.Frees = append(n.Frees, f)
		}
		if f.Volid != "" && !k.GivenUp {
			there--
		}
	}
}
