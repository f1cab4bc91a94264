package cluster

import (
	"context"
	"fmt"
	"strings"
)

// otherMedia are the VM's media that are not there for the blank boot, by drive: any ISO
// may hold cloud-init data, which would configure the machine before recast does (Talos,
// platform/nocloud/metadata.go, configFromCD). What is in the drive that the boot ISO
// takes is among them no more than boot ISOs are.
func (vm VM) otherMedia() (map[string]Disk, error) {
	disks, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	cd, out := cdKey(vm.Config, disks), map[string]Disk{}
	for _, d := range disks {
		if _, ours := bootISO(d); d.CDROM && !d.CloudInit() && !ours && d.Key != cd && strings.Contains(d.Volid, ":") {
			out[d.Key] = withoutOption(d, "size")
		}
	}
	return out, nil
}

// takeOut has those media taken out by a change of the VM.
func (r *Replace) takeOut(set map[string]string) error {
	media, err := r.VM.otherMedia()
	for key := range media {
		set[key] = "none,media=cdrom"
	}
	return err
}

// mediaToPutBack are those that are not in their drives. One that is gone by now stays
// out: Proxmox puts none in that it has not.
func (r *Replace) mediaToPutBack(ctx context.Context, vm VM) (map[string]string, error) {
	media, err := r.VM.otherMedia()
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for key, was := range media {
		if is, err := ParseDisk(key, vm.Config[key]); err != nil || is.Volid != "none" {
			continue // it is there, or somebody else has put something in
		}
		there, err := r.Proxmox.HasVolume(ctx, vm.Host, was.Volid)
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", was.Volid, err)
		}
		if there {
			set[key] = was.Value()
		}
	}
	return set, nil
}
