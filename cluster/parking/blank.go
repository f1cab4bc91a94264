package parking

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// WrongBlank says what of a machine's disks is not as it has to be before its configuration is applied:
// one of them is the new system disk, and every persistent volume is in its place. configured says
// that it may have received one before; prepared, that the disk was made from a disk image, and is not
// blank.
func (mem Memory) WrongBlank(m cluster.Machine, configured, prepared bool) []error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	switch ours := mem.BlankDisks(m); {
	case len(ours) != 1:
		refuse("%d disks of the machine are the %s system disk %s with serial %s, expected one", len(ours), map[bool]string{true: "prepared", false: "blank"}[prepared], mem.SystemKey, mem.DiskSerial)
	case prepared:
		if strange := strangeOn(m, ours[0].Device, configured); strange != "" {
			refuse("the new system disk %s %s", ours[0].Device, strange)
		}
	case !ours[0].Blank:
		refuse("the new system disk %s is not blank", ours[0].Device)
	}
	for _, want := range mem.Volumes {
		if _, there := m.Find(want); !there && m.Shows(want.Format) {
			refuse("the persistent volume %s is missing", want)
		}
	}
	problems = append(problems, mem.Displaced(m, configured)...)
	seen := map[string]string{}
	for _, v := range m.Volumes {
		if !slices.Contains(cluster.TalosLabels, v.Label) {
			continue
		}
		if other, twice := seen[v.Label]; twice {
			refuse("the label %s is on %s and on %s", v.Label, other, v.Device)
		}
		seen[v.Label] = v.Device
	}
	return problems
}

// imagePartitions are those of a disk image of Talos, bootPartitions those that its first boot with a
// configuration adds.
var (
	imagePartitions = []string{"EFI", "BIOS", "BOOT", "META"}
	bootPartitions  = []string{"STATE", "EPHEMERAL"}
)

// strangeOn says what of a prepared system disk is not as the disk image has it: the machine has to
// run from it, and a disk with META and without STATE was never used. "" if nothing is strange.
func strangeOn(m cluster.Machine, device string, configured bool) string {
	if m.FromISO || m.SystemDisk != device {
		return fmt.Sprintf("is not the one that the machine booted, which is %s", words.OrNone(m.SystemDisk))
	}
	allowed := imagePartitions
	if configured {
		allowed = slices.Concat(imagePartitions, bootPartitions)
	}
	has := map[string]bool{}
	for _, v := range m.Volumes {
		switch {
		case v.Disk != device:
		case !slices.Contains(allowed, v.Label):
			return fmt.Sprintf("has %s, which is not of the disk image: it was used before", v)
		default:
			has[v.Label] = true
		}
	}
	if !has["EFI"] || !has["META"] {
		return "lacks partitions of the disk image: it was not imported whole"
	}
	return ""
}

// LacksVolume names the first persistent volume that a machine lacks; "" if it has all of them. One that acceptLoss
// names may be no volume of Talos any more.
func (mem Memory) LacksVolume(m cluster.Machine, acceptLoss []string) string {
	for _, want := range mem.Volumes {
		have, there := m.Find(want)
		switch {
		case !there && !m.Shows(want.Format):
		case !there:
			return fmt.Sprintf("persistent volume %s (partition UUID %s) is missing", words.OrNone(want.Label), want.PartitionUUID)
		case want.Phase != "ready" || have.Phase == "" && slices.ContainsFunc(want.LossNames(), func(name string) bool { return slices.Contains(acceptLoss, name) }):
		case have.Phase != "ready":
			return fmt.Sprintf("persistent volume %s is %s", want.LossNames()[0], words.OrNone(have.Phase))
		case want.ID != "" && have.ID != want.ID:
			return fmt.Sprintf("persistent volume %s is %s now", want.ID, words.OrNone(have.ID))
		}
	}
	return ""
}

// LacksPlace says which persistent volume is on another disk than before. It skips a disk that
// can't be identified because pods have disks of the same size: checkBlank has already found a
// moved disk in its place, and a disk that was not moved is still in its place.
func (mem Memory) LacksPlace(m cluster.Machine, vm cluster.VM) string {
	drives, err := vm.Bootable()
	if err != nil {
		return err.Error()
	}
	for _, was := range mem.Persistent {
		if on := m.MachineDisks(vm, drives, was.Key); len(on) == 1 {
			if elsewhere := mem.Elsewhere(m, was, on[0]); elsewhere != "" {
				return elsewhere
			}
		}
	}
	return ""
}
