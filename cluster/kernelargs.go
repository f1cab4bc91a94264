package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/words"
)

// InstallArgs are the kernel arguments that the machine's configuration has for GRUB
// (machine.install.extraKernelArgs), and those of them that the running kernel has. byImage says that the
// configuration has GRUB take those of the image instead (grubUseUKICmdline).
func (m Machine) InstallArgs() (named, running []string, byImage bool) {
	if !bytes.Contains(m.Configs.Active, []byte("extraKernelArgs")) {
		return nil, nil, false // each plan asks it of each node: parsing takes longer
	}
	docs, err := config.Parse(m.Configs.Active)
	if err != nil {
		return nil, nil, false // refused where it is compared
	}
	named, byImage = docs.InstallArgs()
	named = slices.DeleteFunc(named, func(arg string) bool { return strings.HasPrefix(arg, "-") }) // takes one away
	has := strings.Fields(string(m.Cmdline))
	for _, arg := range named {
		if slices.Contains(has, arg) {
			running = append(running, arg)
		}
	}
	return named, running, byImage
}

// ArgsLost are arguments that the running kernel has from the configuration alone, and the wanted image has not. Those
// of the running image are compared with the wanted one's. Another value of the image's replaces one, unless the kernel
// has the argument several times, as console.
func (w Wanted) ArgsLost(m Machine) []string {
	_, running, _ := m.InstallArgs()
	if len(running) == 0 {
		return nil
	}
	image, _ := config.ParseSchematic(m.Schematic.YAML) // an unreadable one is a reason of its drift
	times := map[string]int{}
	for arg := range strings.FieldsSeq(string(m.Cmdline)) {
		times[ArgName(arg)]++
	}
	return slices.DeleteFunc(running, func(arg string) bool {
		return slices.Contains(image.KernelArgs, arg) ||
			slices.ContainsFunc(w.Build.KernelArgs, func(has string) bool { return has == arg || times[ArgName(arg)] == 1 && ArgName(has) == ArgName(arg) })
	})
}

// DropsArgs says why what a strategy installs gets no arguments of the configuration; "" if it gets them.
func (w Wanted) DropsArgs(vm VM, m Machine, s Strategy) string {
	const systemdBoot = "systemd-boot takes only those of the image"
	_, _, byImage := m.InstallArgs()
	switch {
	case s.Upgrades() && !m.ByGRUB(vm), !s.Upgrades() && !vm.ByBIOS():
		return systemdBoot
	case byImage:
		return "with grubUseUKICmdline, GRUB takes only those of the image"
	case s.Upgrades() && m.InstallsApart():
		return "the upgrade API of Talos 1.13 and later hands none to GRUB: talos#13967"
	case !s.Upgrades() && w.Boot != BootFromISO && w.Boot != "" && w.Build.DiskName != "":
		return "a disk image has only its own"
	}
	return ""
}

// TellArgs says of kernel arguments in a configuration when they take effect, and which of those that the kernel has
// its next one will not have; none: they do, or there are none.
func (w Wanted) TellArgs(vm VM, m Machine) []string {
	if len(m.Cmdline) == 0 {
		return nil
	}
	var out []string
	named, running, byImage := m.InstallArgs()
	if missing := shownArgs(slices.DeleteFunc(named, func(arg string) bool { return slices.Contains(running, arg) })); len(missing) > 0 {
		out = append(out, fmt.Sprintf("its configuration names the kernel %s %s (machine.install.extraKernelArgs), which its kernel does not have: %s",
			words.Plural(len(missing), "argument"), strings.Join(missing, " "), whenArgs(vm, m, byImage)))
	}
	var after []string
	for _, s := range Strategies {
		if why := w.DropsArgs(vm, m, s); why != "" {
			after = append(after, fmt.Sprintf("%s (%s)", s, why))
		}
	}
	if lost := shownArgs(w.ArgsLost(m)); len(lost) > 0 && len(after) > 0 {
		out = append(out, fmt.Sprintf("its kernel has %s from machine.install.extraKernelArgs, and its next one would not after %s", strings.Join(lost, " "), strings.Join(after, ", ")))
	}
	return out
}

func shownArgs(args []string) []string {
	var out []string
	for _, arg := range args {
		out = append(out, ShownArg(arg))
	}
	return out
}

// ByGRUB says whether GRUB boots the machine: it does with SeaBIOS, and with UEFI where an installer before
// Talos 1.10 wrote it, so that no entry of systemd-boot is known.
func (m Machine) ByGRUB(vm VM) bool {
	return vm.ByBIOS() || !m.FromISO && m.BootEntry == "" && m.NextBoot == ""
}

// ByBIOS says whether the VM's firmware is SeaBIOS, which is Proxmox' default.
func (vm VM) ByBIOS() bool { return vm.Config["bios"] != "ovmf" }

// ShownArg is a kernel argument as it may be shown: what Talos itself reads may be secret.
func ShownArg(arg string) string {
	if name := ArgName(arg); strings.HasPrefix(name, "talos.") || GivesConfig(arg) {
		return name
	}
	return arg
}

// whenArgs says when a change of machine.install.extraKernelArgs or grubUseUKICmdline takes effect on the machine.
func whenArgs(vm VM, m Machine, byImage bool) string {
	const put = "; customization.extraKernelArgs of its schematic does it"
	switch {
	case !vm.ByBIOS():
		return "never with systemd-boot, with which the VM's firmware boots each new system" + put
	case byImage:
		return "never with grubUseUKICmdline: true, with which GRUB takes those of the image" + put
	case !m.InstallsApart():
		return "at the next upgrade, recreate or reimage, without grubUseUKICmdline: true"
	}
	return "at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: the upgrade API of Talos 1.13 and later hands none to GRUB (talos#13967)" + put
}

const useUKI = "machine.install.grubUseUKICmdline"

// ArgsWait says when kernel arguments for GRUB that a file changes take effect; "": it changes none.
func ArgsWait(vm VM, m Machine, changes []config.Change) string {
	for _, c := range changes {
		for _, field := range []string{"machine.install.extraKernelArgs", useUKI} {
			if c.Document == config.MainDocument && strings.HasPrefix(c.Path, field) {
				when := whenArgs(vm, m, false)
				if field == useUKI {
					when = strings.Replace(when, ", without grubUseUKICmdline: true", "", 1)
				}
				return field + " takes effect " + when
			}
		}
	}
	return ""
}
