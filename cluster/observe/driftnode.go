package observe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// diffKept lists old system disks that an ended roll was about to free.
func diffKept(p parking.Parking) []cluster.Reason {
	var out []cluster.Reason
	for _, k := range p.Record.Kept {
		if k.Going && !p.Record.Open {
			text := fmt.Sprintf("its last roll was about to free %s of %s, a superseded system disk, and did not finish", k.Key, p.VM)
			if k.Removed {
				text = fmt.Sprintf("the run that removed it was about to free %s of %s, a %s, and did not finish", k.Key, p.VM, k.What())
			}
			out = append(out, cluster.Reason{Code: superseded, Text: text, Old: k.Run})
		}
	}
	return out
}

// diffNode compares what Kubernetes says about the node.
func diffNode(w cluster.Wanted, f Found) []cluster.Reason {
	var out []cluster.Reason
	if w.Kubernetes != "" && f.Node.KubeletVersion != "" && f.Node.KubeletVersion != w.Kubernetes {
		out = append(out, cluster.Reason{
			Code: kubernetesVersion, Text: fmt.Sprintf("Kubernetes %s → %s", f.Node.KubeletVersion, w.Kubernetes), Old: f.Node.KubeletVersion, New: w.Kubernetes,
		})
	}
	if mark := f.Node.Mark; mark != nil && !f.Open() {
		out = append(out, cluster.Reason{
			Code: "cordoned",
			Text: fmt.Sprintf("run %s cordoned it to roll it %s and did not finish", mark.Run, mark.Strategy), Old: mark.Run,
		})
	}
	return out
}

// diffVM looks at how the VM boots and at what a finished roll should not leave in it.
func diffVM(w cluster.Wanted, f Found) (out []cluster.Reason, notes []string) {
	disks, err := f.VM.Disks()
	if err != nil {
		return []cluster.Reason{{Code: "vm-config", Text: err.Error()}}, nil
	}
	for _, d := range disks {
		if name, iso := cluster.BootISO(d); iso {
			out = append(out, cluster.Reason{Code: "boot-media", Text: fmt.Sprintf("boot ISO %s is still in %s", name, d.Key), Old: name})
		}
	}
	if f.Machine == nil {
		return out, nil
	}
	system, err := cluster.ProveSystemDisk(*f.VM, *f.Machine, w.SystemDisk)
	if err != nil {
		return out, []string{err.Error()} // an unproven disk is no drift; a roll refuses the node
	}
	if first, _ := BootsBefore(*f.VM, system.Key); first != "" {
		out = append(out, cluster.Reason{Code: bootOrder, Text: fmt.Sprintf("it boots from %s before its system disk %s", first, system.Key), Old: first, New: system.Key})
	}
	have, want := system.SizeBytes(), uint64(max(w.SystemGiB, 0))<<30
	switch {
	case want == 0 || have == 0 || have == want:
	case have > want:
		notes = append(notes, fmt.Sprintf("system disk %s has %s, more than the %dG wanted: recast never makes one smaller", system.Key, system.Option("size"), w.SystemGiB))
	default:
		size := fmt.Sprintf("%dG", w.SystemGiB)
		out = append(out, cluster.Reason{
			Code: "system-disk-size", Text: fmt.Sprintf("system disk %s: %s → %s", system.Key, system.Option("size"), size), Old: system.Option("size"), New: size,
		})
	}
	return out, notes
}

// diffShape lists how the VM differs from what recast.yaml says about it.
func diffShape(f Found) []cluster.Reason {
	var out []cluster.Reason
	for _, d := range f.Shape {
		out = append(out, cluster.Reason{Code: shapeDiffers, Text: "VM " + d.String(), Old: d.Found, New: d.Wanted})
	}
	return out
}

// BootsBefore is the device that a VM boots from before its system disk, "" if there is none, and the
// command that changes that.
func BootsBefore(vm cluster.VM, system string) (first, command string) {
	first = firstBoot(vm.Config["boot"])
	if first == "" || first == system {
		return "", ""
	}
	order := append([]string{system}, slices.DeleteFunc(cluster.BootDevices(vm.Config["boot"]), func(key string) bool { return key == system })...)
	return first, fmt.Sprintf("qm set %d --boot 'order=%s'", vm.ID, strings.Join(order, ";"))
}

// firstBoot is the first device of a VM's boot order; "" if that is not of the form
// "order=scsi0;ide2".
func firstBoot(boot string) string {
	if devices := cluster.BootDevices(boot); len(devices) > 0 {
		return devices[0]
	}
	return ""
}

const (
	kubernetesVersion = "kubernetes-version"
	superseded        = "superseded-disk"
	bootOrder         = "boot-order"
	// shapeDiffers is the code of the reason that a VM is not as recast.yaml wants it.
	shapeDiffers = "vm"
)
