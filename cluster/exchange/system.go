package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
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

func (r *Replace) wantedBytes(d cluster.Disk) uint64 {
	return max(d.SizeBytes(), uint64(max(r.SystemGiB, 0))<<30)
}

func (r *Replace) optionsOf(d cluster.Disk) []string {
	options := cluster.WithFormat(cluster.WithoutOption(d, "size", "format"))
	return cluster.Disk{Key: d.Key, Options: options}.Named(r.Serial)
}

// create creates the VM. Callers have just read quorum.
func (r *Replace) create(ctx context.Context, config map[string]string) error {
	err := r.Proxmox.CreateVM(ctx, r.VM.Host, r.VM.ID, config)
	return fault.Prefix(fmt.Sprintf("create VM %d on %s", r.VM.ID, r.VM.Host), err)
}

func (r *Replace) createVM(ctx context.Context) error {
	var iso string
	err := wait.All(
		wait.Into(&iso, func() (string, error) { return r.bootISO(ctx) }),
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

func (r *Replace) bootISO(ctx context.Context) (string, error) {
	if r.Prepared != "" {
		return "", nil
	}
	return r.ISO(ctx)
}

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
	d, known := cluster.Find(disks, func(d cluster.Disk) bool { return r.isSystem(d.Key) })
	if !known {
		return d, fault.ParkedHalf.Refusedf("%s: its record names no system disk", r.VM)
	}
	return d, nil
}

// bootOrder puts the system disk first and the CD drive second: a blank disk does not boot, and an installed one takes
// precedence over an ISO still in the drive. cd is "" if there is no CD drive to boot from.
func bootOrder(old, system, cd string) string {
	var order []string
	for _, key := range append([]string{system, cd}, cluster.BootDevices(old)...) {
		if key != "" && !slices.Contains(order, key) {
			order = append(order, key)
		}
	}
	return "order=" + strings.Join(order, ";")
}

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

func (r *Replace) nothingKept() error {
	return fault.WithHint(fault.NoWayBack.Refusedf("the record of VM %d names no kept system disk that could come back", r.VM.ID), "%s", cluster.PreviousLock)
}

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
	system, err := r.oldSystem()
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

// RestoreSteps restore the settings and HA, whichever system disk the VM has.
func (r *Replace) RestoreSteps() []step.Step {
	return []step.Step{
		{ID: "restore-settings", Title: "restore onboot and protection", Skip: r.settingsRestored, Do: r.restoreSettings},
		{ID: "restore-ha", Title: "put the VM back under Proxmox HA", Skip: r.haRestored, Do: r.restoreHA},
	}
}

// EjectStep ejects every boot ISO of recast from the drives of a VM.
func EjectStep(px cluster.Proxmox, id cluster.VMID) step.Step {
	return step.Step{
		ID: "eject", Title: "eject the boot ISO",
		Skip: func(ctx context.Context) (string, error) {
			_, set, err := withoutBootISO(ctx, px, id)
			if err != nil || len(set) > 0 {
				return "", err
			}
			return "no boot ISO in any drive", nil
		},
		Do: func(ctx context.Context) error {
			vm, set, err := withoutBootISO(ctx, px, id)
			if err != nil {
				return err
			}
			return fault.Prefix("eject from "+vm.String(), px.SetConfig(ctx, vm, set, nil))
		},
	}
}

func withoutBootISO(ctx context.Context, px cluster.Proxmox, id cluster.VMID) (cluster.VM, map[string]string, error) {
	vm, err := px.VMConfig(ctx, id)
	if err != nil {
		return vm, nil, fmt.Errorf("look up VM %d: %w", id, err)
	}
	disks, err := vm.Disks()
	set := map[string]string{}
	for _, d := range disks {
		if _, iso := cluster.BootISO(d); iso {
			set[d.Key] = "none,media=cdrom"
		}
	}
	return vm, set, err
}

// toRestore returns which of those settings to restore, and in del which to delete because the VM did not have them
// before.
func (r *Replace) toRestore(ctx context.Context) (vm cluster.VM, set map[string]string, del []string, err error) {
	vm, err = r.Proxmox.VMConfig(ctx, r.VM.ID)
	if err != nil {
		return vm, nil, nil, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
	}
	set = map[string]string{}
	for _, key := range parking.ChangedSettings(r.VM, r.Blank) {
		was, had := r.VM.Config[key]
		is, has := vm.Config[key]
		switch {
		case key == "tags" && has: // changed meanwhile: only a VM that recast created has no tags
		case had && was != is:
			set[key] = was
		case !had && has:
			del = append(del, key)
		}
	}
	media, err := r.mediaToPutBack(ctx, vm)
	maps.Copy(set, media)
	return vm, set, del, err
}

func (r *Replace) settingsRestored(ctx context.Context) (string, error) {
	_, set, del, err := r.toRestore(ctx)
	if err != nil || len(set)+len(del) > 0 {
		return "", err
	}
	return strings.Join(parking.ChangedSettings(r.VM, r.Blank), " and ") + " are as before", nil
}

// restoreSettings restores the settings. It lifts the protection only when no late delete can come any more.
func (r *Replace) restoreSettings(ctx context.Context) error {
	vm, set, del, err := r.toRestore(ctx)
	if err != nil {
		return err
	}
	if _, other := set["protection"]; other || slices.Contains(del, "protection") {
		if err := r.record().await(ctx, r.saying("finish/restore-settings"), SentDelete); err != nil { // a late one would delete the VM if it is off
			return err
		}
	}
	return fault.Prefix("restore "+strings.Join(parking.ChangedSettings(r.VM, r.Blank), " and ")+" of "+vm.String(), r.Proxmox.SetConfig(ctx, vm, set, del))
}

func (r *Replace) haRestored(ctx context.Context) (string, error) {
	if r.ha == nil {
		return "Proxmox HA did not manage it", nil
	}
	ha, err := r.Proxmox.HAResource(ctx, r.VM.ID)
	if err != nil || ha == nil {
		return "", fault.Prefix(fmt.Sprintf("read what Proxmox HA has of VM %d", r.VM.ID), err)
	}
	_, rec, err := r.record().read(ctx)
	if err != nil || r.record().mayCome(rec, cluster.SentRemoveHA) {
		return "", err
	}
	return "Proxmox HA manages it again", nil
}

// restoreHA runs once the VM runs: HA would start a stopped VM, on any host it chooses.
func (r *Replace) restoreHA(ctx context.Context) error {
	err := r.record().await(ctx, r.saying("finish/restore-ha"), cluster.SentRemoveHA) // a late removal would undo this
	if err == nil {
		err = r.Sending(ctx, cluster.SentAddHA, LateQueue, func(ctx context.Context) error { return r.Proxmox.AddHA(ctx, *r.ha) })
	}
	return fault.Prefix(fmt.Sprintf("put VM %d back under Proxmox HA", r.VM.ID), err)
}

func (r *Replace) kept(ctx context.Context) (string, error) {
	park, rec, err := r.record().read(ctx)
	if err != nil || rec.Open {
		return "", err
	}
	return parking.Parking{VM: park, Record: rec}.KeptBy(r.Strategy), nil
}

// keep closes the record: the old system disk stays parked, for a rollback.
func (r *Replace) keep(ctx context.Context) error {
	park, err := r.record().vm(ctx)
	if err != nil {
		return err
	}
	return r.closed(r.record().change(ctx, park, func(rec *parking.Record) {
		r.forgetPrepared(park, rec)
		if back := rec.Restore; back != nil {
			rec.Kept = slices.DeleteFunc(rec.Kept, func(k parking.KeptDisk) bool { return k.Key == back.Key })
		}
		for _, d := range rec.Disks {
			if d.System {
				kept := r.old
				kept.Key, kept.Left, kept.Nth, kept.Replaced = d.ParkKey, rec.Left, rec.Nth, time.Now().UTC().Truncate(time.Millisecond)
				rec.Kept = append(rec.Kept, kept)
			}
		}
		for i, k := range rec.Kept {
			rec.Kept[i].Going = k.Going || slices.ContainsFunc(r.Frees, func(f parking.FreePlan) bool { return f.Key == k.Key && f.Run == k.Run })
		}
		rec.Close()
	}))
}

// KeepAll closes the record of a removed node: all its disks stay parked. going says that they are freed next, and so
// are blank disks that it was given before: a surge node's installation may have been cut off.
func (r *Replace) KeepAll(ctx context.Context, going bool) error {
	return r.record().update(ctx, func(rec *parking.Record) {
		for _, d := range rec.Disks {
			if d.Holder != 0 {
				continue // the holder VM has it
			}
			kept := parking.KeptDisk{Run: rec.Run, Slot: d.Key, Options: d.Options}
			if d.System {
				kept = r.old
			}
			kept.Key, kept.Nth, kept.Removed, kept.Going = d.ParkKey, rec.Nth, true, going
			rec.Kept = append(rec.Kept, kept)
		}
		for i := range rec.Kept {
			rec.Kept[i].Removed = true // also older system disks of the node
			rec.Kept[i].Going = rec.Kept[i].Going || going && rec.Kept[i].GivenUp
		}
		rec.Close()
	})
}

// mediaToPutBack returns the other media that are not in their drives, by drive. It omits media
// that no longer exist: Proxmox rejects those.
func (r *Replace) mediaToPutBack(ctx context.Context, vm cluster.VM) (map[string]string, error) {
	media, err := r.VM.OtherMedia()
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for key, was := range media {
		if is, err := cluster.ParseDisk(key, vm.Config[key]); err != nil || is.Volid != "none" {
			continue // the medium is in the drive, or someone inserted another one
		}
		there, err := r.Proxmox.HasVolume(ctx, vm.Host, was.Volid)
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", was.Volid, err)
		}
		if there {
			set[key] = was.Value()
		}
	}
	return set, nil
}

