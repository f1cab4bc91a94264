package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Needs maps a path of Proxmox's access tree to the privileges that a roll must have there.
type Needs map[string][]string

// What the work takes on the paths of the VMs (qemu-server, API2/Qemu.pm). The
// claim and the parking VMs are created and deleted by every run that has them.
var (
	claimPrivileges   = []string{"VM.Allocate", "VM.Audit", "VM.Config.Memory", "VM.Config.Options"}
	reimagePrivileges = []string{"VM.Config.CDROM", "VM.Config.Disk", "VM.PowerMgmt"}
	// recreatePrivileges are those of a create with every setting that a token may write.
	recreatePrivileges = []string{
		"VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Network", "VM.PowerMgmt",
	}
)

// NeedsOf derives what a plan's work takes, by each node's strategy. The
// privileges must be granted above /vms/<id>: an entry at the VM's own path goes
// with the VM when it is deleted.
func NeedsOf(p Plan) Needs {
	needs := Needs{}
	add := func(path string, privs ...string) {
		needs[path] = slices.Compact(slices.Sorted(slices.Values(append(needs[path], privs...))))
	}
	for _, n := range p.Work() {
		add("/", "Sys.Audit") // quorum, HA resources, backup jobs
		add("/vms", claimPrivileges...)
		needsOfNode(n, add)
	}
	return needs
}

func needsOfNode(n NodePlan, add func(path string, privs ...string)) {
	vm := n.found.VM
	var disks []DiskPlan
	switch n.Strategy {
	case InPlace:
		return
	case Reimage, Rollback:
		add("/vms", reimagePrivileges...)
	default:
		add("/vms", recreatePrivileges...)
		disks = slices.Clone(n.Carried)
		if vm != nil {
			needsOfConfig(vm.Config, add)
		}
	}
	if n.System != nil {
		disks = append(disks, *n.System)
	}
	for _, d := range disks {
		needsOfDisk(d, n.VMID, add)
	}
	if n.Strategy == Recreate || n.Strategy == Reimage {
		for _, storage := range n.wanted.ISOStorages {
			add("/storage/"+storage, "Datastore.AllocateTemplate", "Datastore.Audit")
		}
	}
	if n.found.Ties.HA != nil || vm != nil && vm.HA {
		add("/", "Sys.Console") // changes of the HA configuration
	}
}

// needsOfDisk is what parking a disk takes, or attaching a holder's again:
// pve-storage's check_volume_access asks for VM.Config.Disk at its owner.
func needsOfDisk(d DiskPlan, vm VMID, add func(path string, privs ...string)) {
	disk, err := ParseDisk(d.Key, d.Volid)
	if err != nil || !strings.Contains(d.Volid, ":") {
		return // no volume of a storage: such a node is refused
	}
	if disk.Owner != 0 && disk.Owner != vm {
		add(fmt.Sprintf("/vms/%d", disk.Owner), "VM.Config.Disk")
		add("/storage/"+disk.Storage(), "Datastore.Audit")
		return
	}
	add("/storage/"+disk.Storage(), "Datastore.AllocateSpace", "Datastore.Audit")
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
		case bus == "virtiofs":
			add("/mapping/dir/"+cmp.Or(option("dirid"), strings.Split(value, ",")[0]), "Mapping.Use")
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
