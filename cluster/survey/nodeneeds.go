package survey

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/cluster/shape"
)

// bridge adds SDN.Use. With a VLAN tag, Proxmox checks it one level deeper; with trunks, also at each of them
// (pve-guest-common, GuestHelpers.pm, check_vnet_access).
func (n *Needs) bridge(key, bridge, tag, trunks string) {
	path := "/sdn/zones/localnetwork/" + bridge
	at := spot{path: path}
	switch {
	case trunks != "":
		at.below = true
	case tag != "":
		at.path += "/" + tag
	}
	n.add(path, "connect "+key+" to "+bridge, []spot{at}, "SDN.Use")
}

func (n *Needs) claim() {
	n.add("/vms", "make and delete the VM that is the claim of the run", []spot{{path: "/vms", below: true}}, claimPrivileges...)
}

// common adds what every roll needs. The privileges on VMs must be granted above /vms/<id>: Proxmox deletes an entry
// at the VM's own path together with the VM (AccessControl.pm, remove_vm_access).
func (n *Needs) common(hosts []string) {
	n.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	n.add("/", "read access control entries of single VMs", []spot{{path: "/access"}}, "Sys.Audit")
	for _, host := range hosts {
		if host != "" {
			n.add("/", "read the state and the tasks of the hosts", []spot{{path: "/nodes/" + host}}, "Sys.Audit")
		}
	}
	n.see()
}

// config adds what creating the VM again needs because of single settings (qemu-server,
// API2/Qemu.pm): a privilege found missing only after the delete would keep the node down.
func (n *Needs) config(config map[string]string) {
	use := func(path, key string) { n.add(path, "write the setting "+key, nil, "Mapping.Use") }
	for _, key := range slices.Sorted(maps.Keys(config)) {
		value := config[key]
		option := func(name string) string { return cluster.Disk{Options: strings.Split(value, ",")}.Option(name) }
		first, _, _ := strings.Cut(value, ",")
		switch bus := strings.TrimRight(key, "0123456789"); {
		case key == "startup":
			n.add("/", "write the setting startup", nil, "Sys.Modify")
		case key == "vmstatestorage":
			n.add("/storage/"+value, "write the setting vmstatestorage", nil, "Datastore.AllocateSpace")
		case key == "rng0" && strings.Contains(value, "/dev/hwrng"):
			use("/mapping/hwrng", key)
		case key == "cpu" && strings.HasPrefix(cmp.Or(option("cputype"), first), "custom-"):
			// Before qemu-server 9.1 the check was Sys.Audit on /nodes ($check_cpu_model_access).
			use("/mapping/cpu/"+strings.TrimPrefix(cmp.Or(option("cputype"), first), "custom-"), key)
			n.add("/", "use a custom CPU model", []spot{{path: "/nodes"}}, "Sys.Audit")
		case bus == "net" && cluster.LocalBridge(option("bridge")):
			n.bridge(key, option("bridge"), option("tag"), option("trunks"))
		case bus == "virtiofs":
			use("/mapping/dir/"+cmp.Or(option("dirid"), first), key)
		case (bus == "hostpci" || bus == "usb") && option("mapping") != "":
			use("/mapping/"+map[string]string{"hostpci": "pci", "usb": "usb"}[bus]+"/"+option("mapping"), key)
		default:
			n.medium(key, value)
		}
	}
}

// disk adds what parking a disk needs, or attaching a holder's disk again: pve-storage's
// check_volume_access (PVE/Storage.pm) requires VM.Config.Disk at its owner.
func (n *Needs) disk(d planning.DiskPlan, vm cluster.VMID) {
	disk, err := cluster.ParseDisk(d.Key, d.Volid)
	if err != nil || !strings.Contains(d.Volid, ":") {
		return // not a volume of a storage: the node is refused
	}
	path := "/storage/" + disk.Storage()
	n.add(path, "see the volumes of the nodes", nil, "Datastore.Audit")
	if disk.Owner != 0 && disk.Owner != vm {
		holder := []spot{{path: fmt.Sprintf("/vms/%d", disk.Owner)}}
		n.add("/vms", "attach the holder's disks again", holder, "VM.Config.Disk")
		n.add("/vms", "see the holder", holder, "VM.Audit")
		return
	}
	n.add(path, "hand disks over and make the blank system disks", nil, "Datastore.AllocateSpace")
}

