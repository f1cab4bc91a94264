package cluster

import (
	"fmt"
	"strings"
)

// IsBeingInstalled says whether the machine may yet leave its boot ISO by itself: one
// whose installation broke off gets as far as "running".
func (m Machine) IsBeingInstalled() bool { return m.FromISO && m.Stage != "running" }

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
