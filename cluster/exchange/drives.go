package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// compareDisks checks that the VM has exactly the drives that it had before. RequireAlone checks, right before the
// VM is started, that no other VM uses one of them.
func (r *Replace) compareDisks(ctx context.Context) error {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil:
		return err
	case !found:
		return fault.DiskMismatch.Refusedf("VM %d is gone", r.VM.ID)
	}
	vm.Pods = r.VM.Pods
	before, err := r.VM.Disks()
	if err != nil {
		return err
	}
	if err := r.knowPods(ctx, &vm, before); err != nil {
		return err
	}
	have, err := vm.Disks()
	if err != nil {
		return err
	}
	return errors.Join(append(r.missingDrives(vm, before, have), r.addedDrives(vm, before, have)...)...)
}

// knowPods asks which added drives of a running VM are pods' volumes, which come and go. If Pods is nil, it uses
// what was remembered.
func (r *Replace) knowPods(ctx context.Context, vm *cluster.VM, before []cluster.Disk) error {
	have, _ := vm.Disks() // an unreadable drive is refused next
	if !vm.Running || r.Pods == nil || !slices.ContainsFunc(have, func(d cluster.Disk) bool { _, had := cluster.FindDrive(before, d.Key); return !had && vm.Doubtful(d) }) {
		return nil
	}
	return vm.KnowPods(ctx, r.Pods)
}

// missingDrives lists the drives that the VM lacks, or that differ from before.
func (r *Replace) missingDrives(vm cluster.VM, before, have []cluster.Disk) (problems []error) {
	const again = "set that right, then run the same command again"
	for _, d := range before {
		h, there := cluster.FindDrive(have, d.Key)
		switch {
		case d.CDROM:
		case !there:
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s has no %s, which was %s", vm, d.Key, d.Value()), "attach it again, as it was, then run the same command again"))
		case !r.isSystem(d.Key) && !r.sameOptions(d.Key, h.Options, d.Options):
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s of %s has options %v, before: %v", d.Key, vm, h.Options, d.Options), again))
		case !r.movesDisk(d.Key) && h.Volid != d.Volid && (d.Owner != vm.ID || h.Owner != vm.ID): // the VM's own disk may have been moved to another storage
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s of %s is %s, before: %s", d.Key, vm, h.Volid, d.Volid), again))
		}
	}
	return problems
}

// movesDisk reports whether the exchange changes a disk's volid.
func (r *Replace) movesDisk(key string) bool {
	return slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool { return d.Key == key && d.Holder == 0 })
}

// addedDrives lists the drives that the VM did not have before. It ignores pods' volumes on a running VM,
// which come and go, and any unusedN, which no guest sees.
func (r *Replace) addedDrives(vm cluster.VM, before, have []cluster.Disk) (problems []error) {
	for _, h := range have {
		_, had := cluster.FindDrive(before, h.Key)
		switch {
		case h.CDROM || had || r.shapeAdds(h.Key) || h.Detached() || h.CSI() && vm.Running:
		case h.CSI():
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s has %s (%s), a pod's volume, although it was drained", vm, h.Key, h.Volid),
				"wait until its driver has taken it away: kubectl get volumeattachments says whose it is. Then run the same command again"))
		default:
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s has %s (%s), which the old one had not", vm, h.Key, h.Volid),
				"take it out of VM %d: %s; then run the same command again; nothing of it was touched", vm.ID, takeOut(vm, h)))
		}
	}
	return problems
}

// Others is the state of Proxmox that shows who else uses a VM's disks.
type Others struct {
	vms      []cluster.VM
	storages []cluster.Storage
}

// ReadOthers reads Others now.
func ReadOthers(ctx context.Context, px cluster.Inventory, id cluster.VMID) (o Others, err error) {
	err = wait.All(
		func() (err error) {
			o.vms, err = px.VMs(ctx)
			if _, away := errors.AsType[*cluster.HostsAway](err); err != nil && !away { // the plan has already reported hosts that can't be read
				return err
			}
			return nil
		},
		func() (err error) {
			o.storages, err = px.Storages(ctx)
			return err
		},
	)
	return o, fault.Prefix(fmt.Sprintf("see who else uses the disks of VM %d", id), err)
}