func (n *Needs) isos(storages []string) {
	n.on(storages, "upload boot ISOs", "Datastore.AllocateTemplate")
	n.on(storages, "see boot ISOs, and the space for them", "Datastore.Audit")
}

// diskImages is isos for the storages of disk images (pve-storage, Storage.pm, check_volume_access).
func (n *Needs) diskImages(storages []string) {
	n.on(storages, "upload disk images", "Datastore.AllocateTemplate")
	n.on(storages, "make disks from disk images, and see the space for them", "Datastore.Audit")
}

// images adds what the storages of boot ISOs and of disk images need.
func (n *Needs) images(w cluster.Wanted) {
	n.isos(w.ISOStorages)
	n.diskImages(w.DiskStorages)
}

// medium adds what the medium in a CD drive needs (API2/Qemu.pm, $check_storage_access).
func (n *Needs) medium(key, value string) {
	if !cluster.IsDiskKey(key) {
		return
	}
	d, err := cluster.ParseDisk(key, value)
	switch {
	case err != nil || !d.CDROM || d.CloudInit():
	case d.Volid == "cdrom":
		n.add("/", "put the host's CD drive into "+key, nil, "Sys.Console")
	case strings.Contains(d.Volid, ":"):
		n.add("/storage/"+d.Storage(), "put the medium of "+key+" back", nil, "Datastore.Audit")
	}
}

// node adds what one node needs. disks are those that the node will lose or get back.
func (n *Needs) node(s cluster.Strategy, w cluster.Wanted, f observe.Found, disks []planning.DiskPlan) {
	if s.VM() == cluster.VMUntouched {
		return
	}
	vm, id, pool := f.VM, w.VMID, ""
	if f.Open() {
		id = f.Parking.Record.VMID
	}
	var config map[string]string
	if vm != nil {
		id, config, pool = vm.ID, vm.Config, poolOf(*vm)
	}
	spots := []spot{{path: "/vms", below: true, or: pool}} // the parking VM
	if id != 0 {
		spots = append(spots, spot{path: fmt.Sprintf("/vms/%d", id), or: pool})
	}
	spots = append(spots, cluster.Each(parkedOn(f), spotOf)...)
	n.replacing(s, spots)
	if s.VM() == cluster.VMAgain || s.VM() == cluster.VMAsBefore {
		config = maps.Clone(config)
		if all, err := (cluster.VM{Config: config}).Disks(); err == nil && s.VM() == cluster.VMAgain {
			delete(config, cluster.CDKey(config, all)) // that drive gets the boot ISO
		}
		n.config(config)
		for _, tag := range f.Ties.Tags {
			n.add("/", "give the new VM its tag "+tag, nil, "Sys.Modify")
		}
	}
	if media, err := (cluster.VM{Config: config}).OtherMedia(); err == nil && s.Replaces() && !s.DeletesVM() {
		for key := range media {
			n.medium(key, config[key])
		}
	}
	if s.Replaces() && !s.DeletesVM() && f.BlankSetting(w.Build) != nil {
		n.add("/vms", "tell the blank machine its address", spots, "VM.Config.Network")
	}
	for _, d := range disks {
		n.disk(d, id)
	}
	if s.Installs() {
		n.images(w)
	}
	if f.Ties.HA != nil || vm != nil && vm.HA {
		n.add("/", "take VMs out of HA and put them back", nil, "Sys.Console")
	}
}

func parkedOn(f observe.Found) []cluster.VM {
	return cluster.Each(f.Parkings(), func(p parking.Parking) cluster.VM { return p.VM })
}

// replacing adds what every new system disk needs on the VMs at these spots.
func (n *Needs) replacing(s cluster.Strategy, spots []spot) {
	for _, p := range reimagePrivileges {
		n.add("/vms", p.why, spots, p.privilege)
	}
	if !s.SwapsInVM() && s.VM() != cluster.VMGone {
		for _, p := range recreatePrivileges {
			n.add("/vms", p.why, spots, p.privilege)
		}
	}
}

