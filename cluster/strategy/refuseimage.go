package strategy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// BringsConfig lists what in a build's image would configure a blank machine, and what to do about it.
func BringsConfig(b cluster.Build) []string {
	return cluster.Each(b.OwnConfig(), bringsConfig)
}

func bringsConfig(what string) string {
	if what == cluster.EmbeddedConfig {
		return fmt.Sprintf("the schematic embeds a machine configuration, which %s: remove embeddedMachineConfiguration from it", would)
	}
	return fmt.Sprintf("the schematic's %s %s: remove it from the schematic", what, would)
}

// oneWay lists what the wanted image brings that the machine does not have yet, and that would prevent recreating
// or reimaging the machine from then on. The refusal of an upgrade in place uses the same words.
func (c Candidate) oneWay() []string {
	brings := c.Build.OwnConfig()
	if len(brings) == 0 {
		return nil
	}
	has := c.Machine.OwnConfig()
	brings = slices.DeleteFunc(brings, func(what string) bool { return slices.Contains(has, what) })
	return cluster.Each(brings, bringsConfig)
}

// omni says why Omni would undo an upgrade in place. An image without the kernel argument ends that.
func (c Candidate) omni() []string {
	var out []string
	for _, what := range c.Machine.OmniAfter(c.Build) {
		lift := "take the machine out of Omni, and the argument out of the schematic: in-place rolls to an image without it"
		switch {
		case what == cluster.OmniDocument:
			out = append(out, omniDocument)
			continue
		case !slices.ContainsFunc(c.Build.KernelArgs, cluster.GivesConfig):
			lift = "take the machine out of Omni, and the argument out of what its system is booted with (args of the VM, machine.install.extraKernelArgs)"
		}
		out = append(out, fmt.Sprintf("Omni looks after the machine (%s) and would undo this: %s", what, lift))
	}
	return out
}

// leavesOmni notes that an image removes what joined the machine to Omni.
func leavesOmni(c Candidate) []string {
	after := c.Machine.OmniAfter(c.Build)
	left := cluster.Where(c.Machine.Omni(), func(arg string) bool { return !slices.Contains(after, arg) })
	return cluster.Each(left, func(arg string) string {
		return fmt.Sprintf("its image no longer joins it to Omni (%s): remove the machine in Omni, too", arg)
	})
}

// keepsOmni says why Omni would undo a new system disk: the node gets back the configuration that joins it to Omni.
// If a kernel argument does that, preconfigured says so.
func (c Candidate) keepsOmni() []string {
	file := c.Found.File
	if !slices.Contains(c.Machine.Omni(), cluster.OmniDocument) || file != nil && file.Err == nil && !file.Omni {
		return nil
	}
	return []string{omniDocument}
}

const omniDocument = "Omni looks after the machine (" + cluster.OmniDocument + ") and would undo this: take the machine out of Omni, and that document out of its configuration (recast roll --what config)"

// SealedBy lists volumes that a configuration encrypts in such a way that the node could not be recreated or
// reimaged from then on, unless the running configuration already does so.
func (c Candidate) SealedBy(wanted []cluster.Encryption) []string {
	after := c
	after.Machine.Encryption = wanted
	has := sealed(c)
	return slices.DeleteFunc(sealed(after), func(text string) bool { return slices.Contains(has, text) })
}

// kernelArg is the prefix of a kernel argument's name in acceptLoss.
const kernelArg = "kernel-arg/"

// AgainstArgs lists kernel arguments that the running kernel has from the machine configuration, and that the next
// kernel would not have: the loss would be silent, and without net.ifnames=0, say, the network card has another name.
func (c Candidate) AgainstArgs(s cluster.Strategy) []string {
	why := c.DropsArgs(c.VM, c.Machine, s)
	if why == "" {
		return nil
	}
	var out []string
	for _, arg := range c.ArgsLost(c.Machine) {
		shown := cluster.ShownArg(arg)
		if !slices.Contains(c.AcceptLoss, kernelArg+shown) {
			out = append(out, fmt.Sprintf("its kernel has %s from machine.install.extraKernelArgs, and the next one would not have it (%s): "+
				"add it to customization.extraKernelArgs of schematic %s and run recast lock --update, or name %s%s in nodes[].acceptLoss", shown, why, c.Schematic, kernelArg, shown))
		}
	}
	return out
}

// argsAccepted notes the arguments that acceptLoss gives up.
func (c Candidate) argsAccepted(s cluster.Strategy) []string {
	var out []string
	for _, arg := range c.ArgsLost(c.Machine) {
		if shown := cluster.ShownArg(arg); c.DropsArgs(c.VM, c.Machine, s) != "" && slices.Contains(c.AcceptLoss, kernelArg+shown) {
			out = append(out, "its next kernel will not have "+shown)
		}
	}
	return out
}