// RequireAlone refuses to start a VM with a disk that another VM could write to at the same time: Proxmox lets
// two VMs run with one volume (pve-qemu disables QEMU's image locking).
func (o Others) RequireAlone(ctx context.Context, px cluster.VMReader, vm cluster.VM) error {
	have, err := vm.Disks()
	if err != nil {
		return err
	}
	var problems []error
	c := strategy.Candidate{VM: vm, Observation: observe.Observation{VMs: slices.Clone(o.vms), Storages: o.storages}}
	asked := map[cluster.VMID]bool{}
	for _, d := range have {
		if d.CDROM || d.Owner == vm.ID || d.Owner == 0 || asked[d.Owner] {
			continue
		}
		asked[d.Owner] = true
		c.Holder = cmp.Or(c.Holder, d.Owner)
		holder, err := px.VM(ctx, d.Owner)
		if i := slices.IndexFunc(c.Observation.VMs, func(vm cluster.VM) bool { return vm.ID == d.Owner }); i >= 0 && err == nil {
			c.Observation.VMs[i].Running = holder.Running // the list shows a VM that has just stopped as running
		}
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s of %s is %s, but VM %d, whose that is, does not exist", d.Key, vm, d.Volid, d.Owner),
				"see whether storage %s still has it: a VM's volumes are deleted with it", d.Storage()))
		case err != nil:
			return errors.Join(append(problems, fmt.Errorf("look up VM %d: %w", d.Owner, err))...)
		case holder.Running:
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s, whose %s is %s of %s, is running", holder, d.Volid, d.Key, vm), "switch VM %d off, then run the same command again", d.Owner))
		}
	}
	if doubled := c.Doubled(); len(doubled) > 0 {
		problems = nil
		for _, twice := range doubled {
			problems = append(problems, fault.WithHint(fault.DiskMismatch.Refusedf("%s: %s", vm, twice.Text), "then run the same command again"))
		}
	}
	return errors.Join(problems...)
}

// takeOut says how to remove a drive from a VM without losing its volume. Proxmox frees a volume of the VM when the
// VM, or the unusedN that the drive became, is deleted.
func takeOut(vm cluster.VM, d cluster.Disk) string {
	if d.Owner == vm.ID {
		return fmt.Sprintf("qm disk move %d %s --target-vmid OTHER --target-disk KEY gives it to a VM that stays, on %s (qm set --delete of an unusedN would free it for good)", vm.ID, d.Key, vm.Host)
	}
	if vm.Running {
		return fmt.Sprintf("qm config %d shows it; it may be in use while the VM runs: shut that down, and run the same command again", vm.ID)
	}
	if vm.Config["protection"] == "1" {
		return fmt.Sprintf("qm set %d --protection 0 && qm set %[1]d --delete %s leaves %s with its owner", vm.ID, d.Key, d.Volid)
	}
	return fmt.Sprintf("qm set %d --delete %s leaves %s with its owner", vm.ID, d.Key, d.Volid)
}

// foundElsewhere finds a disk that neither VM has, by its volid, or by its serial unless another VM owns that disk.
// More than one match makes the answer uncertain.
func foundElsewhere(d parking.ParkedDisk, vms []cluster.VM) (at, volid string) {
	serial := (cluster.Disk{Options: cluster.SplitOptions(d.Options)}).Option("serial")
	var found []string
	for _, vm := range vms {
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			disk, err := cluster.ParseDisk(key, vm.Config[key])
			if err != nil || disk.CDROM || disk.Volid != d.Volid && (serial == "" || d.Holder != 0 || disk.Option("serial") != serial) {
				continue
			}
			volid, found = disk.Volid, append(found, cluster.PlaceOf(vm.ID, key))
		}
	}
	switch {
	case len(found) == 0 && d.Holder != 0:
		return fmt.Sprintf("named by no VM: it was of VM %d", d.Holder), d.Volid
	case len(found) == 0:
		return "named by no VM under its old name or serial: see whether the storage still has it", d.Volid
	case len(found) == 1:
		return "now " + found[0], volid
	}
	return "perhaps one of " + strings.Join(found, ", "), d.Volid
}