func (n *Needs) see() {
	n.add("/vms", "see every VM, as any may refer to a disk or be the claim of another run", []spot{{path: "/vms", below: true}}, "VM.Audit")
}

// NeedsOf derives what a plan needs, by each node's strategy; inLease says that the run's claim is kept in Kubernetes.
func NeedsOf(p planning.Plan, inLease bool) Needs {
	var needs Needs
	for _, n := range p.Work() {
		needs.common([]string{n.Host})
		if !inLease {
			needs.claim()
		}
		for more := true; more; n, more = n.Then() {
			needs.of(n)
		}
	}
	return needs
}

func (n *Needs) of(p planning.NodePlan) {
	if !p.Strategy.Reshapes() { // a reshape is one of the VM's changes: see shape
		n.node(p.Strategy, p.Wanted, p.Found, p.Disks())
	}
	n.shape(p)
	if p.IsWayBack {
		n.images(p.Wanted)
	}
	n.freeing(p.FreesOn(), parkedOn(p.Found))
}

// NeedsToClaim is what keeping a run's claim as a VM needs.
func NeedsToClaim() Needs { return needing((*Needs).claim) }

func needing(work func(*Needs)) (needs Needs) {
	work(&needs)
	return needs
}

// NeedsToRoll is what a roll by the given strategies needs while no VM can be seen: a token without privileges sees
// empty lists. The nodes' storages and bridges are then unknown, so the privileges are granted above them.
func NeedsToRoll(isoStorages, hosts []string, strategies ...cluster.Strategy) Needs {
	var needs Needs
	needs.common(hosts)
	needs.claim()
	fresh := []spot{{path: "/vms", below: true}}
	disks := []spot{{path: "/storage", below: true}}
	bridges := []spot{{path: "/sdn/zones/localnetwork", below: true}}
	for _, s := range strategies {
		if s.KeepsVM() {
			continue
		}
		needs.replacing(s, fresh)
		needs.add("/storage", "hand disks over and make the blank system disks", disks, "Datastore.AllocateSpace")
		needs.add("/storage", "see the storages and what is on them", disks, "Datastore.Audit")
		if s.DeletesVM() {
			needs.add("/sdn/zones/localnetwork", "connect the new VMs to their bridges", bridges, "SDN.Use")
		}
		needs.isos(isoStorages)
	}
	return needs
}

// NeedsToSee is what finding another run's claim needs, whichever VM it is: Proxmox omits VMs that the token may not
// see from its list, without an error.
func NeedsToSee() Needs { return needing((*Needs).see) }

// NeedsToUpgradeKubernetes is what an upgrade of Kubernetes needs in Proxmox, without the run's
// claim, which needs more if it is kept as a VM.
func NeedsToUpgradeKubernetes(host string) Needs {
	return needing(func(n *Needs) { n.common([]string{host}) })
}

// The privileges that the work needs on VMs (qemu-server, API2/Qemu.pm, check_vm_modify_config_perm). Each run creates
// and deletes its own claim and parking VMs. For the cloud-init settings Proxmox requires VM.Config.Cloudinit or
// VM.Config.Network: the latter is needed anyway.
var (
	claimPrivileges   = []string{"VM.Allocate", "VM.Config.Memory", "VM.Config.Options"}
	reimagePrivileges = []struct{ privilege, why string }{
		{"VM.Audit", "read the node's VM"},
		{"VM.Allocate", "make and delete the VM that its disks are parked on"},
		{"VM.Config.Memory", "make the VM that its disks are parked on"},
		{"VM.Config.Options", "mark the VM, keep it from starting by itself meanwhile"},
		{"VM.Config.Disk", "hand disks over, make the blank system disk, set the boot order"},
		{"VM.Config.CDROM", "insert and eject the boot ISO"},
		{"VM.PowerMgmt", "stop and start the VM"},
	}
	// recreatePrivileges are those of a create with every setting that a token may write.
	recreatePrivileges = []struct{ privilege, why string }{
		{"VM.Allocate", "delete the VM and create it again"},
		{"VM.Config.CPU", "give the new VM its CPUs"},
		{"VM.Config.Memory", "give the new VM its memory"},
		{"VM.Config.HWType", "give the new VM its machine type, SMBIOS UUID and devices"},
		{"VM.Config.Network", "give the new VM its network cards"},
	}
)

