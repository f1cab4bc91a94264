package observe

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// Selectors are those of the node's file that choose where Talos makes a volume, or looks for one at each boot. A
// partition that is there is found by its label. What matches nothing is unknown while the VM is to get disks.
func (f *Found) Selectors(there func(id string) bool) []cluster.DiskSelector {
	if f.File == nil {
		return nil
	}
	out := slices.DeleteFunc(slices.Clone(f.File.Selectors), func(s cluster.DiskSelector) bool {
		return (s.Kind == cluster.ForPartition || s.Kind == cluster.ForDevice) && there(s.ID)
	})
	for i, s := range out {
		if len(s.Found) == 0 && s.Unknown == "" && s.Broken == "" && f.Shape.NewDisks() {
			out[i].Unknown = "its VM does not have all disks of recast.yaml yet"
		}
	}
	return out
}

// HasVolume says whether the machine, with a configuration or without, has a volume of that ID.
func (f *Found) HasVolume(id string) bool {
	return f.Machine != nil && f.Machine.HasVolume(id) || f.Blank != nil && f.Blank.HasVolume(id)
}

// MachineName names the node's machine for people.
func (f *Found) MachineName() string {
	if f.VM == nil {
		return "the machine"
	}
	return fmt.Sprintf("VM %d", f.VM.ID)
}
