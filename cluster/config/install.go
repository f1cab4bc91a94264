package config

import "strings"

// InstallArgs are the kernel arguments of machine.install.extraKernelArgs; byImage says that GRUB is to
// take those of the boot image instead (grubUseUKICmdline). UnattendedInstallConfig has neither: an
// installer without that section takes the image's. An entry with several arguments is several: Talos joins all
// entries before it reads them (siderolabs/go-procfs, Cmdline.AppendAll).
func (d Documents) InstallArgs() (args []string, byImage bool) {
	for _, doc := range d.list {
		if doc.id != MainDocument {
			continue
		}
		if list := doc.root.at([]string{"machine", "install", "extraKernelArgs"}); list != nil {
			for _, arg := range list.items {
				args = append(args, strings.Fields(arg.shown)...)
			}
		}
		if uki := doc.root.at([]string{"machine", "install", "grubUseUKICmdline"}); uki != nil {
			byImage = uki.shown == "true"
		}
	}
	return args, byImage
}
