package cluster

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Candidate is a node whose machine was read, with all that decides what can be done to it.
type Candidate struct {
	Wanted
	VM          VM
	Machine     Machine
	Found       Found
	Observation Observation
	Disks       []Disk
	DisksErr    error
	System      Disk
	SystemErr   error
	unseen      []loss // what may be on the system disk besides and can't be told
}

// AgainstRecreate says why the VM can't be deleted and made again.
func (c Candidate) AgainstRecreate() []Obstacle {
	return slices.Concat(c.againstReplacing(), c.Tied(), c.Replicated(Recreate), c.unwritable(), c.unprovable(), inWords(c.Immovable(Recreate)))
}

// AgainstReimage says why the VM can't get a blank system disk.
func (c Candidate) AgainstReimage() []Obstacle {
	return slices.Concat(c.againstReplacing(), c.Replicated(Reimage), inWords(c.Immovable(Reimage)))
}

// AgainstInPlace says why the running system can't be upgraded.
func (c Candidate) AgainstInPlace() []string {
	out := slices.Concat(c.misfit(), c.unchangeable())
	if n := c.Found.Node; n != nil && n.FailedBuild != "" && n.FailedBuild == c.Build.ID {
		out = append(out, fmt.Sprintf("build %s came back as the old system once, and is never tried again with the same image: "+
			"lock another version or other extensions, or use recreate or reimage", words.Short(n.FailedBuild)))
	}
	if n := c.Found.Node; c.Machine.PendingReboot() && (n == nil || n.Mark == nil || n.Mark.Build != c.Build.ID) {
		out = append(out, fmt.Sprintf("%s is installed and waits for a reboot, and another installation could remove the running system: reboot it first, or use recreate or reimage", c.Machine.NextBoot))
	}
	if c.Machine.ControlPlane && !c.Machine.InstallsApart() && len(c.Observation.ControlPlanes()) == 2 {
		out = append(out, fmt.Sprintf("Talos %s itself refuses to upgrade one of two control planes (etcd member count(2) is insufficient to maintain quorum if upgrade commences): use recreate or reimage", c.Machine.TalosVersion))
	}
	if c.SystemErr == nil && c.System.Flag("snapshot") {
		out = append(out, thrownAway("system disk "+c.System.Key))
	}
	for _, arg := range c.Machine.Omni() {
		out = append(out, fmt.Sprintf("Omni looks after the machine (%s) and would undo this: take the machine out of Omni and the argument off its system first", arg))
	}
	if size := c.System.SizeBytes(); c.SystemErr == nil && size > 0 && size < uint64(max(c.SystemGiB, 0))<<30 {
		out = append(out, fmt.Sprintf("in-place can't make the system disk %s larger (%s → %dG): remove nodes[].systemDisk.sizeGiB, or use recreate or reimage",
			c.System.Key, c.System.Option("size"), c.SystemGiB))
	}
	return out
}

// againstReplacing is what keeps the system disk where it is, whoever the VM around it.
func (c Candidate) againstReplacing() []Obstacle {
	out := c.misfit()
	if c.SystemErr != nil {
		out = append(out, strings.Join(append([]string{c.SystemErr.Error()}, fault.Hints(c.SystemErr)...), ": "))
	}
	if c.DisksErr != nil {
		out = append(out, c.DisksErr.Error()+": correct the VM's configuration")
	}
	return slices.Concat(inWords(out), c.Occupied(), c.Entangled(), inWords(c.Untellable()), c.Irreplaceable(),
		c.preconfigured(), c.unreachable(), inWords(c.sealed()), inWords(c.mislabelled()))
}

// Occupied is a VM that Proxmox would not let us change, or that somebody else is at work on.
func (c Candidate) Occupied() []Obstacle {
	var out []Obstacle
	add := func(command, format string, args ...any) {
		out = append(out, Obstacle{Text: fmt.Sprintf(format, args...), Command: command})
	}
	if c.VM.Template {
		add("", "the VM is a template: a node can't be one")
	}
	if c.VM.Lock != "" {
		add("", "the VM is locked (%s): wait until that task has ended", c.VM.Lock)
	}
	if state := c.VM.Config["vmstate"]; state != "" {
		// A delete frees it (PVE/QemuServer.pm, destroy_vm), a start resumes from it.
		add("", "the VM's memory is on disk (%s), as that of one that is suspended: resume it, or remove vmstate", state)
	}
	snapshots := c.Found.Ties.Snapshots
	if parent := c.VM.Config["parent"]; len(snapshots) == 0 && parent != "" {
		snapshots = []string{parent}
	}
	if len(snapshots) > 0 {
		var commands []string
		for _, s := range snapshots {
			commands = append(commands, fmt.Sprintf("qm delsnapshot %d %s", c.VM.ID, words.Quote(s)))
		}
		add(strings.Join(commands, " && "), "the VM has snapshots (%s), whose disks can't leave it: delete them first", strings.Join(snapshots, ", "))
	}
	for _, what := range c.Found.Ties.Busy {
		add("", "%s: wait until that is over", what)
	}
	// Which host's processors it may have is nothing that the machine was proven with.
	if pending := slices.DeleteFunc(slices.Clone(c.VM.Pending), func(key string) bool { return key == "affinity" }); len(pending) > 0 {
		add(fmt.Sprintf("qm set %d --revert %s", c.VM.ID, words.Quote(strings.Join(pending, ","))),
			"the VM has pending changes (%s): restart it or revert them", strings.Join(pending, ", "))
	}
	return append(out, c.missingBoot()...)
}

