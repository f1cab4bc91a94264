package exchange

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// blankDisk returns the value that makes Proxmox allocate a disk like d: same storage, format and options, with our
// serial and WWN.
func (r *Replace) blankDisk(d cluster.Disk) string {
	blank := cluster.Disk{
		Volid:   d.Storage() + ":" + strconv.FormatFloat(float64(r.wantedBytes(d))/(1<<30), 'f', -1, 64),
		Options: r.optionsOf(d),
	}
	return blank.Value()
}

// wantedBytes returns the size of the new system disk in place of d.
func (r *Replace) wantedBytes(d cluster.Disk) uint64 {
	return max(d.SizeBytes(), uint64(max(r.SystemGiB, 0))<<30)
}

// optionsOf returns the options of the new system disk in place of d.
func (r *Replace) optionsOf(d cluster.Disk) []string {
	options := cluster.WithFormat(cluster.WithoutOption(d, "size", "format"))
	return cluster.Disk{Key: d.Key, Options: options}.Named(r.Serial)
}

// create creates the VM. Callers have just read quorum.
func (r *Replace) create(ctx context.Context, config map[string]string) error {
	if err := r.Proxmox.CreateVM(ctx, r.VM.Host, r.VM.ID, config); err != nil {
		return fmt.Errorf("create VM %d on %s: %w", r.VM.ID, r.VM.Host, err)
	}
	return nil
}

func (r *Replace) createVM(ctx context.Context) error {
	var iso string
	err := wait.All(
		func() (err error) {
			iso, err = r.bootISO(ctx)
			return err
		},
		func() error { return cluster.RequireQuorum(ctx, r.Proxmox) },
	)
	if err != nil {
		return err
	}
	config, err := r.newConfig(iso)
	if err != nil {
		return err
	}
	return r.create(ctx, config)
}

// bootISO returns the volid of the boot ISO; "" if the system disk is prepared.
func (r *Replace) bootISO(ctx context.Context) (string, error) {
	if r.Prepared != "" {
		return "", nil
	}
	return r.ISO(ctx)
}

// requireMakeable refuses an exchange that would leave nothing to boot, or whose new VM could not be described.
func (r *Replace) requireMakeable(ctx context.Context) error {
	if r.Prepared != "" {
		if _, err := r.Image(ctx); err != nil {
			return err
		}
	}
	iso, err := r.bootISO(ctx)
	if err != nil {
		return err
	}
	_, err = r.newConfig(iso)
	return err
}

func (r *Replace) created(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil || !found || vm.MadeBy() != r.Run {
		return "", err
	}
	return fmt.Sprintf("%s was made by this run", vm), nil
}

func (r *Replace) isSystem(key string) bool {
	return slices.ContainsFunc(r.Disks, func(d parking.ParkedDisk) bool { return d.System && d.Key == key })
}

// marked returns the VM's own description with the run's mark.
func (r *Replace) marked() (string, error) {
	text := parking.MarkDescription(r.VM.Config["description"], r.Run, r.Build)
	if n := len([]rune(text)); n > cluster.MaxDescription {
		return "", fault.ParkedHalf.Refusedf("%s: with the run's mark its description has %d characters, Proxmox allows %d", r.VM, n, cluster.MaxDescription)
	}
	return text, nil
}

// newConfig returns the remembered configuration with a blank system disk and the boot ISO in the CD drive; see
// oldConfig. Without an ISO it has neither: a prepared system disk comes from the parking VM.
func (r *Replace) newConfig(iso string) (map[string]string, error) {
	config, disks, err := r.oldConfig()
	if err != nil {
		return nil, err
	}
	system, err := r.systemDisk(disks)
	if err != nil {
		return nil, err
	}
	if cd := cluster.CDKey(r.VM.Config, disks); iso != "" {
		config[system.Key] = r.blankDisk(system)
		config[cd] = iso + ",media=cdrom"
		config["boot"] = bootOrder(r.VM.Config["boot"], system.Key, cd)
	} else if r.VM.Config[cd] != "" {
		config[cd] = "none,media=cdrom"
	}
	if r.Blank != nil {
		config[r.Blank.Key] = r.Blank.Value
	}
	if r.Strategy.From() == cluster.Nowhere {
		maps.Copy(config, shape.Firmware(r.VM, system.Storage()))
	}
	r.ejectMedia(config)
	return config, nil
}