// changes lists what else the image changes, if there is no obstacle.
func changes(c Candidate) []string {
	var out []string
	if replatformed(c) {
		out = append(out, fmt.Sprintf("platform %s → %s: network settings that are in neither its machine configuration nor DHCP will be others", c.Machine.Platform, c.Build.Platform))
	}
	if securing(c) {
		out = append(out, "the boot ISO enrols its keys in the VM's firmware, which then boots signed systems only: the present one can't be put back if it is not signed")
	}
	return append(out, leavesOmni(c)...)
}

// misfit says why the wanted image can't run on the machine, or why the machine would not be reachable with it,
// whatever the strategy. What the machine does not say is no obstacle, except with an image that requires Secure Boot.
func misfit(c Candidate) []string {
	return slices.Concat(c.Found.Unsupported, otherArch(c), readdressed(c), unverifiable(c))
}

// unreadable says why the wanted Talos would not boot with the configuration that the node has, or gets back with a
// new system disk. A file that comes with a new system disk is checked by itself.
func (c Candidate) unreadable(newDisk bool) []string {
	err := c.Found.ConfigRefused
	if file := c.Found.File; err == nil || newDisk && file != nil && (file.Err != nil || file.Differs()) {
		return nil
	}
	return hinted(err)
}

// otherArch says how architectures differ. Only the locked architecture of an installer was verified, even if the
// installer has several.
func otherArch(c Candidate) []string {
	const text = "the images are for %s, and %s: set images.arch to %s, then recast lock"
	var out []string
	if arch := c.Machine.Arch; arch != "" && arch != c.Build.Arch {
		out = append(out, fmt.Sprintf(text, c.Build.Arch, "the machine is "+arch, arch))
	}
	// Without that option a VM has its host's architecture (get_vm_arch in PVE/QemuServer.pm).
	if arch := c.VM.Arch(); arch != "" && arch != c.Build.Arch && arch != c.Machine.Arch {
		out = append(out, fmt.Sprintf(text, c.Build.Arch, "the VM is arch="+c.VM.Config["arch"], arch))
	}
	return out
}

// readdressed says why a node would lose its address: nocloud reads it from Proxmox' cloud-init
// drive, the other platforms do not (internal/app/machined/pkg/runtime/v1alpha1/platform of Talos).
func readdressed(c Candidate) []string {
	if !replatformed(c) {
		return nil
	}
	fixed := c.VM.FixedAddress()
	if fixed == "" || c.Build.Platform == "nocloud" && strings.Contains(fixed, "="+c.Found.Addr.String()+"/") {
		return nil // both platforms give the same address
	}
	return []string{fmt.Sprintf("the VM's cloud-init drive gives a fixed address (%s), which platforms %s and %s do not both read: keep platform %s (images.platform), or have DHCP give the node its address and remove that",
		fixed, c.Machine.Platform, c.Build.Platform, c.Machine.Platform)}
}

func replatformed(c Candidate) bool {
	return c.Machine.Platform != "" && c.Machine.Platform != c.Build.Platform
}

// securing says whether the image requires Secure Boot and the machine is not known to have it on.
func securing(c Candidate) bool { return c.Build.SecureBoot && !c.Machine.Secured() }

// unchangeable lists what an in-place upgrade can't change. Without systemd-boot the installer writes the running
// platform to GRUB's configuration (upgrade in v1alpha1_sequencer_tasks.go of Talos), and keys are only on the boot
// ISO.
func unchangeable(c Candidate) []string {
	var out []string
	if replatformed(c) && c.Machine.BootEntry == "" {
		out = append(out, fmt.Sprintf("systemd-boot did not boot it, and with GRUB in-place keeps platform %s: use recreate or reimage, or keep the platform (images.platform)", c.Machine.Platform))
	}
	if securing(c) {
		out = append(out, "Secure Boot is not on, and in-place enrols no keys: use recreate or reimage, whose boot ISO does")
	}
	return out
}

// unverifiable says why the firmware would not boot the image, or not with Secure Boot.
func unverifiable(c Candidate) []string {
	switch {
	case c.Machine.Secured() && !c.Build.SecureBoot:
		return []string{"its firmware boots only what is signed (Secure Boot), and the images are not: set images.secureBoot to true, then recast lock, or turn Secure Boot off in its firmware first"}
	case !securing(c):
		return nil
	}
	lacks := c.VM.LacksSecureBoot()
	if lacks == "" {
		return nil
	}
	return []string{fmt.Sprintf("Secure Boot needs bios=ovmf and an efidisk0 with efitype=4m and without keys of others (pre-enrolled-keys=0), but %s: change that, or set images.secureBoot to false, then recast lock", lacks)}
}

