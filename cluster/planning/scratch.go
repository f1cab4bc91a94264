package planning

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Scratch is a scratch VM: made to try out what nodes will boot, and disposable afterwards.
type Scratch struct {
	VM   cluster.VM
	Run  string // the run that made the VM
	UUID string // the UUID in its description
}

const scratchPrefix = "recast-rehearse-"

func ScratchName(id cluster.VMID) string { return scratchPrefix + strconv.Itoa(int(id)) }

// ScratchMark returns the last line of the description of a scratch VM whose SMBIOS has that UUID.
func ScratchMark(run, name, uuid string) string {
	return fmt.Sprintf("%s%s rehearse cluster=%s uuid=%s", cluster.RunMark, run, name, uuid)
}

// ScratchMarkOf returns the last line of the description of a scratch VM whose SMBIOS has a UUID from Proxmox:
// setting a UUID needs VM.Config.HWType. uuid is that of the VM's disks.
func ScratchMarkOf(run, name, uuid string, id cluster.VMID) string {
	return fmt.Sprintf("%s vmid=%d", ScratchMark(run, name, uuid), id)
}

// ScratchSerial names the disk of a scratch VM that boots a disk, within the 20 characters that every disk bus of
// QEMU passes on. A disk without that serial was not made with the VM.
func ScratchSerial(uuid string) string {
	return "recast-" + uuid[strings.LastIndex(uuid, "-")+1:]
}

// ScratchVMs returns a cluster's scratch VMs among all VMs. A copy, whose name, UUID or number is not that in its
// description, is not a scratch VM.
func ScratchVMs(vms []cluster.VM, cluster string) []Scratch {
	var out []Scratch
	for _, vm := range vms {
		run := vm.MadeBy()
		if run == "" || vm.Name != ScratchName(vm.ID) {
			continue
		}
		for line := range strings.Lines(vm.Config["description"]) {
			line = strings.TrimSpace(line)
			_, rest, _ := strings.Cut(line, " uuid=")
			uuid, _, _ := strings.Cut(rest, " ")
			if uuid != "" && (line == ScratchMark(run, cluster, vm.UUID()) || line == ScratchMarkOf(run, cluster, uuid, vm.ID)) {
				out = append(out, Scratch{VM: vm, Run: run, UUID: uuid})
				break
			}
		}
	}
	return out
}

// Strange lists how a scratch VM differs from what recast makes.
func (s Scratch) Strange() []string {
	var out []string
	say := func(is bool, what string) {
		if is {
			out = append(out, what)
		}
	}
	say(s.VM.Template, "it is a template")
	say(s.VM.HA, "Proxmox HA manages it")
	say(s.VM.Lock != "", "it is locked ("+s.VM.Lock+")")
	disks, err := s.VM.Disks()
	say(err != nil, "its drives can't be read")
	for _, d := range disks {
		made := d.CloudInit() || d.Key == "efidisk0" || d.Bootable() && d.Option("serial") == ScratchSerial(s.UUID)
		ours := d.CDROM && !d.CloudInit() || made && d.Owner == s.VM.ID
		say(!ours, fmt.Sprintf("%s (%s) is not a drive that it was created with", d.Key, d.Volid))
	}
	return out
}

// LeftScratch is a scratch VM that a killed run has left, as plans and reports name it.
type LeftScratch struct {
	VMID cluster.VMID `json:"vmid"`
	Name string       `json:"name"`
	Host string       `json:"host"`
	Run  string       `json:"run"` // the run that made the VM
	UUID string       `json:"uuid"`
}

func (s Scratch) Left() LeftScratch {
	return LeftScratch{VMID: s.VM.ID, Name: s.VM.Name, Host: s.VM.Host, Run: s.Run, UUID: s.UUID}
}

func (l LeftScratch) String() string {
	return fmt.Sprintf("%s, which run %s made to try an image out", cluster.VM{ID: l.VMID, Name: l.Name, Host: l.Host}, l.Run)
}