// Located adds to a failure where each disk is, as far as Proxmox shows.
func (r *Replace) Located(ctx context.Context, err error) error {
	vm, errVM := r.Proxmox.VM(ctx, r.VM.ID)
	park, errPark := r.Proxmox.VM(ctx, r.Parking)
	if rec, is, _ := parking.ReadRecord(park); is && rec.VMID != r.VM.ID {
		park, errPark = cluster.VM{}, fmt.Errorf("%s is another node's: %w", park, cluster.ErrNotFound)
	}
	for _, e := range []error{errVM, errPark} {
		if e != nil && !errors.Is(e, cluster.ErrNotFound) {
			return err // Proxmox can't be read: there is nothing to add
		}
	}
	var gone []string
	if errVM != nil {
		gone = append(gone, fmt.Sprintf("VM %d does not exist", r.VM.ID))
	}
	if errPark != nil {
		gone = append(gone, fmt.Sprintf("parking VM %d does not exist", r.Parking))
	}
	if errVM == nil && errPark == nil && len(r.Disks) > 0 {
		if why := cluster.OnOtherHosts(&vm, park, r.VM.Host, nil, r.VM.ID); why != "" {
			gone = append(gone, why)
		}
	}
	var others []cluster.VM
	where := map[string][]string{}
	var order []string
	for _, d := range r.Disks {
		at, volid := whereabouts(d, r.Serial, vm, park)
		if at == "" && others == nil {
			others, _ = r.Proxmox.VMs(ctx) // best effort: a VM that can't be read is not searched
		}
		if at == "" {
			at, volid = foundElsewhere(d, others)
		}
		if !slices.Contains(order, at) {
			order = append(order, at)
		}
		where[at] = append(where[at], d.Key+" ("+volid+")")
	}
	gone = append(gone, cluster.Each(order, func(at string) string { return strings.Join(where[at], ", ") + " " + at })...)
	return fault.WithHint(err, "where the disks of VM %d are: %s", r.VM.ID, strings.Join(gone, "; "))
}

// whereabouts returns which of the two VMs of an exchange has a disk; at is "" if neither has it.
func whereabouts(d parking.ParkedDisk, serial string, vm, park cluster.VM) (at, volid string) {
	for _, place := range []struct {
		vm  cluster.VM
		key string
		as  string
	}{{vm, d.Key, "on VM %d"}, {park, d.ParkKey, "parked on VM %d"}} {
		disk, err := cluster.ParseDisk(place.key, place.vm.Config[place.key])
		if err != nil || d.System && disk.Option("serial") == serial {
			continue
		}
		return fmt.Sprintf(place.as, place.vm.ID), disk.Volid
	}
	return "", d.Volid
}

// DiskNames lists disks by key and volume, for a message.
func DiskNames(disks []cluster.Disk) string {
	names := cluster.Each(disks, func(d cluster.Disk) string { return fmt.Sprintf("%s (%s)", d.Key, d.Volid) })
	return strings.Join(names, ", ")
}

// ForeignDisks lists the drives of vm that mem does not record: pods' volumes, which it never
// records, and drives that were added later.
func ForeignDisks(vm cluster.VM, mem parking.Memory) ([]cluster.Disk, error) {
	have, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	before, err := mem.Disks()
	if err != nil {
		return nil, err
	}
	var foreign []cluster.Disk
	for _, d := range have {
		if _, had := cluster.FindDrive(before, d.Key); !d.CDROM && (!had || d.CSI()) {
			foreign = append(foreign, d)
		}
	}
	return foreign, nil
}
