package cluster

import (
	"fmt"
	"strings"
)

const (
	kubernetesVersion = "kubernetes-version"
	superseded        = "superseded-disk"
)

// isBeingInstalled says whether the machine may yet leave its boot ISO by itself: one
// whose installation broke off gets as far as "running".
func (m Machine) isBeingInstalled() bool { return m.FromISO && m.Stage != "running" }

// DiffInstalled compares what the machine would become without anybody's doing:
// at its next boot, or when it is installed anew from its own configuration.
func DiffInstalled(b Build, m Machine) []Reason {
	var out []Reason
	if m.FromISO {
		// Its installation broke off, and nothing else says so: the phase is "installed".
		out = append(out, Reason{Code: "boot-iso", Text: "it runs from its boot ISO, not from its system disk: its installation broke off, and it does not boot again by itself", Old: "ISO"})
	}
	if m.PendingReboot() {
		out = append(out, Reason{
			"pending-reboot", fmt.Sprintf("%s is installed, but %s is running: the next reboot starts the other system", m.NextBoot, m.BootEntry),
			m.BootEntry, m.NextBoot,
		})
	}
	if m.InstallImage != "" && !b.installs(m.InstallImage) {
		want := b.Installer
		if want == "" {
			want = b.SchematicID + ":" + b.TalosVersion
		}
		out = append(out, Reason{"install-image", fmt.Sprintf("install image of its configuration: %s → %s", m.InstallImage, want), m.InstallImage, want})
	}
	return out
}

// installs says whether an image reference stands for the build: by digest, or
// by a tag of the factory, whose repository is named after the schematic. A
// digest can't be told while the build's own is not known.
func (b Build) installs(image string) bool {
	_, digest, pinned := strings.Cut(image, "@")
	_, want, built := strings.Cut(b.Installer, "@")
	if pinned {
		return !built || digest == want
	}
	name := image[strings.LastIndex(image, "/")+1:]
	return name == b.SchematicID+":"+b.TalosVersion
}

// diffNode compares what Kubernetes says of the node.
func diffNode(w Wanted, f Found) []Reason {
	var out []Reason
	if w.Kubernetes != "" && f.Node.KubeletVersion != "" && f.Node.KubeletVersion != w.Kubernetes {
		out = append(out, Reason{
			kubernetesVersion, fmt.Sprintf("Kubernetes %s → %s", f.Node.KubeletVersion, w.Kubernetes), f.Node.KubeletVersion, w.Kubernetes,
		})
	}
	if mark := f.Node.Mark; mark != nil && !f.Open() {
		out = append(out, Reason{
			Code: "cordoned",
			Text: fmt.Sprintf("run %s cordoned it to roll it %s and did not finish", mark.Run, mark.Strategy), Old: mark.Run,
		})
	}
	return out
}

// diffVM looks at how the VM boots and at what a finished roll leaves behind in
// it: nothing but its mark.
func diffVM(w Wanted, f Found) (out []Reason, notes []string) {
	disks, err := f.VM.Disks()
	if err != nil {
		return []Reason{{Code: "vm-config", Text: err.Error()}}, nil
	}
	for _, d := range disks {
		if name, iso := BootISO(d); iso {
			out = append(out, Reason{Code: "boot-media", Text: fmt.Sprintf("boot ISO %s is still in %s", name, d.Key), Old: name})
		}
	}
	if f.Machine == nil {
		return out, nil
	}
	system, err := ProveSystemDisk(*f.VM, *f.Machine, w.SystemDisk)
	if err != nil {
		return out, []string{err.Error()} // what can't be told is no drift; a roll refuses for it
	}
	if first := firstBoot(f.VM.Config["boot"]); first != "" && first != system.Key {
		out = append(out, Reason{"boot-order", fmt.Sprintf("it boots from %s before its system disk %s", first, system.Key), first, system.Key})
	}
	have, want := system.SizeBytes(), uint64(max(w.SystemGiB, 0))<<30
	switch {
	case want == 0 || have == 0 || have == want:
	case have > want:
		notes = append(notes, fmt.Sprintf("system disk %s has %s, more than the %dG wanted: recast never makes one smaller", system.Key, system.Option("size"), w.SystemGiB))
	default:
		size := fmt.Sprintf("%dG", w.SystemGiB)
		out = append(out, Reason{
			"system-disk-size", fmt.Sprintf("system disk %s: %s → %s", system.Key, system.Option("size"), size), system.Option("size"), size,
		})
	}
	return out, notes
}

// firstBoot is the first device of a VM's boot order; "" where it has none of
// the form "order=scsi0;ide2".
func firstBoot(boot string) string {
	list, ok := strings.CutPrefix(boot, "order=")
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(list, ";")
	return first
}

// diffKept are old system disks that a roll which has ended was about to free.
func diffKept(p Parking) []Reason {
	var out []Reason
	for _, k := range p.Record.Kept {
		if k.Going && !p.Record.Open {
			out = append(out, Reason{
				Code: superseded, Text: fmt.Sprintf("its last roll was about to free %s of %s, a superseded system disk, and did not finish", k.Key, p.VM), Old: k.Run,
			})
		}
	}
	return out
}
