package cluster

import (
	"fmt"

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

// Freeable is the drive of a kept disk, none where that is gone, and what is
// against freeing it. An open record is not: it is closed by then.
func (p Parking) Freeable(k KeptDisk, vms []VM) (disk Disk, against []string) {
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