// preconfigured is whatever would give the blank machine a configuration before
// recast does: that would choose the disk to install on. Talos looks at the
// embedded one, the kernel arguments and the platform's before it goes into
// maintenance mode (internal/app/machined/pkg/controllers/config/acquire.go).
func (c Candidate) preconfigured() []Obstacle {
	const would = "would configure the blank machine before recast can"
	var out []Obstacle
	add := func(format string, args ...any) { out = append(out, Obstacle{Text: fmt.Sprintf(format, args...)}) }
	if customUserData(c.VM) {
		out = append(out, Obstacle{
			Text:    fmt.Sprintf("cicustom's user data (%s) %s: remove its user= part", c.VM.Config["cicustom"], would),
			Command: c.keepCustom(),
		})
	}
	if serial := smbiosSerial(c.VM.Config["smbios1"]); strings.Contains(serial, "ds=nocloud") {
		add("the SMBIOS serial %q %s: remove it from smbios1", serial, would)
	}
	for _, sign := range []string{"ds=nocloud", "talos.config", "siderolink.api"} {
		if strings.Contains(c.VM.Config["args"], sign) {
			add("the VM's args name %s, which %s: remove that", sign, would)
		}
	}
	for _, arg := range c.Build.KernelArgs {
		if givesConfig(arg) {
			add("the schematic's kernel argument %s %s: remove it from the schematic", argName(arg), would)
		}
	}
	for _, arg := range c.Machine.ConfigArgs {
		if !slices.ContainsFunc(c.Build.KernelArgs, func(wanted string) bool { return argName(wanted) == argName(arg) }) {
			add("the machine was booted with the kernel argument %s, which %s: remove it and roll in-place once", argName(arg), would)
		}
	}
	if c.Build.EmbedsConfig {
		add("the schematic embeds a machine configuration, which %s: remove embeddedMachineConfiguration from it", would)
	}
	return out
}

func customUserData(vm VM) bool { return strings.Contains(","+vm.Config["cicustom"], ",user=") }

// withoutCustom is the command that takes parts out of cicustom and leaves its others.
func (vm VM) withoutCustom(parts ...string) string {
	rest := slices.DeleteFunc(strings.Split(vm.Config["cicustom"], ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return slices.Contains(parts, name)
	})
	if len(rest) == 0 {
		return fmt.Sprintf("qm set %d --delete cicustom", vm.ID)
	}
	return fmt.Sprintf("qm set %d --cicustom %s", vm.ID, words.Quote(strings.Join(rest, ",")))
}

// givesConfig tells kernel arguments that name a configuration or a server that has one.
func givesConfig(arg string) bool {
	name := argName(arg)
	return name == "talos.config" || strings.HasPrefix(name, "talos.config.") || name == "siderolink.api"
}

// Omni are the kernel arguments by which Omni looks after the machine.
func (m Machine) Omni() []string {
	var out []string
	for _, arg := range m.ConfigArgs {
		if argName(arg) == "siderolink.api" {
			out = append(out, arg)
		}
	}
	return out
}

func argName(arg string) string { name, _, _ := strings.Cut(arg, "="); return name }

// smbiosSerial is the serial number in a VM's smbios1, whose values but the UUID
// may all be in base64 (qemu-server, PVE/QemuServer.pm, pve-qm-smbios1).
func smbiosSerial(smbios string) string {
	options := Disk{Options: strings.Split(smbios, ",")}
	serial := options.Option("serial")
	if options.Flag("base64") {
		if b, err := base64.StdEncoding.DecodeString(serial); err == nil {
			return string(b)
		}
	}
	return serial
}

// Tied is what a delete of the VM would take along.
func (c Candidate) Tied() []Obstacle {
	var out []Obstacle
	for _, what := range c.Found.Ties.Dropped {
		out = append(out, Obstacle{Text: fmt.Sprintf("the VM has %s, which a delete would drop: remove it, or use reimage", what)})
	}
	for _, e := range c.Found.Ties.ACL {
		out = append(out, Obstacle{
			Text: fmt.Sprintf("the VM has an ACL entry at %s (%s), which a delete would drop: remove it, and after the roll pveum acl modify %s; or use reimage",
				e.Path, e.words(), e.arguments()+e.propagates()),
			Command: "pveum acl delete " + e.arguments(),
		})
	}
	for _, v := range c.Found.Ties.VNets {
		switch { // pve-network, PVE/Network/SDN/Vnets.pm, del_ips_from_mac and add_next_free_cidr
		case v.Hidden:
			out = append(out, Obstacle{Text: fmt.Sprintf("the VM is on %s, which Proxmox does not show the token, so nobody can say whether a zone of its SDN keeps the VM's address (IPAM): grant the token SDN.Use on it, or use reimage", v.Name)})
		case v.IPAM:
			out = append(out, Obstacle{Text: fmt.Sprintf("the VM is on VNet %s, whose zone keeps its address (IPAM), frees it with the VM, and gives a new VM the next one: use reimage", v.Name)})
		}
	}
	if n := c.Found.Node; n != nil && n.ProviderID != "" {
		out = append(out, Obstacle{Text: fmt.Sprintf("its Node has providerID %s: a cloud controller deletes the Node with its VM: use reimage", n.ProviderID)})
	}
	return out
}
