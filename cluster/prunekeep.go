package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// FreePlan is an old system disk that goes at the end of its node's roll.
type FreePlan struct {
	Parking VMID   `json:"parking"`
	Key     string `json:"key"` // on the parking VM
	Run     string `json:"run"` // that replaced it, or had made it and was given up
	GivenUp bool   `json:"givenUp,omitempty"`
	Talos   string `json:"talos,omitempty"`
	Volid   string `json:"volid,omitempty"` // "": it is not there any more, and only its entry in the record goes
	Size    string `json:"size,omitempty"`
}

func (f FreePlan) String() string {
	what := "the system disk"
	if f.Volid == "" {
		what = "the entry of the system disk"
	}
	return fmt.Sprintf("%s of VM %d: %s that run %s %s, Talos %s", f.Key, f.Parking, what, f.Run, WasDone(f.GivenUp), words.OrNone(f.Talos))
}

// planFrees shows which old system disks are superseded once the node's roll has
// succeeded: all but the newest keep, the present one then among them, and those
// that were given up, which are no way back and do not count. An upgrade
// in place supersedes none; it only ends what an earlier roll had begun to free.
func (n *NodePlan) planFrees(o Observation, keep int) {
	p := n.Found.Parking
	if p == nil || len(n.Refused) > 0 {
		return
	}
	replaces := n.Strategy == Recreate || n.Strategy == Reimage
	if !replaces && n.Strategy != InPlace {
		return
	}
	there := 0
	for _, k := range p.Record.Kept {
		if _, found := p.VM.Config[k.Key]; found && !k.GivenUp {
			there++
		}
	}
	for _, k := range p.Record.Kept {
		f := FreePlan{Parking: p.VM.ID, Key: k.Key, Run: k.Run, GivenUp: k.GivenUp, Talos: k.Talos}
		disk, against := p.freeable(k, o.VMs)
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

// FreesOn lists the storages of the disks that go.
func (n NodePlan) FreesOn() []string {
	var out []string
	for _, f := range n.Frees {
		if storage, _, ok := strings.Cut(f.Volid, ":"); ok && !slices.Contains(out, storage) {
			out = append(out, storage)
		}
	}
	return out
}

// freeable is the drive of a kept disk, none where that is gone, and what is
// against freeing it. An open record is not: it is closed by then.
func (p Parking) freeable(k KeptDisk, vms []VM) (disk Disk, against []string) {
	p.Record.Open = false
	against = p.Untouchable(nil)
	if _, there := p.VM.Config[k.Key]; !there {
		return disk, against
	}
	disk, err := p.KeptDisk(k)
	if err != nil {
		return disk, append(against, err.Error())
	}
	return disk, append(against, NamedBeside(p.VM, disk, UsesOf(vms))...)
}
