package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
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
	return fmt.Sprintf("%s of VM %d: %s that run %s %s, Talos %s", f.Key, f.Parking, what, f.Run, did(f.GivenUp), words.OrNone(f.Talos))
}

// planFrees shows which old system disks are superseded once the node's roll has
// succeeded: all but the newest keep, the present one then among them, and those
// that were given up, which are no way back and do not count. An upgrade
// in place supersedes none; it only ends what an earlier roll had begun to free.
func (n *NodePlan) planFrees(o Observation, keep int) {
	p := n.found.Parking
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

// freesOn lists the storages of the disks that go.
func (n NodePlan) freesOn() []string {
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
	against = p.untouchable(nil)
	if _, there := p.VM.Config[k.Key]; !there {
		return disk, against
	}
	disk, err := p.keptDisk(k)
	if err != nil {
		return disk, append(against, err.Error())
	}
	return disk, append(against, namedBeside(p.VM, disk, UsesOf(vms))...)
}

// freeSteps free what the plan showed, once the record of the replacement is closed.
func (n *nodeRoll) freeSteps(path string) []step.Step {
	var steps []step.Step
	for _, f := range n.plan.Frees {
		ref := keptRef{Cluster: n.Cluster, Node: n.plan.Node, Parking: f.Parking, Key: f.Key, Run: f.Run, Volid: f.Volid}
		id := "free-" + f.Key
		steps = append(steps, step.Step{
			ID: id, Kind: "free-disk", Title: "free " + f.String(), Risk: step.Destructive,
			Skip: func(ctx context.Context) (string, error) {
				_, entry, found, err := ref.find(ctx, n.Proxmox)
				switch {
				case err != nil:
					return "", err
				case !found:
					return "it is gone", nil
				case !entry.Going:
					return "it stays; recast prune shows it", nil
				}
				return "", nil
			},
			Do: func(ctx context.Context) error { return n.free(ctx, ref, path+"/"+id) },
		})
	}
	return steps
}

// free frees a superseded disk. The node is healthy, so one that can't be freed
// does not fail its roll: it stays for recast prune.
func (n *nodeRoll) free(ctx context.Context, ref keptRef, path string) error {
	err := ref.free(ctx, n.Proxmox, func(ctx context.Context) ([]Use, error) {
		vms, err := n.Proxmox.VMs(ctx)
		return UsesOf(vms), fault.Prefix("read Proxmox", err)
	})
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Claimed {
		return err
	}
	if _, unproven := errors.AsType[*UnprovenError](err); unproven {
		return err
	}
	if errStay := ref.stay(ctx, n.Proxmox); errStay != nil {
		return errors.Join(err, errStay)
	}
	n.say(path, fmt.Sprintf("not freed: %v; it stays, and recast prune can free it", err))
	return nil
}

// stay notes that the disk is not to be freed, and protects the parking VM again.
func (k keptRef) stay(ctx context.Context, px Proxmox) error {
	p, _, found, err := k.find(ctx, px)
	if err != nil || !found {
		return err
	}
	for i := range p.Record.Kept {
		if k.is(p.Record.Kept[i]) {
			p.Record.Kept[i].Going = false
		}
	}
	return writeRecord(ctx, px, p.VM, p.Record)
}
