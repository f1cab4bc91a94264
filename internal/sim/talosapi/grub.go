package talosapi

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// grubCmdline is the kernel command line that an installer writes for GRUB, on a machine without UEFI, if it has the
// machine configuration: Talos' own arguments and machine.install.extraKernelArgs, without those of the
// schematic. With grubUseUKICmdline it is "", the boot image's own (grub/install.go, generateGrubImage).
func (b *boot) grubCmdline(img artefact.Image) string {
	cfg := b.config()
	if b.m.uefi() || cfg == nil || cfg.Machine() == nil || cfg.UnattendedInstallConfig() != nil || cfg.Machine().Install().GrubUseUKICmdline() {
		return ""
	}
	var schematic struct {
		Customization struct {
			ExtraKernelArgs []string `yaml:"extraKernelArgs"`
		}
	}
	_ = yaml.Unmarshal([]byte(img.SchematicYAML), &schematic) // none without one
	args := slices.DeleteFunc(strings.Fields(img.Cmdline), func(arg string) bool { return slices.Contains(schematic.Customization.ExtraKernelArgs, arg) })
	return strings.Join(append(args, cfg.Machine().Install().ExtraKernelArgs()...), " ")
}
