package cluster

import (
	"maps"
	"slices"
	"strings"
)

// Arch is the architecture that a VM's configuration names, as images name it.
func (vm VM) Arch() string {
	switch arch := vm.Config["arch"]; arch {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	default:
		return arch
	}
}

// FixedAddress names what of a VM's cloud-init settings gives it an address that
// DHCP does not; "" if nothing does. They have no effect without a drive.
func (vm VM) FixedAddress() string {
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

func (m Machine) Secured() bool { return m.SecureBoot != nil && *m.SecureBoot }

// LacksSecureBoot says why no boot ISO could enrol its keys in the VM's firmware
// (get_ovmf_files in PVE/QemuServer/OVMF.pm); "" if one could.
func (vm VM) LacksSecureBoot() string {
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
