package exchange

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
		Skip: func(ctx context.Context) (string, error) { return ejected(ctx, px, id) },
		Do:   func(ctx context.Context) error { return eject(ctx, px, id) },
	}
}

func ejected(ctx context.Context, px cluster.Proxmox, id cluster.VMID) (string, error) {
	_, set, err := withoutBootISO(ctx, px, id)
	if err != nil || len(set) > 0 {
		return "", err
	}
	return "no boot ISO in any drive", nil
}

func eject(ctx context.Context, px cluster.Proxmox, id cluster.VMID) error {
	vm, set, err := withoutBootISO(ctx, px, id)
	if err != nil {
		return err
	}
	return fault.Prefix("eject from "+vm.String(), px.SetConfig(ctx, vm, set, nil))
}

// withoutBootISO reads a VM, and returns the settings that eject its boot ISOs.
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

// settingsRestored is the goal of restoreSettings.
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

// haRestored is the goal of restoreHA.
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

// kept is the goal of keep.
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

// ejectMedia adds to set the settings that eject these media.
func (r *Replace) ejectMedia(set map[string]string) {
	media, _ := r.VM.OtherMedia() // drives that can't be read were refused
	for key := range media {
		set[key] = "none,media=cdrom"
	}
}

// Proxmox deletes a VM's firewall with the VM. The parking VM, which never runs, keeps a copy.
// So recast learns what Proxmox would reject before it touches the node, and a person who undoes
// the exchange by hand has a file to copy.

// rememberStep is the ID of the step that copies the firewall to the parking VM.
const rememberStep = "remember"

// rememberFirewall returns the sum of the firewall of a VM that is to be deleted; see
// Replace.Firewall.
func rememberFirewall(ctx context.Context, px cluster.TieReader, vm cluster.VM, s cluster.Strategy) (string, error) {
	if s.VM() != cluster.VMAgain {
		return "", nil
	}
	f, err := px.Firewall(ctx, vm)
	return f.Sum(), fault.Prefix("read the firewall of "+vm.String(), err)
}

// FirewallKept reports whether the parking VM has the firewall and no earlier request can still change
// it.
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

// requireFirewallKept refuses to delete a VM whose firewall has changed or is not on the parking VM.
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

// firewallSteps copy the firewall to the new VM before it is started, if the old VM had one.
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