// privilegeOf is what changing a setting of a VM needs on it (qemu-server, API2/Qemu.pm, check_vm_modify_config_perm).
func privilegeOf(setting string) string {
	bus := strings.TrimRight(setting, "0123456789")
	switch {
	case cluster.IsDiskKey(setting):
		return "VM.Config.Disk"
	case bus == "net":
		return "VM.Config.Network"
	case slices.Contains([]string{"cores", "sockets", "vcpus", "cpu", "cpuunits", "numa"}, setting):
		return "VM.Config.CPU"
	case slices.Contains([]string{"memory", "balloon", "shares"}, setting):
		return "VM.Config.Memory"
	case bus == "hostpci", slices.Contains([]string{"machine", "bios", "scsihw"}, setting):
		return "VM.Config.HWType"
	}
	return "VM.Config.Options"
}

func (n *Needs) shape(p planning.NodePlan) {
	vm := p.Found.VM
	if p.Strategy.From() == cluster.Nowhere && !p.Resume {
		n.config(shape.New(p.Wanted, p.VMID, "").Config)
		for _, d := range p.Wanted.Shape.Disks {
			n.add("/storage/"+d.Storage, "make the new disks", nil, "Datastore.AllocateSpace")
		}
		if pool := p.Wanted.Shape.Pool; pool != "" {
			n.add("/pool/"+pool, "make VMs in their pool", nil, "VM.Allocate")
		}
	}
	if len(p.VM) == 0 || vm == nil {
		return
	}
	if len(p.VM.At(shape.Off)) > 0 && (p.Strategy.KeepsVM() || p.Strategy.Reshapes()) {
		n.node(cluster.Reshape, p.Wanted, p.Found, nil)
	}
	at := []spot{spotOf(*vm)}
	for _, setting := range p.VM.Changed() {
		n.add("/vms", "change "+setting+" of the node's VM", at, privilegeOf(setting))
	}
	set, err := shape.Settings(*vm, p.Wanted.Shape, p.VM)
	if err != nil {
		return // the plan is refused
	}
	n.config(set)
	for _, d := range p.Wanted.Shape.Disks {
		on := d.Storage
		if have, err := cluster.ParseDisk(d.Key, vm.Config[d.Key]); err == nil {
			on = have.Storage()
		}
		if slices.Contains(p.VM.Changed(), d.Key) {
			n.add("/storage/"+on, "make and grow disks", nil, "Datastore.AllocateSpace")
		}
	}
	for _, d := range p.VM {
		switch {
		case d.Key == "pool":
			n.add("/pool/"+d.Wanted, "put the node's VM into its pool", nil, "Pool.Allocate")
			n.add("/vms", "put the node's VM into its pool", at, "VM.Allocate")
		case d.Key == "host" && d.When != shape.Never:
			n.add("/vms", "migrate the node's VM", at, "VM.Migrate")
		case strings.HasPrefix(d.Key, "ha "):
			n.add("/", "change what Proxmox HA has of VMs", nil, "Sys.Console")
		}
	}
}

// NeedsToPrune is what removing ISOs from those storages needs: everything for a run's claim,
// and VM.Audit on every VM of the Proxmox cluster. It includes what uploads ISOs there, because
// an entry that grants the rest at a storage overrides those above it.
func NeedsToPrune(isoStorages, diskStorages []string) Needs {
	var needs Needs
	needs.common(nil)
	needs.claim()
	needs.isos(isoStorages)
	needs.on(isoStorages, "delete ISOs", "Datastore.Allocate")
	needs.diskImages(diskStorages)
	needs.on(diskStorages, "delete disk images", "Datastore.Allocate")
	return needs
}

// NeedsToFree is what freeing old system disks on those storages needs, and deleting the
// parking VMs that then own nothing: both first lift the protection. Proxmox requires
// Datastore.AllocateSpace to free a disk (qemu-server, QemuServer.pm, try_deallocate_drive).
func NeedsToFree(storages []string, parked ...cluster.VM) Needs {
	var needs Needs
	needs.common(nil)
	needs.claim()
	needs.freeing(storages, parked)
	needs.add("/vms", "delete parking VMs that own nothing any more", vmsAnd(parked), "VM.Allocate")
	return needs
}

