package planning

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// planPrepared decides whether the node's new system disk is made from a disk image before the node is drained, as
// images.boot asks.
func planPrepared(n *NodePlan, system cluster.Disk) {
	if n.Wanted.Boot != cluster.BootFromDisk && n.Wanted.Boot != cluster.BootFromAuto {
		return
	}
	against := againstPrepared(*n, system)
	switch {
	case len(against) == 0:
		n.Prepared = n.Wanted.Build.DiskName
		n.Notes = append(n.Notes, fmt.Sprintf("its new system disk is made from %s while it serves: its VM boots that and installs nothing, so machine.install of its configuration does nothing", n.Prepared))
	case n.Wanted.Boot == cluster.BootFromDisk:
		n.Refused = append(n.Refused, fmt.Sprintf("its system disk can't be made from a disk image: %s; with images.boot: auto it would boot the ISO", strings.Join(against, "; ")))
	default:
		n.Notes = append(n.Notes, "it boots the ISO, since "+strings.Join(against, "; "))
	}
}

// entryFree is the first Talos that uses the entry that was booted if the EFI variables name an entry that does not
// exist (siderolabs/talos#12300, #12312).
const entryFree = "v1.11.6"

// needsEntry says whether the boot loader's default entry has to exist. Pre-releases of v1.12.0 came before the
// correction.
func needsEntry(talos string) bool {
	v, err := cluster.ParseVersion(talos)
	fixed, _ := cluster.ParseVersion(entryFree)
	return err != nil || v.Before(fixed) || strings.HasPrefix(talos, "v1.12.0-")
}

// againstPrepared says why the node can't run from a disk that is made from the disk image. Such an image has all
// that an installer does: its boot loader enrolls keys for Secure Boot, and its first boot makes volumes and
// encrypts them.
func againstPrepared(n NodePlan, system cluster.Disk) (against []string) {
	b := n.Wanted.Build
	if n.Found.VM.Config["bios"] != "ovmf" {
		against = append(against, "its VM boots by BIOS, and what GRUB in a disk image boots can't be compared with the lock (bios: ovmf boots the image that was)")
	}
	switch {
	case b.DiskName == "":
		against = append(against, fmt.Sprintf("no disk image of schematic %s is made: %s", n.Wanted.Schematic, b.NoDisk))
	case len(n.Wanted.DiskStorages) == 0:
		against = append(against, fmt.Sprintf("%s sees no storage of images.disk.storage that takes disk images (content import, Proxmox 8.3)", n.Found.VM.Host))
	}
	// The variables outlive the disk, and no installer writes others: see rolling.NoteEntry.
	entry := strings.ToLower("talos-" + b.TalosVersion + ".efi")
	if m := n.Found.Machine; needsEntry(b.TalosVersion) && n.Found.VM.Config["efidisk0"] != "" && (m == nil || m.NextBoot != entry) {
		against = append(against, fmt.Sprintf("its EFI variables don't name the boot entry %s that the disk image has, and Talos before %s then neither reboots nor is upgraded", entry, entryFree))
	}
	if bytes := max(int64(system.SizeBytes()), int64(max(n.Wanted.SystemGiB, 0))<<30); b.DiskBytes > bytes {
		against = append(against, fmt.Sprintf("the disk in %s has %s, and its system disk %s", b.DiskName, cluster.Size(b.DiskBytes), cluster.Size(bytes)))
	}
	return against
}