func (r *Replace) ejectMedia(set map[string]string) {
	media, _ := r.VM.OtherMedia() // drives that can't be read were refused
	for key := range media {
		set[key] = "none,media=cdrom"
	}
}

// Proxmox deletes a VM's firewall with the VM. The parking VM, which never runs, keeps a copy. So recast learns what
// Proxmox would reject before it touches the node, and a person who undoes the exchange by hand has a file to copy.

const rememberStep = "remember"

// rememberFirewall returns the sum of the firewall of a VM that is to be deleted; see Replace.Firewall.
func rememberFirewall(ctx context.Context, px cluster.TieReader, vm cluster.VM, s cluster.Strategy) (string, error) {
	if s.VM() != cluster.VMAgain {
		return "", nil
	}
	f, err := px.Firewall(ctx, vm)
	return f.Sum(), fault.Prefix("read the firewall of "+vm.String(), err)
}

// FirewallKept reports whether the parking VM has the firewall and no earlier request can still change it.
func (r *Replace) FirewallKept(ctx context.Context) (bool, error) {
	if r.Firewall == "" {
		return true, nil
	}
	park, rec, err := r.record().read(ctx)
	if err != nil || r.record().mayCome(rec, cluster.SentFirewall) {
		return false, err
	}
	kept, err := r.Proxmox.Firewall(ctx, park)
	return kept.Sum() == r.Firewall, fault.Prefix("read the firewall of "+park.String(), err)
}