// Carried returns the settings, without disks, with which a VM is created again. Tags are set at the end: where
// datacenter.cfg restricts tags, Proxmox refuses them to a create, but not to a change of the settings (qemu-server
// 9.2, API2/Qemu.pm, create_vm passes an empty hash as the tags before).
func Carried(vm cluster.VM) map[string]string {
	config := cluster.OldSettings(vm)
	delete(config, "tags")
	return config
}

// oldConfig returns the remembered configuration with the run's mark and without disks, which attach returns. Until
// the node is healthy, onboot is off and the VM is protected: a delete has no digest, so a duplicate or unanswered
// delete of the old VM, carried out late, would otherwise destroy this VM.
func (r *Replace) oldConfig() (map[string]string, []cluster.Disk, error) {
	disks, err := r.VM.Disks()
	if err != nil {
		return nil, nil, err
	}
	config := Carried(r.VM)
	config["onboot"], config["protection"] = "0", "1"
	config["description"], err = r.marked()
	return config, disks, err
}

func (r *Replace) systemDisk(disks []cluster.Disk) (cluster.Disk, error) {
	i := slices.IndexFunc(disks, func(d cluster.Disk) bool { return r.isSystem(d.Key) })
	if i < 0 {
		return cluster.Disk{}, fault.ParkedHalf.Refusedf("%s: its record names no system disk", r.VM)
	}
	return disks[i], nil
}

// bootOrder puts the system disk first and the CD drive second: a blank disk does not boot, and an installed one takes
// precedence over an ISO still in the drive. cd is "" if there is no CD drive to boot from.
func bootOrder(old, system, cd string) string {
	order := []string{system}
	if cd != "" {
		order = append(order, cd)
	}
	for _, key := range cluster.BootDevices(old) {
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
	}
	return "order=" + strings.Join(order, ";")
}

// systemGiven is the goal of GiveSystem.
func (r *Replace) systemGiven(ctx context.Context) (string, error) {
	read := r.Current
	if r.Prepared != "" {
		read = r.Powered
	}
	vm, disk, there, err := r.systemNow(read(ctx))
	if err != nil || !there || disk.Option("serial") != r.Serial || vm.MadeBy() != r.Run {
		return "", err
	}
	if !vm.Running && !r.isComplete(vm, disk) { // Current counts a VM as running
		return "", nil // only the hand-over is done
	}
	return fmt.Sprintf("%s of %s is blank or was installed by this run", disk.Key, vm), nil
}

// GiveSystem gives the VM, which is off, its new system disk: the prepared one, or a blank one with the boot ISO.
func (r *Replace) GiveSystem(ctx context.Context) error {
	if r.Prepared != "" {
		return r.givePrepared(ctx)
	}
	return r.giveBlank(ctx)
}

