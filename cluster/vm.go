package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// VMIDRange is the range of numbers that a recast.yaml gives recast: proxmox.vmids.
type VMIDRange struct{ First, Last VMID }

// String writes the range as recast.yaml does, "9000-9099"; "" if it is empty.
func (r VMIDRange) String() string {
	if r == (VMIDRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Contains says whether a number is in the range.
func (r VMIDRange) Contains(id VMID) bool { return r.First <= id && id <= r.Last }

// WithoutCustom returns the command that removes parts from cicustom and keeps the others.
func (vm VM) WithoutCustom(parts ...string) string {
	rest := slices.DeleteFunc(strings.Split(vm.Config["cicustom"], ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return slices.Contains(parts, name)
	})
	if len(rest) == 0 {
		return fmt.Sprintf("qm set %d --delete cicustom", vm.ID)
	}
	return fmt.Sprintf("qm set %d --cicustom %s", vm.ID, words.Quote(strings.Join(rest, ",")))
}

// ArgName is the name of a kernel argument, without its value.
func ArgName(arg string) string { name, _, _ := strings.Cut(arg, "="); return name }

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

// FixedAddress returns the cloud-init setting that gives a VM an address without DHCP; "" if none
// does. Without a cloud-init drive, these settings have no effect.
func (vm VM) FixedAddress() string {
	disks, _ := vm.Disks() // an unreadable drive is no cloud-init drive
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

// Secured says whether the firmware is known to verify what it boots.
func (m RunningSystem) Secured() bool { return m.SecureBoot != nil && *m.SecureBoot }

// LacksSecureBoot says why a boot ISO can't enrol its keys in the VM's firmware (get_ovmf_files in
// PVE/QemuServer/OVMF.pm); "" if it can.
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

const (
	RunMark = "recast: run="
	// MaxDescription is Proxmox's limit for a VM's description, in characters.
	MaxDescription = 8192
)

// splitMark returns a VM's description without the line with which a run of recast marked it, and what
// that says: "run build=ID".
func splitMark(description string) (own, mark string) {
	var kept []string
	for line := range strings.SplitSeq(strings.TrimRight(description, "\n"), "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), RunMark); ok {
			mark = rest
			continue
		}
		kept = append(kept, line)
	}
	return strings.TrimRight(strings.Join(kept, "\n"), "\n"), mark
}

// OwnDescription is the VM's description without recast's mark.
func (vm VM) OwnDescription() string {
	own, _ := splitMark(vm.Config["description"])
	return own
}

// Redescribed is another description of the VM, with the mark that it has.
func (vm VM) Redescribed(own string) string {
	if _, mark := splitMark(vm.Config["description"]); mark != "" {
		return strings.TrimLeft(own+"\n"+RunMark+mark, "\n")
	}
	return own
}

// MadeBy returns the run that created the VM, "" if no run of recast did.
func (vm VM) MadeBy() string {
	_, mark := splitMark(vm.Config["description"])
	run, _, _ := strings.Cut(mark, " ")
	return run
}

// MadeFrom returns the ID of the build that a run of recast made the VM from,
// "" if none did.
func (vm VM) MadeFrom() string {
	_, mark := splitMark(vm.Config["description"])
	_, build, _ := strings.Cut(mark, " build=")
	build, _, _ = strings.Cut(build, " ")
	return build
}

// Forming says whether the VM is being created and has only its lock yet: Proxmox writes the rest
// of the configuration at the end of the task (qemu-server, API2/Qemu.pm, create_and_lock_config).
func Forming(vm VM) bool { return vm.Lock == "create" && vm.Config["description"] == "" }

// HalfMade is the error for a VM that stays Forming. Only root can remove its lock.
func HalfMade(vm VM) error {
	err := fault.ClaimHeld.Refusedf("%s is locked by its creation (create), and nothing else is known of it", vm)
	if !vm.Bare() {
		return fault.WithHint(err, "%s. qm config %d shows what it has: it is no VM that recast may delete, so another one has that number; see whose it is", vm.tasks(), vm.ID)
	}
	return fault.WithHint(err, "%s. Where none does any more, it was killed: remove what it left there, as root, with "+
		"qm unlock %d && qm destroy %[2]d, then run the same command again", vm.tasks(), vm.ID)
}

// tasks says how to see which tasks of the VM run.
func (vm VM) tasks() string {
	return fmt.Sprintf("pvesh get /nodes/%s/tasks --source active --vmid %d lists its tasks that still run", vm.Host, vm.ID)
}

// Unlock says what to do about a lock that nothing takes away.
func (vm VM) Unlock() string {
	if vm.Lock == "suspended" || vm.Lock == "suspending" {
		return fmt.Sprintf("it is suspended: qm resume %d has it go on; qm unlock %[1]d throws the saved state away", vm.ID)
	}
	return fmt.Sprintf("%s; where none does, its task has died, and qm unlock %d on %s takes the lock away", vm.tasks(), vm.ID, vm.Host)
}

// Bare says whether the VM does not run and has nothing that a delete would free: no drive, snapshot or saved
// state.
func (vm VM) Bare() bool {
	for key := range vm.Config {
		if IsDiskKey(key) || key == "vmstate" || key == "parent" {
			return false
		}
	}
	return !vm.Running && !vm.Template
}

// Locked says whether a task that ends by itself holds the VM.
func Locked(vm VM) bool { return slices.Contains(passing, vm.Lock) }

// passing are the locks of a VM's configuration that end with the task that set them (qemu-server,
// PVE/QemuServer.pm, $confdesc: lock).
var passing = []string{"backup", "clone", "migrate", "rollback", "snapshot", "snapshot-delete"}

// SwitchedOff adds to the error of reading a machine that its VM is off, which was not intended.
func SwitchedOff(vm VMState, err error) error {
	return fault.WithHint(fmt.Errorf("%s is switched off: %w", vm, err), "start %s in Proxmox", vm)
}

// UsersOf lists the drives of a VM that name a volume.
func UsersOf(volid string, vm VM) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(vm.Config)), func(key string) bool {
		d, err := ParseDisk(key, vm.Config[key])
		return err != nil || d.Volid != volid
	})
}

// DrivesOf lists the disks of a VM.
func DrivesOf(vm VM) string {
	disks, err := vm.Disks()
	if err != nil {
		return "drives that can't be read"
	}
	var have []string
	for _, d := range disks {
		if !d.CDROM {
			have = append(have, d.Key+" ("+d.Volid+")")
		}
	}
	if len(have) == 0 {
		return "no disk"
	}
	return strings.Join(have, ", ")
}

// ParkingName is the name of a node's parking VM.
func ParkingName(node string) string { return "recast-parking-" + node }

// Create returns the command that recreates the job.
func (j ReplicationJob) Create() string {
	command := fmt.Sprintf("pvesr create-local-job %s %s", j.ID, words.OrNone(j.Target))
	if j.Schedule != "" {
		command += " --schedule " + words.Quote(j.Schedule)
	}
	if j.Rate != "" {
		command += " --rate " + j.Rate
	}
	if j.Disabled {
		command += " --disable 1"
	}
	return command
}
