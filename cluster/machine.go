package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster/reach"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// StandsIn begins what Standing says of a machine in another stage.
const StandsIn = "stage "

// Standing is how far a machine is that does not run, or is not ready.
func (m Machine) Standing() string {
	if m.Ready { // it always is while it neither boots nor runs (machine_status.go in machined)
		return StandsIn + m.Stage
	}
	return fmt.Sprintf("%s%s, not ready: %s", StandsIn, m.Stage, words.OrNone(strings.Join(m.Unmet, ", ")))
}

// CheckBooted compares what a machine has booted from the ISO of a build with that build.
func (b Build) CheckBooted(m Machine) (problems []error) {
	if m.Schematic.LockHash() != b.LockHash || m.Schematic.ID != b.SchematicID || m.TalosVersion != b.TalosVersion {
		problems = append(problems, fault.WithHint(
			fault.NoBoot.Refusedf("it booted %s with schematic %s (lock %s), wanted is %s with %s (lock %s)", m.TalosVersion,
				words.OrNone(words.Short(m.Schematic.ID)), words.OrNone(words.Short(m.Schematic.LockHash())), b.TalosVersion, words.Short(b.SchematicID), words.Short(b.LockHash)),
			"the bytes of the boot ISO %s are not what its name says: delete it from the Proxmox storage, then recast publish and recast roll again", b.ISOName))
	}
	for _, r := range DiffTarget(b, m) {
		problems = append(problems, fault.NoBoot.Refusedf("what it booted is not what is wanted: %s", r.Text))
	}
	return problems
}

// InstallsApart says whether the machine's Talos has an API that installs
// without a reboot (LifecycleService, since 1.13).
func (m Machine) InstallsApart() bool {
	major, minor, _ := strings.Cut(strings.TrimPrefix(m.TalosVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	number, err := strconv.Atoi(minor)
	return major == "1" && err == nil && number >= 13
}

// Installable says whether the configuration would choose a disk to install on.
func (m Machine) Installable() bool { return m.FromISO || m.SystemDisk == "" }

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

// BlankAddress says how the node's machine will be reached at addr when it boots
// from the ISO of a build with nothing on its system disk: see reach.Find.
func BlankAddress(addr netip.Addr, vm VM, m Machine, b Build) (set *reach.Setting, against reach.Obstacle) {
	blank := reach.Blank{ID: int(vm.ID), Config: vm.Config, Platform: b.Platform, KernelArgs: b.KernelArgs, NoNetwork: vm.WithoutCustom("network")}
	disks, _ := vm.Disks() // what can't be read is refused elsewhere
	for _, d := range disks {
		switch {
		case d.CloudInit():
			blank.CloudInit = d.Key
		case blank.Storage == "" && !d.CDROM:
			blank.Storage = d.Storage()
		}
	}
	return reach.Find(addr, m.Addresses, blank)
}
