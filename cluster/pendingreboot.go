package cluster

import (
	"cmp"
	"context"
	"fmt"
	"strings"
)

// pendingReboot says whether another system is installed than the one that runs. The
// entry that a machine says it has booted may be that of the boot before: after a
// kexec Talos knows the new one only where the kernel could write an EFI variable
// (controllers/runtime/booted_entry.go). What runs, the version tells as well.
func (m Machine) pendingReboot() bool {
	if m.NextBoot == "" || m.BootEntry == "" || m.NextBoot == m.BootEntry {
		return false
	}
	runs := strings.ToLower(m.TalosVersion)
	return entryVersion(m.BootEntry) == runs || entryVersion(m.NextBoot) != runs
}

// entryVersion is the Talos version in the name of a boot entry, "talos-v1.14.1~2.efi".
func entryVersion(entry string) string {
	version, _ := strings.CutPrefix(strings.TrimSuffix(entry, ".efi"), "talos-")
	version, _, _ = strings.Cut(version, "~")
	return version
}

// Booted is the boot entry that a machine runs in one of its boots.
type Booted struct {
	BootID string `json:"boot"`
	Entry  string `json:"entry"`
}

// crossCheck sees that a machine runs what this upgrade has installed, although it
// says that it has booted the entry of before: it has rebooted since, and its
// schematic is the wanted one. Names of entries with the same version do not tell, and
// until its next boot nothing else does: its Node remembers it.
func (n *nodeRoll) crossCheck(ctx context.Context, m Machine, k KubeNode) error {
	mark := k.Mark
	if m = k.corrected(m); !m.pendingReboot() || mark == nil || !mark.Installed || mark.Build != n.want.Build.ID || mark.BootID == m.BootID {
		return nil
	}
	n.say("wait-healthy", fmt.Sprintf("it says that it booted %s, but it runs the system of %s: its schematic and extensions are the wanted ones", m.BootEntry, m.NextBoot))
	return n.Kube.SetBooted(ctx, n.plan.Node, Booted{m.BootID, m.NextBoot})
}

// corrected is the machine of the Node, with the entry that it runs in truth.
func (k KubeNode) corrected(m Machine) Machine {
	if k.Booted.Entry != "" && k.Booted.BootID == cmp.Or(m.BootID, k.BootID) { // System has not read it
		m.BootEntry = k.Booted.Entry
	}
	return m
}