// KeepFirewall copies the VM's present firewall to the parking VM.
func (r *Replace) KeepFirewall(ctx context.Context) error {
	if kept, err := r.FirewallKept(ctx); err != nil || kept {
		return err
	}
	return r.copyFirewall(ctx, rememberStep, r.VM, r.Parking)
}

// copyFirewall copies the firewall of one VM to another, if it is still the remembered one. It first waits
// for earlier unanswered requests, which would overwrite it. A VM that has the firewall after that wait needs nothing of
// the first VM: a run that was killed while it wrote to the parking VM left half a firewall there.
func (r *Replace) copyFirewall(ctx context.Context, id string, from cluster.VM, to cluster.VMID) error {
	if err := r.record().await(ctx, r.saying(id), cluster.SentFirewall); err != nil {
		return err
	}
	vm, err := r.Proxmox.VMConfig(ctx, to)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", to, err)
	}
	has, err := r.Proxmox.Firewall(ctx, vm)
	if err != nil || has.Sum() == r.Firewall {
		return fault.Prefix("read the firewall of "+vm.String(), err)
	}
	f, err := r.Proxmox.Firewall(ctx, from)
	switch {
	case err != nil:
		return fmt.Errorf("read the firewall of %s: %w", from, err)
	case f.Sum() != r.Firewall:
		return r.otherFirewall(from)
	}
	return r.Sending(ctx, cluster.SentFirewall, LateQueue, func(ctx context.Context) error { return r.Proxmox.SetFirewall(ctx, vm, f) })
}