// giveBlank inserts the boot ISO first. Then it allocates the disk and sets the run's mark in one
// request, so a second run redoes whatever a crash interrupted.
func (r *Replace) giveBlank(ctx context.Context) error {
	iso, err := r.ISO(ctx)
	if err != nil {
		return err
	}
	disks, err := r.VM.Disks()
	if err != nil {
		return err
	}
	system, err := r.systemDisk(disks)
	if err != nil {
		return err
	}
	cd := cluster.CDKey(r.VM.Config, disks)
	media := map[string]string{cd: iso + ",media=cdrom", "onboot": "0"}
	r.ejectMedia(media)
	if err := r.setUp(ctx, media); err != nil {
		return err
	}
	_, now, there, err := r.systemNow(r.Current(ctx))
	if err != nil {
		return err
	}
	description, err := r.marked()
	if err != nil {
		return err
	}
	// A boot order may name only devices that exist or that the same request adds (qemu-server, API2/Qemu.pm,
	// update_vm_api).
	set := map[string]string{"description": description, "boot": bootOrder(r.VM.Config["boot"], system.Key, cd)}
	if r.Strategy.VM() == cluster.VMAgain { // dropDangling may have lifted the protection
		set["protection"] = "1"
	}
	if r.Blank != nil {
		set[r.Blank.Key] = r.Blank.Value
	}
	switch {
	case !there:
		set[system.Key] = r.blankDisk(system)
	case now.Option("serial") != r.Serial:
		return fault.ParkedHalf.Refusedf("%s of VM %d is %s: someone else put it there after the system disk was parked", system.Key, r.VM.ID, now.Volid)
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return r.setUp(ctx, set)
}

// systemRestored is the goal of a rollback's exchange: the kept disk is the system disk again.
func (r *Replace) systemRestored(ctx context.Context) (string, error) {
	if r.Restore == nil {
		return "", r.nothingKept()
	}
	vm, disk, there, err := r.systemNow(r.Powered(ctx))
	if err != nil || !there || vm.MadeBy() != r.Run || !cluster.SameOptions(disk.Options, cluster.SplitOptions(r.Restore.Options)) || !vm.BootsFirst(disk.Key) && !vm.Running {
		return "", err
	}
	return fmt.Sprintf("%s of %s is %s again", disk.Key, vm, disk.Volid), nil
}

// nothingKept is the error of a rollback whose record names no kept disk.
func (r *Replace) nothingKept() error {
	return fault.WithHint(fault.NoWayBack.Refusedf("the record of VM %d names no kept system disk that could come back", r.VM.ID), "%s", cluster.PreviousLock)
}

// restoreSystem gives a kept system disk to a VM that stays.
func (r *Replace) restoreSystem(ctx context.Context) error {
	if r.Restore == nil {
		return r.nothingKept()
	}
	description, err := r.marked()
	if err != nil {
		return err
	}
	if err := r.setUp(ctx, map[string]string{"description": description, "onboot": "0"}); err != nil {
		return err
	}
	disks, err := r.VM.Disks()
	if err != nil {
		return err
	}
	system, err := r.systemDisk(disks)
	if err != nil {
		return err
	}
	back := parking.ParkedDisk{Key: system.Key, ParkKey: r.Restore.Key, Options: r.Restore.Options, System: true}
	if err := r.attach(ctx, back); err != nil {
		return err
	}
	return r.setUp(ctx, map[string]string{"boot": bootOrder(r.VM.Config["boot"], system.Key, "")})
}

// hasSystem is the goal of a step that only checks that there is a system disk; a prepared disk was handed over whole.
func (r *Replace) hasSystem(ctx context.Context) (string, error) {
	read := r.Current
	if r.Prepared != "" {
		read = r.Powered
	}
	vm, disk, there, err := r.systemNow(read(ctx))
	if err != nil || !there || r.Prepared != "" && !vm.Running && !r.isComplete(vm, disk) {
		return "", err
	}
	return fmt.Sprintf("%s of %s is %s", disk.Key, vm, disk.Volid), nil
}

// systemNow returns the disk in the place of the system disk, on the VM as read; there is false while that place is
// empty.
func (r *Replace) systemNow(now cluster.VM, found bool, errRead error) (vm cluster.VM, disk cluster.Disk, there bool, err error) {
	vm, err = now, errRead
	if err != nil || !found {
		return vm, cluster.Disk{}, false, err
	}
	for _, d := range r.Disks {
		value, taken := vm.Config[d.Key]
		if !d.System || !taken {
			continue
		}
		disk, err = cluster.ParseDisk(d.Key, value)
		if err == nil && disk.Owner != vm.ID {
			err = fault.ParkedHalf.Refusedf("%s of %s is %s, which is not its own: someone else changed it", d.Key, vm, disk.Volid)
		}
		return vm, disk, true, err
	}
	return vm, cluster.Disk{}, false, nil
}

func (r *Replace) setUp(ctx context.Context, set map[string]string) error {
	vm, err := r.off(ctx)
	if err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("set up %s", vm), r.Proxmox.SetConfig(ctx, vm, set, nil))
}