// customised lists parts of cicustom with which a new VM might not start, or might have another address. Proxmox
// does not start a VM without these files (PVE/QemuServer/Cloudinit.pm, read_cloudinit_snippets_file), and a
// network file may say what the machine never used.
func customised(c Candidate) []cluster.Obstacle {
	var out []cluster.Obstacle
	for part := range strings.SplitSeq(c.VM.Config["cicustom"], ",") {
		kind, volid, _ := strings.Cut(part, "=")
		storage, _, _ := strings.Cut(volid, ":")
		switch {
		case kind == "" || kind == "user": // none, or refused elsewhere
		case kind == "network":
			out = append(out, cluster.Obstacle{Text: fmt.Sprintf("the VM has cicustom (%s), whose content recast can't read: remove it, or use reimage", part)})
		case !slices.Contains(c.Found.Ties.Snippets, volid):
			out = append(out, cluster.Obstacle{
				Text: fmt.Sprintf("the VM has cicustom (%s), without which file a new VM would not start, and the token does not see it: grant it Datastore.Allocate on /storage/%s, "+
					"or remove that part, with which Talos' platform metadata goes; or use reimage", part, storage),
				Command: keepCustom(c),
			})
		}
	}
	return out
}

// keepCustom returns the command that leaves in cicustom what a new VM can have, and the network part, which may
// make the machine reachable.
func keepCustom(c Candidate) string {
	gone := []string{"user"}
	for part := range strings.SplitSeq(c.VM.Config["cicustom"], ",") {
		if kind, volid, _ := strings.Cut(part, "="); kind != "network" && !slices.Contains(c.Found.Ties.Snippets, volid) {
			gone = append(gone, kind)
		}
	}
	return c.VM.WithoutCustom(gone...)
}

// missingBoot lists devices in the boot order that the VM does not have. Proxmox accepts such an order on create
// but not on update ("invalid bootorder", API2/Qemu.pm, update_vm_api): the order could not be restored.
func missingBoot(c Candidate) []cluster.Obstacle {
	var out []cluster.Obstacle
	order := cluster.BootDevices(c.VM.Config["boot"])
	have := slices.DeleteFunc(slices.Clone(order), func(key string) bool { return c.VM.Config[key] == "" })
	for _, key := range order {
		if _, there := c.VM.Config[key]; !there {
			out = append(out, cluster.Obstacle{
				Text:    fmt.Sprintf("its boot order names %s, which the VM has not: set the boot order again", key),
				Command: fmt.Sprintf("qm set %d --boot %s", c.VM.ID, words.Quote("order="+strings.Join(have, ";"))),
			})
		}
	}
	return out
}

// unwritable lists settings and drives that can't be given to a new VM.
func unwritable(c Candidate) []cluster.Obstacle {
	out := c.rawDevices()
	add := func(key, format string, args ...any) {
		o := cluster.Obstacle{Text: fmt.Sprintf(format, args...)}
		if o.Command = c.VM.MapDevice(key, c.VM.Config[key]); slices.Contains(spared, key) {
			o.Command = fmt.Sprintf("qm set %d --delete %s", c.VM.ID, key)
		}
		out = append(out, o)
	}
	for _, key := range c.VM.ForRoot(c.Found.Ties.HostArch) {
		add(key, "its setting %s can only be written by root@pam: use a resource mapping where there is one, or reimage", key)
	}
	for key, value := range c.VM.Config {
		switch {
		case slices.Contains(cluster.RootOnly, key) || cluster.RawDevice(key, value): // reported above
		case !cluster.IsDiskKey(key) && cluster.NumberedBus(key) == "" && !slices.Contains(carried, key) && !slices.Contains(hidden, key) && !slices.Contains(cluster.NeverCarried, key):
			add(key, "its setting %s is none that recast knows, so whether a new VM can be given it can't be determined: remove it, or use reimage", key)
		}
	}
	out = append(out, customised(c)...)
	if c.VM.Config["cipassword"] != "" {
		add("cipassword", "the VM has cipassword, which Proxmox never shows: remove it, or use reimage")
	}
	slices.SortFunc(out, func(a, b cluster.Obstacle) int { return strings.Compare(a.Text, b.Text) })
	return out
}

var // carried are settings that a new VM gets as the old one had them. Some need
// privileges of their own: see Needs.config.
carried = []string{
	"acpi", "agent", "allow-ksm", "audio0", "autostart", "balloon", "bios", "boot", "bootdisk", "citype", "ciupgrade", "ciuser", "cores",
	"cpu", "cpulimit", "cpuunits", "description", "freeze", "hotplug", "keyboard", "kvm", "localtime", "machine", "memory",
	"migrate_downtime", "migrate_speed", "name", "nameserver", "numa", "onboot", "ostype", "protection", "reboot", "rng0", "scsihw",
	"searchdomain", "shares", "smbios1", "smp", "sockets", "sshkeys", "startdate", "startup", "tablet", "tags", "tdf", "template", "vcpus",
	"vga", "vmstatestorage", "watchdog",
}

var // hidden are settings whose value does not show what they set.
hidden = []string{"cicustom", "cipassword"}

// spared are settings that make no difference to a Talos machine: if such a setting is an obstacle, a command may
// remove it. Removing args or a passed-through device makes another machine.
var spared = []string{"affinity", "cipassword", "hookscript"}
