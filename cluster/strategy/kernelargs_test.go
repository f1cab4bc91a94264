package strategy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

func TestKernelArgumentsAreNotLostUnsaid(t *testing.T) {
	t.Parallel()
	machine := func(bios, talos, entry, config, cmdline string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Schematic = "storage"
			f.Machine.TalosVersion, f.Machine.BootEntry = talos, entry
			f.Machine.Configs.Active = cluster.Secret("machine:\n  install: {" + config + "}\n")
			f.Machine.Cmdline = cluster.Secret(cmdline)
			if bios != "" {
				f.VM.Config["bios"] = bios
			}
		}
	}
	const (
		named = "grubUseUKICmdline: false, extraKernelArgs: [net.ifnames=0, quiet]"
		runs  = "talos.platform=metal net.ifnames=0 console=tty0"
		put   = "add it to customization.extraKernelArgs of schematic storage and run recast lock --update, or name kernel-arg/net.ifnames=0 in nodes[].acceptLoss"
		lost  = "its kernel has net.ifnames=0 from machine.install.extraKernelArgs, and the next one would not have it "
		boot  = lost + "(systemd-boot takes only those of the image): " + put
		api   = lost + "(the upgrade API of Talos 1.13 and later hands none to GRUB: talos#13967): " + put
	)
	accepts := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) {
		w.AcceptLoss = []string{"kernel-arg/net.ifnames=0"}
	}
	image := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) {
		w.Build.KernelArgs = []string{"net.ifnames=0"}
	}
	otherwise := func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) {
		w.Build.KernelArgs = []string{"console=ttyS0", "mitigations=auto"}
	}
	check(t, map[string]refusalCase{
		"GRUB, in place since 1.13":           {change: machine("", "v1.13.9", "", named, runs), inPlace: api},
		"GRUB, in place by the old API":       {change: machine("", "v1.12.6", "", named, runs)},
		"GRUB with UEFI, which gives that up": {change: machine("ovmf", "v1.13.9", "", named, runs), recreate: boot, reimage: boot, inPlace: api},
		"systemd-boot never gave it":          {change: machine("ovmf", "v1.13.9", "talos-v1.13.9.efi", named, "talos.platform=metal")},
		"several in one entry":                {change: machine("", "v1.13.9", "", "extraKernelArgs: [' net.ifnames=0 quiet']", runs), inPlace: api},
		"one that the image has otherwise":    {change: inTurn(machine("", "v1.13.9", "", "extraKernelArgs: [mitigations=off]", "mitigations=off console=tty0"), otherwise)},
		"one that counts several times":       {change: inTurn(machine("", "v1.13.9", "", "extraKernelArgs: [console=ttyS1]", "console=ttyS0 console=ttyS1"), otherwise), inPlace: strings.ReplaceAll(api, "net.ifnames=0", "console=ttyS1")},
		"accepted":                            {change: inTurn(machine("", "v1.13.9", "", named, runs), accepts)},
		"in the schematic":                    {change: inTurn(machine("ovmf", "v1.13.9", "", named, runs), image)},
		"none":                                {change: machine("", "v1.13.9", "", "disk: /dev/sda", runs)},
	})
}

func TestKernelArgumentsThatTakeNoEffectAreTold(t *testing.T) {
	t.Parallel()
	const (
		names  = "its configuration names the kernel arguments net.ifnames=0 talos.config (machine.install.extraKernelArgs), which its kernel does not have: "
		put    = "; customization.extraKernelArgs of its schematic does it"
		loses  = "its kernel has quiet from machine.install.extraKernelArgs, and its next one would not after "
		uefi   = "(systemd-boot takes only those of the image)"
		image  = "(with grubUseUKICmdline, GRUB takes only those of the image)"
		api    = "(the upgrade API of Talos 1.13 and later hands none to GRUB: talos#13967)"
		config = "extraKernelArgs: [net.ifnames=0, quiet, talos.config=https://me:secret@host]"
	)
	for name, c := range map[string]struct {
		bios, config, cmdline, talos string
		image                        string // kernel arguments of the running one's schematic
		want                         []string
	}{
		"systemd-boot": {"ovmf", config, "quiet", "v1.13.9", "", []string{
			names + "never with systemd-boot, with which the VM's firmware boots each new system" + put, loses + "recreate " + uefi + ", reimage " + uefi + ", in-place " + api,
		}},
		"GRUB": {"", config, "quiet", "v1.13.9", "", []string{
			names + "at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: the upgrade API of Talos 1.13 and later hands none to GRUB (talos#13967)" + put,
			loses + "in-place " + api,
		}},
		"GRUB, by the old API": {"", config, "quiet", "v1.12.6", "", []string{names + "at the next upgrade, recreate or reimage, without grubUseUKICmdline: true"}},
		"GRUB, by the image": {"", "grubUseUKICmdline: true, " + config, "quiet", "v1.13.9", "", []string{
			names + "never with grubUseUKICmdline: true, with which GRUB takes those of the image" + put, loses + "recreate " + image + ", reimage " + image + ", in-place " + image,
		}},
		"the image has it":     {"", "extraKernelArgs: [quiet]", "quiet", "v1.13.9", "quiet", nil}, // what it loses is compared with the lock
		"none":                 {"", "disk: /dev/sda", "quiet", "v1.13.9", "", nil},
		"no command line read": {"", config, "", "v1.13.9", "", nil},
	} {
		m := cluster.Machine{RunningSystem: cluster.RunningSystem{TalosVersion: c.talos, Cmdline: cluster.Secret(c.cmdline)}}
		m.Schematic.YAML = "customization: {extraKernelArgs: ['" + c.image + "']}"
		m.Configs.Active = cluster.Secret("machine:\n  install: {" + c.config + "}\n")
		vm := cluster.VM{Config: map[string]string{"bios": c.bios}}
		if diff := cmp.Diff(c.want, cluster.Wanted{}.TellArgs(vm, m)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
