package strategy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

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