func (r *Replace) requireFirewallKept(ctx context.Context, vm cluster.VM) error {
	now, err := r.Proxmox.Firewall(ctx, vm)
	switch {
	case err != nil:
		return fmt.Errorf("read the firewall of %s: %w", vm, err)
	case now.Sum() != r.Firewall:
		return r.otherFirewall(vm)
	}
	kept, err := r.FirewallKept(ctx)
	if err == nil && !kept {
		err = r.otherFirewall(cluster.VM{ID: r.Parking, Name: "the parking VM", Host: r.VM.Host})
	}
	return err
}

func (r *Replace) otherFirewall(vm cluster.VM) error {
	return fault.WithHint(fault.VMChanged.Refusedf("the firewall of %s is not the one that VM %d had when it was remembered: someone else changed it", vm, r.VM.ID),
		"set it back (Firewall in Proxmox' interface, or /etc/pve/firewall/%d.fw), then run the same command again", vm.ID)
}

func (r *Replace) firewallSteps() []step.Step {
	if r.Firewall == "" {
		return nil
	}
	return []step.Step{{ID: "firewall", Code: fault.ParkedHalf, Title: "give it its firewall", Risk: step.Disruptive, Skip: r.hasFirewall, Do: r.giveFirewall}}
}

func (r *Replace) hasFirewall(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return "", err
	}
	_, rec, err := r.record().read(ctx)
	if err != nil || r.record().mayCome(rec, cluster.SentFirewall) {
		return "", err
	}
	f, err := r.Proxmox.Firewall(ctx, vm)
	if err != nil || f.Sum() != r.Firewall {
		return "", fault.Prefix("read the firewall of "+vm.String(), err)
	}
	return fmt.Sprintf("%s has its firewall (%s)", vm, f), nil
}

func (r *Replace) giveFirewall(ctx context.Context) error {
	park, err := r.record().vm(ctx)
	if err != nil {
		return err
	}
	return r.copyFirewall(ctx, "attach/firewall", park, r.VM.ID)
}

// Reshape gives the VM, which is off, its shape.
func (get Source) Reshape() step.Step {
	s := step.Step{ID: "reshape", Title: "give the VM its shape", Risk: step.Disruptive}
	return get.step(s, (*Replace).reshaped, (*Replace).reshape)
}

// reshaped is the goal of reshape. A running VM was started with its shape, or will get a newer one.
func (r *Replace) reshaped(ctx context.Context) (string, error) {
	vm, found, err := r.Powered(ctx)
	if err != nil || !found {
		return "", err
	}
	_, ds, err := r.toReshape(vm)
	switch {
	case err != nil:
		return "", err
	case vm.MadeBy() != r.Run:
		return "", nil
	case len(ds) > 0 && !vm.Running:
		return "", nil
	}
	return fmt.Sprintf("%s has its shape", vm), nil
}

func (r *Replace) toReshape(vm cluster.VM) (set map[string]string, ds shape.Differences, err error) {
	ds, err = shape.Compare(vm, nil, r.Shape)
	if err != nil {
		return nil, nil, err
	}
	off := ds.At(shape.Off)
	if r.Strategy.From() == cluster.Nowhere { // a new VM has no other disk yet
		off = append(off, ds.At(shape.Live)...)
	}
	ds = slices.DeleteFunc(off, func(d shape.Difference) bool { return !d.InConfig() })
	set, err = shape.Settings(vm, r.Shape, ds)
	return set, ds, err
}

