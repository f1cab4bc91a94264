package cluster

import (
	"cmp"
	"strings"
)

// PendingReboot says whether another system is installed than the one that runs. The
// entry that a machine says it has booted may be that of the boot before: after a
// kexec Talos knows the new one only where the kernel could write an EFI variable
// (controllers/runtime/booted_entry.go). What runs, the version tells as well.
func (m Machine) PendingReboot() bool {
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

// Corrected is the machine of the Node, with the entry that it runs in truth.
func (k KubeNode) Corrected(m Machine) Machine {
	if k.Booted.Entry != "" && k.Booted.BootID == cmp.Or(m.BootID, k.BootID) { // System has not read it
		m.BootEntry = k.Booted.Entry
	}
	return m
}
