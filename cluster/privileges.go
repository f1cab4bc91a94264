package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Needs maps a path of Proxmox's access tree to the privileges that a roll must have there.
type Needs map[string][]string

// vmPrivileges is what recreating a VM takes on its path and on the parking VM's.
var vmPrivileges = []string{
	"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType",
	"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

// NeedsOf derives what a plan's work takes. The privileges must be granted
// above /vms/<id>: an entry at the VM's own path goes with the VM when it is deleted.
func NeedsOf(p Plan) Needs {
	needs := Needs{}
	add := func(path string, privs ...string) {
		needs[path] = slices.Compact(slices.Sorted(slices.Values(append(needs[path], privs...))))
	}
	for _, n := range p.Work() {
		add("/", "Sys.Audit")
		add("/vms", vmPrivileges...)
		disks := n.Carried
		if n.System != nil {
			disks = append(slices.Clone(disks), *n.System)
		}
		for _, d := range disks {
			if storage, _, ok := strings.Cut(d.Volid, ":"); ok {
				add("/storage/"+storage, "Datastore.AllocateSpace", "Datastore.Audit")
			}
		}
		if n.found.VM != nil {
			needsOfConfig(n.found.VM.Config, add)
		}
		for _, storage := range n.wanted.ISOStorages {
			add("/storage/"+storage, "Datastore.AllocateTemplate", "Datastore.Audit")
		}
	}
	return needs
}

// needsOfConfig are privileges that creating the VM again takes because of
// single settings (qemu-server, API2/Qemu.pm): found missing after the delete,
// they would keep the node down. Bridges of other SDN zones than the hosts' own
// are not checked: the VM's configuration does not name their zone.
func needsOfConfig(config map[string]string, add func(path string, privs ...string)) {
	for key, value := range config {
		option := func(name string) string { return Disk{Options: strings.Split(value, ",")}.Option(name) }
		switch bus := strings.TrimRight(key, "0123456789"); {
		case key == "startup":
			add("/", "Sys.Modify")
		case key == "rng0" && strings.Contains(value, "/dev/hwrng"):
			add("/mapping/hwrng", "Mapping.Use")
		case bus == "net" && strings.HasPrefix(option("bridge"), "vmbr"):
			add("/sdn/zones/localnetwork/"+option("bridge"), "SDN.Use")
		case (bus == "hostpci" || bus == "usb") && option("mapping") != "":
			add("/mapping/"+map[string]string{"hostpci": "pci", "usb": "usb"}[bus]+"/"+option("mapping"), "Mapping.Use")
		}
	}
}

// Check compares what is needed with what is granted, as Access.Permissions
// gives it, and refuses with every missing privilege and the line that grants it.
func (n Needs) Check(granted map[string][]string) error {
	var missing, grants []string
	for _, path := range slices.Sorted(maps.Keys(n)) {
		have := effective(granted, path)
		var lacks []string
		for _, priv := range n[path] {
			if !slices.Contains(have, priv) {
				lacks = append(lacks, priv)
			}
		}
		if len(lacks) > 0 {
			missing = append(missing, fmt.Sprintf("%s on %s", strings.Join(lacks, ", "), path))
			grants = append(grants, "pveum acl modify "+path+" --tokens '<user@realm!id>' --roles <role with "+strings.Join(lacks, ",")+">")
		}
	}
	if len(missing) == 0 {
		return nil
	}
	err := fault.Refusedf("the Proxmox token lacks privileges: %s", strings.Join(missing, "; "))
	return fault.WithHint(err, "on a Proxmox node: %s", strings.Join(grants, "; "))
}

// effective looks a path up in the answer of /access/permissions, which lists
// the paths that have entries of their own; others inherit from the nearest above.
func effective(granted map[string][]string, path string) []string {
	for {
		if privs, ok := granted[path]; ok {
			return privs
		}
		if path == "/" {
			return nil
		}
		path = path[:strings.LastIndex(path, "/")]
		if path == "" {
			path = "/"
		}
	}
}