// reshape sets all that toReshape returns, and the run's mark, with one request. Only growing a disk is a request
// of its own.
func (r *Replace) reshape(ctx context.Context) error {
	vm, err := r.off(ctx)
	if err != nil {
		return err
	}
	set, ds, err := r.toReshape(vm)
	if err != nil {
		return err
	}
	if set["description"], err = r.marked(); err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := r.Proxmox.SetConfig(ctx, vm, set, nil); err != nil {
		return fmt.Errorf("give %s its shape: %w", vm, err)
	}
	return shape.Grow(ctx, r.Proxmox, r.VM.ID, ds, r.saying("reshape"))
}

// sameOptions says whether a drive has its earlier options, or those that the shape gives it.
func (r *Replace) sameOptions(key string, have, had []string) bool {
	if cluster.SameOptions(have, had) {
		return true
	}
	set, _, err := r.toReshape(r.VM)
	shaped, errShaped := cluster.ParseDisk(key, set[key])
	return errors.Join(err, errShaped) == nil && len(shaped.Options) > 0 && cluster.SameOptions(have, shaped.Options)
}

func (r *Replace) shapeAdds(key string) bool {
	_, had := r.VM.Config[key]
	return !had && slices.ContainsFunc(r.Shape.Disks, func(d cluster.ShapeDisk) bool { return d.Key == key })
}

// shapeBefore returns the settings to restore, of those that the shape changes on a VM that stays, and the settings
// to delete. A new or larger disk stays.
func (r *Replace) shapeBefore(vm cluster.VM) (want map[string]string, del []string) {
	want = map[string]string{}
	keys := slices.Concat(slices.Collect(maps.Keys(r.Shape.Settings)), slices.Collect(maps.Keys(r.Shape.Devices)))
	for _, key := range keys {
		was, had := r.VM.Config[key]
		now, has := vm.Config[key]
		switch {
		case key == "description", had && strings.TrimSpace(was) == strings.TrimSpace(now):
		case had:
			want[key] = was
		case has:
			del = append(del, key)
		}
	}
	for _, d := range r.Shape.Disks {
		was, errWas := cluster.ParseDisk(d.Key, r.VM.Config[d.Key])
		now, errNow := cluster.ParseDisk(d.Key, vm.Config[d.Key])
		if errWas == nil && errNow == nil && !r.isSystem(d.Key) && !cluster.SameOptions(was.Options, now.Options) {
			want[d.Key] = cluster.Disk{Volid: now.Volid, Options: was.Options}.Value()
		}
	}
	slices.Sort(del)
	return want, del
}

// Migrate moves the VM, which is off, to the host that its shape names, before the VM gets the rest of its shape. A
// migration that the plan does not show is done only where it is possible.
func (get Source) Migrate(planned bool) step.Step {
	return get.step(step.Step{ID: "migrate", Title: "migrate the VM while it is off", Risk: step.Disruptive},
		func(r *Replace, ctx context.Context) (string, error) { return r.migrated(ctx, r.Shape.Host, planned) },
		func(r *Replace, ctx context.Context) error { return r.migrate(ctx, r.Shape.Host) })
}

func (r *Replace) migrateBack() step.Step {
	return step.Step{
		ID: "migrate", Title: "migrate the VM back to " + r.VM.Host, Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) { return r.migrated(ctx, r.VM.Host, false) },
		Do:   func(ctx context.Context) error { return r.migrate(ctx, r.VM.Host) },
	}
}

func (r *Replace) migrated(ctx context.Context, to string, planned bool) (string, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil || !found:
		return "", err
	case to == "" || vm.Host == to && vm.Lock != "migrate":
		return fmt.Sprintf("%s is where it is to be", vm), nil
	case vm.Running:
		return vm.String() + " runs", nil
	case planned:
		return "", nil
	}
	err = shape.RequireMigratable(ctx, r.Proxmox, vm, to, shape.Off)
	if fault.KindOf(err) == fault.Refused {
		return "it stays there: " + err.Error(), nil
	}
	return "", err
}

// migrate moves the VM unless Proxmox still copies its disks for an earlier migration.
func (r *Replace) migrate(ctx context.Context, to string) error {
	vm, err := r.off(ctx)
	switch {
	case err != nil:
		return err
	case vm.Lock != "":
		return fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	if err := shape.RequireMigratable(ctx, r.Proxmox, vm, to, shape.Off); err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("migrate %s to %s", vm, to), r.Proxmox.Migrate(ctx, vm, to))
}
