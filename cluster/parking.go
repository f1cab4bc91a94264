package cluster

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Parked are the node's keys whose disks its open record has handed over.
func (p Parking) Parked() []string {
	var keys []string
	for _, d := range p.Record.Disks {
		if d.ParkKey != "" && p.VM.Config[d.ParkKey] != "" {
			keys = append(keys, d.Key)
		}
	}
	return keys
}

// NextNth counts the replacements of a node's system disk. The machines on which
// runs begin need not agree on the time, so that the IDs of runs give no order.
func NextNth(parkings []Parking) int {
	last := 0
	for _, p := range parkings {
		last = max(last, p.Record.Nth)
		for _, k := range p.Record.Kept {
			last = max(last, k.Nth)
		}
	}
	return last + 1
}

// Opened completes the record of a replacement. It maps the drives that have to
// leave the remembered VM to free keys of the parking VM (nil: one yet to be
// made): their own where that is free, else the lowest free SCSI key. The system
// disk stays parked for long, so it is kept out of the way at the other end. A
// holder's disks are only detached.
func (rec Record) Opened(mem Memory, park *Parking) (Record, error) {
	rec.Open, rec.VMID, rec.UUID, rec.VMName, rec.ControlPlane = true, mem.VM.ID, mem.VM.UUID(), mem.VM.Name, mem.ControlPlane
	taken := map[string]bool{}
	if park != nil {
		rec.Kept, rec.Sent = park.Record.Kept, park.Record.Sent
		rec.Nth = max(rec.Nth, NextNth([]Parking{*park}))
		for key := range park.VM.Config {
			taken[key] = true
		}
		for _, k := range rec.Kept { // somebody may have taken its drive away
			taken[k.Key] = true
		}
	}
	disks, err := mem.Disks()
	if err != nil {
		return Record{}, err
	}
	for _, d := range disks {
		system := d.Key == mem.SystemKey
		if rec.Strategy != Recreate && !system {
			continue // the VM stays, and its disks with it
		}
		p := ParkedDisk{Key: d.Key, Volid: d.Volid, Options: OptionString(d), System: system}
		switch {
		case d.Owner == 0, system && d.Owner != mem.VM.ID:
			return Record{}, fault.ParkedHalf.Refusedf("%s of %s is %s, which does not carry that VM's number: it can't be handed over", d.Key, mem.VM, d.Volid)
		case d.Owner != mem.VM.ID:
			p.Holder = d.Owner
		default:
			if p.ParkKey, err = parkingKey(d.Key, system, taken); err != nil {
				return Record{}, fmt.Errorf("parking VM of %s: %w", rec.Node, err)
			}
			taken[p.ParkKey] = true
		}
		rec.Disks = append(rec.Disks, p)
	}
	rec.Config = mem.ConfigSum
	if rec.Stage = firstStage(rec.Strategy); rec.Stage != "" {
		// Where none is free now, one is by the time that disks have gone back.
		rec.SpareKey, _ = parkingKey(mem.SystemKey, true, taken)
	}
	rec.Memory, err = mem.Pack()
	return rec, err
}

// scsiKeys is how many SCSI drives a Proxmox VM can have.
const scsiKeys = 31

func parkingKey(key string, system bool, taken map[string]bool) (string, error) {
	if !system && !taken[key] {
		return key, nil
	}
	for i := range scsiKeys {
		if system {
			i = scsiKeys - 1 - i
		}
		if k := "scsi" + strconv.Itoa(i); !taken[k] {
			return k, nil
		}
	}
	return "", fault.WithHint(fault.ParkedHalf.Refusedf("no drive key is free for %s", key), "free old system disks that are still parked there")
}

func OptionString(d Disk) string {
	d.Volid = ""
	if v := d.Value(); v != "" {
		return v[1:]
	}
	return ""
}

// ParkedOptions are the drive's options while it is parked: a backup of the
// parking VM must not copy, or lock, what is only passing through. EFI
// variables, TPM state and detached volumes have no such option.
func ParkedOptions(d ParkedDisk) []string {
	if !(Disk{Key: d.Key}).Bootable() {
		return SplitOptions(d.Options)
	}
	return Disk{Options: SplitOptions(d.Options)}.With("backup", "0")
}

func SplitOptions(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// AttachedVolume is a volume that Kubernetes counts as attached to a node.
type AttachedVolume struct {
	Attachment string // the VolumeAttachment
	Volume     string // the PersistentVolume; "" for one that only its pod names
	Claim      string // "namespace/name"; "" if it has none
	Driver     string // that attaches and detaches it: "csi.proxmox.sinextra.dev"
	Trouble    string // what that reports; "" for nothing
	Handle     string // the driver's own name for it: "cluster-1/pve1/fast/vm-9999-pvc-0b5f"; "" if there is none
	User       string // the pod that uses it and that a drain leaves on the node: "DaemonSet pod csi/agent-x2b"; "" for none
}

// String names the volume for people.
func (v AttachedVolume) String() string {
	text, about := "VolumeAttachment "+v.Attachment, "driver "+v.Driver
	if v.Volume != "" {
		text = "PersistentVolume " + v.Volume
	}
	if v.Claim != "" {
		about = "claim " + v.Claim + ", " + about
	}
	text += " (" + about + ")"
	if v.Trouble != "" {
		text += " " + v.Trouble
	}
	return text
}

// IsOf says whether a drive of a VM is the volume. Drivers of Proxmox end their
// handles with the volume's name there.
func (v AttachedVolume) IsOf(d Disk) bool {
	name := func(s string) string { return strings.TrimSuffix(strings.TrimSuffix(path.Base(s), ".qcow2"), ".raw") }
	_, volume, _ := strings.Cut(d.Volid, ":")
	return v.Handle != "" && name(v.Handle) == name(volume)
}

// OtherMedia are the VM's media that are not there for the blank boot, by drive: any ISO
// may hold cloud-init data, which would configure the machine before recast does (Talos,
// platform/nocloud/metadata.go, configFromCD). What is in the drive that the boot ISO
// takes is among them no more than boot ISOs are.
func (vm VM) OtherMedia() (map[string]Disk, error) {
	disks, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	cd, out := CDKey(vm.Config, disks), map[string]Disk{}
	for _, d := range disks {
		if _, ours := BootISO(d); d.CDROM && !d.CloudInit() && !ours && d.Key != cd && strings.Contains(d.Volid, ":") {
			out[d.Key] = WithoutOption(d, "size")
		}
	}
	return out, nil
}
