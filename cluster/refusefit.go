package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// misfit is why the wanted image can't run on the machine, or would not be found
// again there, whatever the strategy. What the machine does not say is not held
// against it, but for Secure Boot that the image wants.
func (c Candidate) misfit() []string {
	return slices.Concat(c.Found.Unsupported, c.otherArch(), c.readdressed(), c.unverifiable())
}

// otherArch: of an installer for several architectures only the locked one was verified.
func (c Candidate) otherArch() []string {
	const text = "the images are for %s, and %s: set images.arch to %s, then recast lock"
	var out []string
	if arch := c.Machine.Arch; arch != "" && arch != c.Build.Arch {
		out = append(out, fmt.Sprintf(text, c.Build.Arch, "the machine is "+arch, arch))
	}
	// Without the option a VM is what its host is (get_vm_arch in PVE/QemuServer.pm).
	if arch := c.VM.arch(); arch != "" && arch != c.Build.Arch && arch != c.Machine.Arch {
		out = append(out, fmt.Sprintf(text, c.Build.Arch, "the VM is arch="+c.VM.Config["arch"], arch))
	}
	return out
}

// arch is the architecture that a VM's configuration names, as images name it.
func (vm VM) arch() string {
	switch arch := vm.Config["arch"]; arch {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	default:
		return arch
	}
}

// readdressed is a node that would not come back at its address: nocloud takes it
// from Proxmox' cloud-init drive, the other platforms do not look there
// (internal/app/machined/pkg/runtime/v1alpha1/platform of Talos).
func (c Candidate) readdressed() []string {
	if !c.replatformed() {
		return nil
	}
	fixed := c.VM.fixedAddress()
	if fixed == "" || c.Build.Platform == "nocloud" && strings.Contains(fixed, "="+c.Found.Addr.String()+"/") {
		return nil // the same address on either
	}
	return []string{fmt.Sprintf("the VM's cloud-init drive gives a fixed address (%s), which platforms %s and %s do not both read: keep platform %s (images.platform), or have DHCP give the node its address and remove that",
		fixed, c.Machine.Platform, c.Build.Platform, c.Machine.Platform)}
}

func (c Candidate) replatformed() bool {
	return c.Machine.Platform != "" && c.Machine.Platform != c.Build.Platform
}

// fixedAddress names what of a VM's cloud-init settings gives it an address that
// DHCP does not; "" if nothing does. They have no effect without a drive.
func (vm VM) fixedAddress() string {
	disks, _ := vm.Disks() // what can't be read is no cloud-init drive
	if !slices.ContainsFunc(disks, Disk.CloudInit) {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		value := vm.Config[key]
		for option := range strings.SplitSeq(value, ",") {
			name, of, _ := strings.Cut(option, "=")
			switch {
			case strings.HasPrefix(key, "ipconfig") && name == "ip" && of != "dhcp",
				strings.HasPrefix(key, "ipconfig") && name == "ip6" && of != "dhcp" && of != "auto",
				key == "cicustom" && name == "network":
				return key + ": " + value
			}
		}
	}
	return ""
}

// unverifiable is a firmware that would not boot the image, or not with Secure Boot.
func (c Candidate) unverifiable() []string {
	switch {
	case c.Machine.Secured() && !c.Build.SecureBoot:
		return []string{"its firmware boots only what is signed (Secure Boot), and the images are not: set images.secureBoot to true, then recast lock, or turn Secure Boot off in its firmware first"}
	case !c.securing():
		return nil
	}
	lacks := c.VM.lacksSecureBoot()
	if lacks == "" {
		return nil
	}
	return []string{fmt.Sprintf("Secure Boot needs bios=ovmf and an efidisk0 with efitype=4m and without keys of others (pre-enrolled-keys=0), but %s: change that, or set images.secureBoot to false, then recast lock", lacks)}
}

func (m Machine) Secured() bool { return m.SecureBoot != nil && *m.SecureBoot }

// securing says whether the image wants Secure Boot where it is not known to be on.
func (c Candidate) securing() bool { return c.Build.SecureBoot && !c.Machine.Secured() }

// lacksSecureBoot says why no boot ISO could enrol its keys in the VM's firmware
// (get_ovmf_files in PVE/QemuServer/OVMF.pm); "" if one could.
func (vm VM) lacksSecureBoot() string {
	efi, err := ParseDisk("efidisk0", vm.Config["efidisk0"])
	switch {
	case vm.Config["bios"] != "ovmf":
		return "the VM has SeaBIOS"
	case err != nil:
		return "the VM has no efidisk0"
	case efi.Option("efitype") != "4m":
		return "its efidisk0 has another efitype"
	case efi.Flag("pre-enrolled-keys"):
		return "its efidisk0 has pre-enrolled-keys=1"
	}
	return ""
}

// Signed says whether every build that a kept system can be of is signed for
// Secure Boot, of which its lock hash says nothing.
func (o Observation) Signed(w Wanted, kept KeptDisk) bool {
	known := false
	for _, b := range append(slices.Collect(maps.Values(o.PastBuilds)), w.Build) {
		if b.LockHash != kept.Build || b.TalosVersion != kept.Talos {
			continue
		}
		if known = b.SecureBoot; !known {
			return false
		}
	}
	return known
}

// unchangeable is what an upgrade in place leaves as it is. Without systemd-boot
// the installer puts the running platform into GRUB's configuration (upgrade in
// v1alpha1_sequencer_tasks.go of Talos), and keys are only on the boot ISO.
func (c Candidate) unchangeable() []string {
	var out []string
	if c.replatformed() && c.Machine.BootEntry == "" {
		out = append(out, fmt.Sprintf("systemd-boot did not boot it, and with GRUB in-place keeps platform %s: use recreate or reimage, or keep the platform (images.platform)", c.Machine.Platform))
	}
	if c.securing() {
		out = append(out, "Secure Boot is not on, and in-place enrols no keys: use recreate or reimage, whose boot ISO does")
	}
	return out
}

// changes is what else the image brings about, where nothing is against it.
func (c Candidate) changes() []string {
	var out []string
	if c.replatformed() {
		out = append(out, fmt.Sprintf("platform %s → %s: network settings that are in neither its machine configuration nor DHCP will be others", c.Machine.Platform, c.Build.Platform))
	}
	if c.securing() {
		out = append(out, "the boot ISO enrols its keys in the VM's firmware, which then boots signed systems only: the present one can't be put back if it is not signed")
	}
	return out
}