// NeedsToClear is what deleting scratch VMs of killed runs needs; they may still be running.
func NeedsToClear(scratch ...cluster.VM) Needs {
	var needs Needs
	needs.add("/vms", "stop and delete scratch VMs", vmsAnd(scratch), "VM.Allocate", "VM.PowerMgmt")
	needs.add("/vms", "lift the protection of scratch VMs", vmsAnd(scratch), "VM.Config.Options")
	return needs
}

// vmsAnd returns the spots of VMs in general, and of the given VMs, which may have entries of their own.
func vmsAnd(vms []cluster.VM) []spot {
	return append([]spot{{path: "/vms", below: true}}, cluster.Each(vms, spotOf)...)
}

func spotOf(vm cluster.VM) spot { return spot{path: fmt.Sprintf("/vms/%d", vm.ID), or: poolOf(vm)} }

// poolOf returns the path of the VM's pool; "" if the VM is in none.
func poolOf(vm cluster.VM) string {
	if vm.Pool == "" {
		return ""
	}
	return "/pool/" + vm.Pool
}

func (n *Needs) freeing(storages []string, parked []cluster.VM) {
	if len(storages) == 0 {
		return
	}
	all := vmsAnd(parked)
	n.add("/vms", "free old system disks", all, "VM.Config.Disk")
	n.add("/vms", "lift the protection of parking VMs, write their records", all, "VM.Config.Options")
	n.on(storages, "free old system disks", "Datastore.AllocateSpace")
	n.on(storages, "see that they are gone", "Datastore.Audit")
}

// NeedsToPublish is what uploading ISOs to those storages needs, and finding out for which hosts.
func NeedsToPublish(isoStorages, diskStorages []string) Needs {
	var needs Needs
	needs.add("/", "read quorum, HA resources and backup jobs", nil, "Sys.Audit")
	needs.isos(isoStorages)
	needs.diskImages(diskStorages)
	return needs
}

// NeedsToRehearse is what the trials of a plan need for their scratch VMs. A roll by recreate also needs most of it.
func NeedsToRehearse(p planning.Plan) Needs {
	var needs Needs
	for _, t := range p.Trials {
		needs.add("/", "see the memory of the hosts", []spot{{path: "/nodes/" + t.Host}}, "Sys.Audit")
		needs.scratch(t)
	}
	return needs
}

// scratchPrivileges are those for creating a scratch VM with its settings, and for using and deleting it.
var scratchPrivileges = []string{
	"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

func (n *Needs) scratch(t planning.Trial) {
	const why = "try out on scratch VMs what nodes will boot"
	n.add("/vms", why, []spot{{path: "/vms", below: true, or: poolOf(*t.Model.Found.VM)}}, scratchPrivileges...)
	storages, config, err := roll.ScratchTakes(t)
	n.on(storages, "make the drives of scratch VMs", "Datastore.AllocateSpace")
	n.on(storages, "see the room for them", "Datastore.Audit")
	images := t.Model.Wanted.ISOStorages
	if t.Disk != "" {
		images = t.Model.Wanted.DiskStorages
	}
	n.on(images, "give scratch VMs the image that they boot", "Datastore.Audit")
	if err != nil {
		return // the node is refused
	}
	for _, key := range []string{"net0", "cpu"} {
		if v := config[key]; v != "" {
			n.config(map[string]string{key: v})
		}
	}
}

// agentPrivileges each let a token query guest agents. Before Proxmox VE 9 there is only the last one.
var agentPrivileges = []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted", "VM.Monitor"}

// MayAskAgents says whether the token may query the guest agents of VMs that do not exist yet;
// missing is what it lacks, in words.
func MayAskAgents(ctx context.Context, access cluster.Access) (missing string, err error) {
	has, err := access.Permissions(ctx, "/vms")
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(agentPrivileges, func(p string) bool { return has[p] }) { // where it propagates
		return "", nil
	}
	return fmt.Sprintf("%s on /vms (before Proxmox VE 9: %s)", agentPrivileges[0], agentPrivileges[len(agentPrivileges)-1]), nil
}
