// Package exchange replaces the system disk of one VM, and if wanted the VM itself, while its persistent disks wait
// on a parking VM. It needs nothing but Proxmox; its most important type is [Replace], and what it must remember is
// in a [parking.Record].
package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Replace exchanges the system of a stopped VM. Recreate makes a new VM under the same VMID with a blank system
// disk and every other disk carried over; Reimage and Rollback keep the VM and exchange its system disk for a blank
// or a kept one. Meanwhile each disk that left the VM has a name in the parking VM's configuration. Replace needs
// nothing but Proxmox.
type Replace struct {
	Proxmox   cluster.Proxmox
	Strategy  cluster.Strategy // Recreate, Reimage or Rollback
	Run       string
	Build     string       // build ID, for the mark on the new VM
	VM        cluster.VM   // as it was before anything was touched
	Parking   cluster.VMID // the parking VM, with an open record of this run
	Disks     []parking.ParkedDisk
	Restore   *parking.KeptDisk                         // Rollback: the disk that comes back
	ISO       func(ctx context.Context) (string, error) // finds the volid of the boot ISO
	SystemGiB int                                       // wanted size of the new system disk; 0 or less than before: as before
	Serial    string                                    // of the new system disk

	// Prepared is the disk image from which the new system disk is made while the node still serves; "": the new
	// disk is blank. Image finds its volid, and DiskBytes is the size of the disk in it.
	Prepared  string
	Image     func(ctx context.Context) (string, error)
	DiskBytes int64

	// Firewall is the sum of the VM's firewall, which a new VM gets (firewall.FirewallConfig.Sum); "": it had none.
	Firewall string

	// Blank is a setting of the VM that has another value until finish; nil: none.
	Blank *cluster.BlankSetting

	HostArch string // see Ties.HostArch

	Shape cluster.Shape // what the VM gets; the zero value: it stays as it is

	ha   *cluster.HAResource // the VM's HA resource before; nil: not managed
	old  parking.KeptDisk    // entry of the old system disk, without its place
	Made parking.KeptDisk    // what is known of the system on the new disk

	// Asks refuses, right before a system disk leaves the VM, if the disk has data that nobody has
	// agreed to lose; nil: this can't be checked.
	Asks func(ctx context.Context) error

	// Pods lists the handles of pods' volumes; nil: Kubernetes can't be asked.
	Pods func(ctx context.Context) ([]string, error)

	Frees  []parking.FreePlan // kept disks that are superseded once the present one is parked
	Forget func() error       // drops what only an unfinished exchange needs, once the record is closed; nil: nothing

	Late *Late                 // requests that may still come
	Say  func(id, text string) // reports what a step waits for; may be nil
}

// Of returns the exchange that an open record and its memory describe.
func Of(px cluster.Proxmox, mem parking.Memory, rec parking.Record, park cluster.VMID) *Replace {
	disks := rec.Disks
	if rec.Strategy.From() == cluster.Nowhere { // the record of a new node names no disk: none was there
		disks = []parking.ParkedDisk{{Key: mem.SystemKey, System: true}}
	}
	return &Replace{
		Proxmox: px, Strategy: rec.Strategy, Run: rec.Run, Build: rec.Build, VM: mem.VM, Parking: park,
		Disks: disks, Restore: rec.Restore, Serial: mem.DiskSerial, Blank: mem.Blank, HostArch: mem.HostArch, Firewall: mem.Firewall, ha: mem.HA, old: mem.Old,
		Prepared: rec.Prepared, Late: new(Late),
	}
}

func (r *Replace) record() openRecord {
	return openRecord{px: r.Proxmox, id: r.Parking, run: r.Run, node: r.VM.Name, late: r.Late}
}

func (r *Replace) mover() mover {
	say := func(in parking.Intent, text string) { r.saying(r.handOverStep(in))(text) }
	return mover{px: r.Proxmox, record: r.record(), host: r.VM.Host, isSpare: r.isSpare, say: say}
}

// Sending records a request, sends it, and removes it from the record once it is answered. within is how long
// Proxmox may take for the request.
func (r *Replace) Sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	return r.record().sending(ctx, what, within, send)
}

// nowBoth is Current that also reads the parking VM, at the same time. While the VM exists, the parking VM must
// exist, too.
func (r *Replace) nowBoth(ctx context.Context) (vm cluster.VM, found bool, park cluster.VM, err error) {
	var errPark error
	err = wait.All(
		func() (err error) {
			vm, found, err = r.Current(ctx)
			return err
		},
		wait.Aside(&errPark, wait.Into(&park, func() (cluster.VM, error) { return r.record().vm(ctx) })),
	)
	if err == nil && found {
		err = errPark
	}
	return vm, found, park, err
}

type configOf cluster.VMID

// ConfigOf reads a VM's configuration. Goals that follow each other directly read it once.
func ConfigOf(ctx context.Context, px cluster.VMReader, id cluster.VMID) (cluster.VM, error) {
	return step.Once(ctx, configOf(id), func() (cluster.VM, error) { return px.VMConfig(ctx, id) })
}

// Current reads the VM's configuration again; found is false once the VM is deleted.
func (r *Replace) Current(ctx context.Context) (vm cluster.VM, found bool, err error) {
	return r.found(ConfigOf(ctx, r.Proxmox, r.VM.ID))
}

// Powered is Current that also tells whether the VM is on.
func (r *Replace) Powered(ctx context.Context) (vm cluster.VM, found bool, err error) {
	return r.found(r.Proxmox.VM(ctx, r.VM.ID))
}

func (r *Replace) found(vm cluster.VM, err error) (cluster.VM, bool, error) {
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return cluster.VM{}, false, nil
	case err != nil:
		return cluster.VM{}, false, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
	}
	return vm, true, nil
}

func (r *Replace) isReplaced(vm cluster.VM, found bool) (string, error) {
	switch {
	case !found && !r.Strategy.DeletesVM():
		return "", fault.VMChanged.Refusedf("VM %d was deleted by someone else; its system disk is on parking VM %d or still in its storage", r.VM.ID, r.Parking)
	case !found:
		return fmt.Sprintf("VM %d is deleted", r.VM.ID), nil
	case vm.UUID() != r.VM.UUID():
		return "", r.uuidMismatch(vm)
	case vm.MadeBy() == r.Run && r.Strategy.VM() != cluster.VMGone:
		return fmt.Sprintf("VM %d was renewed by this run", r.VM.ID), nil
	}
	return "", nil
}

func (r *Replace) uuidMismatch(vm cluster.VM) error {
	if cluster.Forming(vm) {
		return cluster.HalfMade(vm)
	}
	return fault.UUIDMismatch.Refusedf("%s has UUID %s: it is not the VM that was planned (UUID %s)", vm, vm.UUID(), r.VM.UUID())
}

func (r *Replace) off(ctx context.Context) (cluster.VM, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil:
		return vm, err
	case !found:
		return vm, fault.ParkedHalf.Refusedf("VM %d is gone", r.VM.ID)
	case vm.UUID() != r.VM.UUID():
		return vm, r.uuidMismatch(vm)
	case vm.Running:
		return vm, startedMeanwhile(vm)
	}
	return vm, nil
}

func startedMeanwhile(vm cluster.VM) error {
	return fault.WithHint(fault.VMChanged.Refusedf("%s was started by someone else", vm), "switch VM %d off, then run the same command again", vm.ID)
}

// requireHost refuses a VM that has left the host of the exchange. Proxmox HA may migrate a VM until it is removed
// from HA.
func requireHost(vm cluster.VM, host string) error {
	if vm.Host == host {
		return nil
	}
	return fault.WithHint(fault.HostAway.Refusedf("%s was on %s when its replacement was begun: disks can be handed over on one host only", vm, host),
		"run the same command again; if that finds the replacement unfinished, bring the VM back first, on %s: %s. Nothing was destroyed", vm.Host, cluster.MigrateCommand(vm, host))
}

// KeepOff makes sure that neither Proxmox HA nor onboot starts the VM once it is off.
func (r *Replace) KeepOff(ctx context.Context) (cluster.VM, error) {
	look := func() (cluster.VM, error) {
		vm, err := r.Proxmox.VM(ctx, r.VM.ID)
		switch {
		case err != nil:
			return vm, fmt.Errorf("look up VM %d: %w", r.VM.ID, err)
		case vm.UUID() != r.VM.UUID():
			return vm, r.uuidMismatch(vm)
		case len(r.Disks) == 0: // an exchange that hands over no disk may go on anywhere
			return vm, nil
		}
		return vm, requireHost(vm, r.VM.Host)
	}
	vm, err := look()
	if err != nil {
		return vm, err
	}
	ha, err := r.Proxmox.HAResource(ctx, vm.ID)
	if err != nil {
		return vm, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if ha != nil { // even a resource that HA ignores prevents Proxmox from deleting the VM
		if err := r.Sending(ctx, cluster.SentRemoveHA, LateQueue, func(ctx context.Context) error { return r.Proxmox.RemoveHA(ctx, vm.ID) }); err != nil {
			return vm, fmt.Errorf("take %s out of Proxmox HA: %w", vm, err)
		}
		if vm, err = look(); err != nil {
			return vm, err
		}
	}
	if vm.Config["onboot"] == "1" {
		if err := r.Proxmox.SetConfig(ctx, vm, map[string]string{"onboot": "0"}, nil); err != nil {
			return vm, fmt.Errorf("unset onboot of %s: %w", vm, err)
		}
	}
	return vm, nil
}

func (r *Replace) saying(id string) func(string) {
	branch := "bring-up/"
	switch {
	case r.Strategy.From() == cluster.Halfway:
		branch = "put-back/"
	case id == "delete-vm" || id == rememberStep || strings.HasPrefix(id, parkStep):
		branch = "take-down/"
	}
	return func(text string) {
		if r.Say != nil {
			r.Say(branch+id, text)
		}
	}
}

const parkStep = "park/"

func (r *Replace) attach(ctx context.Context, d parking.ParkedDisk) error {
	vm, disk, err := r.handBack(ctx, d)
	if err != nil {
		return err
	}
	return r.setOptions(ctx, vm, disk, cluster.SplitOptions(d.Options))
}

// handBack is attach without the disk's options. It returns the VM, which has the disk.
func (r *Replace) handBack(ctx context.Context, d parking.ParkedDisk) (vm cluster.VM, disk cluster.Disk, err error) {
	vm, found, seen, err := r.poweredBoth(ctx, d)
	switch {
	case err != nil:
		return vm, disk, err
	case !found || vm.UUID() != r.VM.UUID() || r.Strategy.From() != cluster.Halfway && vm.MadeBy() != r.Run:
		return vm, disk, fault.ParkedHalf.Refusedf("VM %d is not the one that run %s made or renewed", r.VM.ID, r.Run)
	case vm.Running:
		return vm, disk, startedMeanwhile(vm)
	}
	if _, there := vm.Config[d.Key]; there {
		if err := r.onlyOnce(ctx, d); err != nil {
			return vm, disk, err
		}
		if vm, found, err = r.Current(ctx); err != nil {
			return vm, disk, err
		}
		seen = nil
	}
	// A drive whose volume no longer existed has been removed by now.
	if _, there := vm.Config[d.Key]; found && !there {
		if d.Holder != 0 {
			held := cluster.JoinOptions(d.Volid, d.Options)
			if err := r.Proxmox.SetConfig(ctx, vm, map[string]string{d.Key: held}, nil); err != nil {
				return vm, disk, fmt.Errorf("attach %s of VM %d to %s: %w", d.Volid, d.Holder, vm, err)
			}
			disk, err := cluster.ParseDisk(d.Key, held)
			return vm, disk, err
		}
		if err := r.mover().do(ctx, parking.Intent{From: r.Parking, Key: d.ParkKey, To: r.VM.ID, ToKey: d.Key, Options: d.Options}, seen); err != nil {
			return vm, disk, err
		}
		if vm, found, err = r.Current(ctx); err != nil {
			return vm, disk, err
		}
	}
	disk, err = cluster.ParseDisk(d.Key, vm.Config[d.Key])
	switch {
	case !found:
		return vm, disk, fault.ParkedHalf.Refusedf("VM %d was deleted by someone else when it had just got its %s back", r.VM.ID, d.Key)
	case err != nil:
		return vm, disk, fmt.Errorf("%s after its disk was moved back: %w", vm, err)
	}
	return vm, disk, nil
}

// poweredBoth is Powered that also reads the parking VM, at the same time, for the hand-over of a disk to the VM.
// seen is nil if the disk belongs to another VM.
func (r *Replace) poweredBoth(ctx context.Context, d parking.ParkedDisk) (vm cluster.VM, found bool, seen *pair, err error) {
	if d.Holder != 0 {
		vm, found, err = r.Powered(ctx)
		return vm, found, nil, err
	}
	var park cluster.VM
	err = wait.All(
		func() (err error) {
			vm, found, err = r.Powered(ctx)
			return err
		},
		func() (err error) {
			park, err = r.Proxmox.VM(ctx, r.Parking)
			return fault.Prefix(fmt.Sprintf("look up VM %d", r.Parking), err)
		},
	)
	return vm, found, &pair{park, vm}, err
}

func (r *Replace) attachStep(d parking.ParkedDisk) step.Step {
	return step.Step{
		ID: d.Key, Kind: "attach-disk", Title: fmt.Sprintf("give %s back", d.Key), Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) { return r.attached(ctx, d) },
		Do:   func(ctx context.Context) error { return r.attach(ctx, d) },
	}
}

func (r *Replace) attachSteps() []step.Step {
	steps := append(r.firewallSteps(), r.settleStep())
	for _, d := range r.Disks {
		if !d.System { // it stays parked, for a rollback
			steps = append(steps, r.attachStep(d))
		}
	}
	return append(steps, step.Step{ID: "compare-disks", Title: "compare the drives with the remembered ones", Do: r.compareDisks})
}

func (r *Replace) attached(ctx context.Context, d parking.ParkedDisk) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return "", err
	}
	value, ok := vm.Config[d.Key]
	if !ok {
		return "", nil
	}
	disk, err := cluster.ParseDisk(d.Key, value)
	switch {
	case err != nil:
		return "", err
	case disk.Owner != cmp.Or(d.Holder, r.VM.ID) || d.Holder != 0 && disk.Volid != d.Volid:
		return "", fault.ParkedHalf.Refusedf("%s of %s is %s, which is not the disk that it had there", d.Key, vm, disk.Volid)
	case !r.sameOptions(d.Key, disk.Options, cluster.SplitOptions(d.Options)):
		return "", nil
	}
	return fmt.Sprintf("%s is %s again", d.Key, disk.Volid), nil
}

// changedSince lists the settings of the old VM that have changed since they were remembered, apart
// from those that the exchange itself changes. It includes no values, which may be secret.
func (r *Replace) changedSince(vm cluster.VM) []string {
	ours := append([]string{"boot", "onboot", "protection"}, cluster.NeverCarried...)
	var changed []string
	for _, key := range slices.Sorted(maps.Keys(r.VM.Config)) {
		now, there := vm.Config[key]
		switch {
		case slices.Contains(ours, key), cluster.IsDiskKey(key), there && sameSetting(now, r.VM.Config[key]):
		case !there:
			changed = append(changed, key+" is gone")
		default:
			changed = append(changed, key+" was changed")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if _, had := r.VM.Config[key]; !had && !slices.Contains(ours, key) && !cluster.IsDiskKey(key) {
			changed = append(changed, key+" is new")
		}
	}
	return changed
}

func (r *Replace) deleteSame(ctx context.Context) error {
	var vm, park cluster.VM
	var found bool
	var errParking, errKept error
	err := wait.All(
		func() (err error) {
			vm, found, err = r.Powered(ctx)
			return err
		},
		wait.Aside(&errParking, wait.Into(&park, func() (cluster.VM, error) { return r.record().vm(ctx) })),
		wait.Aside(&errKept, func() error { return r.requireFirewallKept(ctx, r.VM) }),
	)
	if err != nil || !found {
		return err
	}
	owned, errOwned := ownedDisks(vm)
	missing, errParked := r.notParked(park, vm, found)
	if err := errors.Join(errOwned, cmp.Or(errParking, errParked)); err != nil {
		return err
	}
	switch {
	case missing != "":
		return fault.ParkedHalf.Refusedf("%s is not on parking VM %d: %s is not deleted", missing, r.Parking, vm)
	case vm.UUID() != r.VM.UUID() || vm.Name != r.VM.Name || vm.Host != r.VM.Host:
		return fault.UUIDMismatch.Refusedf("%s (UUID %s) is not the VM that was planned: %s (UUID %s)", vm, vm.UUID(), r.VM, r.VM.UUID())
	case vm.Running:
		return startedMeanwhile(vm)
	case vm.Lock != "" && !cluster.Locked(vm): // Proxmox refuses a delete under any lock; see claim.WithPatience
		return fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	case len(owned) > 0:
		return stillThere(vm, owned, fault.ParkedHalf.Refusedf("%s still owns %s, which would be deleted with it", vm, volumesOf(owned)))
	case vm.Config["vmstate"] != "" || vm.Config["parent"] != "" || len(vm.Pending) > 0:
		// Proxmox would delete what they name, too (qemu-server, QemuServer.pm, destroy_vm).
		return fault.VMChanged.Refusedf("%s has a saved state, a snapshot or pending changes (%s), new since the plan was made: it is not deleted",
			vm, strings.TrimSpace(strings.Join(append(slices.Clone(vm.Pending), vm.Config["vmstate"], vm.Config["parent"]), " ")))
	}
	if err := errors.Join(cluster.RequireRemakeable(vm, r.HostArch), cluster.RequireRemakeable(r.VM, r.HostArch)); err != nil {
		return err
	}
	if changed := r.changedSince(vm); len(changed) > 0 {
		return fault.WithHint(fault.VMChanged.Refusedf("%s was changed by someone else since it was remembered (%s): the new VM would not have that, so it is not deleted", vm, strings.Join(changed, "; ")),
			"set that back, then run the same command again; or recast undo NODE, which gives the old VM its disks back, and roll again")
	}
	if errKept != nil { // errKept is about the VM on that host under that name, which it still is
		return errKept
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("delete %s", vm), r.Proxmox.DeleteVM(ctx, vm))
}

func (r *Replace) deleteVM(ctx context.Context) error {
	if err := r.awaitDelete(ctx); err != nil {
		return err
	}
	return r.Sending(ctx, SentDelete, LateQueue, r.deleteSame)
}

// replaced is the goal of take-down: the old VM no longer exists. A VM that stays carries the run's mark from then on.
func (r *Replace) replaced(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	return r.isReplaced(vm, found)
}

// TakenDown is the goal of take-down for every strategy. A VM that only gets another shape is off until it has the
// run's mark.
func (r *Replace) TakenDown(ctx context.Context) (string, error) {
	switch {
	case r.Strategy.DeletesVM():
		return r.replaced(ctx)
	case r.Strategy.Reshapes():
		vm, found, err := r.Powered(ctx)
		if err != nil || found && vm.MadeBy() != r.Run && !vm.Running && !vm.HA && vm.Config["onboot"] != "1" {
			return vm.String() + " is off", err
		}
		return r.replaced(ctx)
	}
	return r.emptied(ctx)
}

func (r *Replace) unprotect(ctx context.Context) error {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return err
	}
	return LiftProtection(ctx, r.Proxmox, vm)
}

func (r *Replace) unprotected(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	if reason, err := r.isReplaced(vm, found); err != nil || reason != "" {
		return reason, err
	}
	if found && vm.Config["protection"] == "1" {
		return "", nil
	}
	return "it is not protected", nil
}

// LiftProtection allows Proxmox to remove drives from a VM, and to delete it. Finish protects a
// node's VM again, and the next write of its record protects a parking VM again.
func LiftProtection(ctx context.Context, px cluster.Editor, vm cluster.VM) error {
	return fault.Prefix("lift the protection of "+vm.String(), px.SetConfig(ctx, vm, map[string]string{"protection": "0"}, nil))
}

// ownedDisks lists what Proxmox would free with the VM, except the cloud-init drive.
func ownedDisks(vm cluster.VM) ([]cluster.Disk, error) {
	disks, err := vm.Disks()
	return slices.DeleteFunc(disks, func(d cluster.Disk) bool { return d.CloudInit() || d.CDROM && d.Owner != vm.ID }), err
}

// sameSetting compares two values of a setting; Proxmox ends a description with a line break.
func sameSetting(a, b string) bool { return strings.TrimRight(a, "\n") == strings.TrimRight(b, "\n") }

func stillThere(vm cluster.VM, drives []cluster.Disk, err error) error {
	for _, d := range drives {
		err = fault.WithHint(err, "%s", takeOut(vm, d))
	}
	return fault.WithHint(err, "remove that from VM %d, then run the same command again; nothing was deleted", vm.ID)
}

func volumesOf(drives []cluster.Disk) string {
	names := cluster.Each(drives, func(d cluster.Disk) string { return d.Key + " (" + d.Volid + ")" })
	return strings.Join(names, ", ")
}

// awaitDelete waits until an earlier, unanswered delete of the VM is carried out or can't come any more. A second
// delete would free the VMID for another VM, which the first delete would then destroy.
func (r *Replace) awaitDelete(ctx context.Context) error {
	return r.record().awaitUnless(ctx, r.saying("delete-vm"), func(ctx context.Context) (bool, error) {
		_, found, err := r.Current(ctx)
		return !found, err
	}, SentDelete)
}

func (r *Replace) putBackSteps() []step.Step {
	attach := r.firewallSteps()
	for _, d := range r.Disks {
		attach = append(attach, r.attachStep(d))
	}
	attach = append(attach, step.Step{ID: "compare-disks", Code: fault.ParkedHalf, Title: "compare the drives with the remembered ones", Do: r.compareDisks})
	var back []step.Step
	if len(r.Disks) == 0 {
		back = append(back, r.migrateBack())
	}
	return append(back, []step.Step{
		r.settleStep(),
		{ID: "park-new", Code: fault.ParkedHalf, Title: "park the new system disk, which this replacement made", Risk: step.Disruptive, Skip: r.newParked, Do: r.ParkNew},
		{ID: "create-vm", Code: fault.ParkedHalf, Title: "create the VM as it was", Risk: step.Disruptive, Skip: r.exists, Do: r.createOld},
		{ID: "protect", Code: fault.ParkedHalf, Title: "protect it until its node runs", Risk: step.Disruptive, Skip: r.isProtected, Do: r.protect},
		{ID: "attach", Code: fault.ParkedHalf, Title: "give every disk back", Risk: step.Disruptive, Steps: func(context.Context) ([]step.Step, error) { return attach, nil }},
		{ID: "set-up", Code: fault.ParkedHalf, Title: "restore boot order, drives and description", Skip: r.isAsBefore, Do: r.setAsBefore},
	}...)
}

// StandsStill returns why disks may be moved: the VM is off, or it already has every disk.
func (r *Replace) StandsStill(ctx context.Context) (string, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil:
		return "", err
	case !found:
		return fmt.Sprintf("VM %d is deleted", r.VM.ID), nil
	case vm.UUID() != r.VM.UUID():
		return "", r.uuidMismatch(vm)
	case !vm.Running && !vm.HA:
		return vm.String() + " is off", nil
	}
	for _, d := range r.Disks {
		if vm.Config[d.Key] == "" || d.System && r.IsBlank(vm) {
			return "", nil
		}
	}
	return vm.String() + " has every disk", nil
}

func (r *Replace) exists(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return "", err
	}
	return vm.String() + " is there", nil
}

func (r *Replace) createOld(ctx context.Context) error {
	config, _, err := r.oldConfig()
	if err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, r.Proxmox); err != nil {
		return err
	}
	return r.create(ctx, config)
}

// isProtected is the goal of protect: no delete can succeed, because the VM is protected or runs.
func (r *Replace) isProtected(ctx context.Context) (string, error) {
	vm, found, err := r.Powered(ctx)
	switch {
	case err != nil || !found:
		return "", err
	case vm.Config["protection"] == "1":
		return vm.String() + " is protected", nil
	case vm.Running:
		return vm.String() + " runs", nil
	}
	return "", nil
}

// protect makes Proxmox refuse a late delete that was sent when the VM owned nothing. The VM's own setting is
// restored once its node runs.
func (r *Replace) protect(ctx context.Context) error {
	return r.setUp(ctx, map[string]string{"protection": "1"})
}

// asBefore returns the settings to restore, of those that a replacement changes on a VM that stays.
func (r *Replace) asBefore(vm cluster.VM) (map[string]string, error) {
	disks, err := r.VM.Disks()
	if err != nil {
		return nil, err
	}
	want := map[string]string{"boot": r.VM.Config["boot"], "description": r.VM.Config["description"]}
	if disk := r.VM.Config["bootdisk"]; disk != "" {
		want["bootdisk"] = disk // Proxmox drops it once there is a boot order (API2/Qemu.pm, update_vm_api)
	}
	for _, d := range disks {
		if d.CDROM && !d.CloudInit() {
			want[d.Key] = d.Value()
		}
	}
	now, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	for _, d := range now {
		if _, iso := cluster.BootISO(d); iso && want[d.Key] == "" {
			want[d.Key] = "none,media=cdrom"
		}
	}
	settings, del := r.shapeBefore(vm)
	maps.Copy(want, settings)
	for _, key := range del {
		want[key] = ""
	}
	for key, value := range want {
		if strings.TrimRight(vm.Config[key], "\n") == strings.TrimRight(value, "\n") {
			delete(want, key)
		}
	}
	return want, nil
}

func (r *Replace) isAsBefore(ctx context.Context) (string, error) {
	vm, found, err := r.Current(ctx)
	if err != nil || !found {
		return "", err
	}
	want, err := r.asBefore(vm)
	if err != nil || len(want) > 0 {
		return "", err
	}
	return "its settings are as before", nil
}

func (r *Replace) setAsBefore(ctx context.Context) error {
	vm, _, err := r.Current(ctx)
	if err != nil {
		return err
	}
	want, err := r.asBefore(vm)
	if err != nil {
		return err
	}
	var del []string
	for key, value := range want {
		if value == "" {
			del = append(del, key)
			delete(want, key)
		}
	}
	slices.Sort(del)
	return fault.Prefix(fmt.Sprintf("set up %s as before", vm), r.Proxmox.SetConfig(ctx, vm, want, del))
}

// KeptRef identifies an old system disk as it was shown before it is freed.
type KeptRef struct {
	Cluster, Node string
	Parking       cluster.VMID
	Key, Run      string
	Volid         string // "": the drive no longer exists; only its entry is removed from the record
}

// Find reads the parking VM again, and the disk's entry in its record; found is false if the entry no longer exists.
func (k KeptRef) Find(ctx context.Context, px cluster.VMReader) (p parking.Parking, entry parking.KeptDisk, found bool, err error) {
	p.VM, err = px.VM(ctx, k.Parking)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return p, entry, false, nil
	case err != nil:
		return p, entry, false, fmt.Errorf("look up parking VM %d: %w", k.Parking, err)
	}
	rec, _, err := parking.ReadRecord(p.VM)
	switch {
	case err != nil:
		return p, entry, false, err
	case rec.Cluster != k.Cluster || rec.Node != k.Node:
		return p, entry, false, fault.PruneRefused.Refusedf("%s is not the parking VM of node %s any more", p.VM, k.Node)
	}
	p.Record = rec
	entry, found = cluster.Find(rec.Kept, k.is)
	return p, entry, found, nil
}

func (k KeptRef) is(entry parking.KeptDisk) bool { return entry.Key == k.Key && entry.Run == k.Run }

// Free frees the disk and removes its entry from the record. Right before, it checks again that the volume is the
// one that was shown, belongs to the parking VM, has the options that recast gave it, is in no snapshot, and is
// named by nothing else. After an interruption anywhere, a second run gives the same result.
func (k KeptRef) Free(ctx context.Context, px cluster.Proxmox, uses func(context.Context) ([]cluster.Use, error)) error {
	p, disk, found, err := k.look(ctx, px)
	if err != nil || !found {
		return err
	}
	if disk.Volid == "" {
		return k.forget(ctx, px)
	}
	now, err := uses(ctx)
	if err != nil {
		return err
	}
	if by := parking.NamedBeside(p.VM, disk, now); len(by) > 0 {
		return fault.WithHint(fault.PruneRefused.Refusedf("%s is %s of %s, but %s refers to it as well: it stays", disk.Volid, k.Key, p.VM, strings.Join(by, ", ")),
			"it is a disk that recast keeps: qm config shows what has it there, and qm status whether that runs; recast frees it once nothing else names it")
	}
	if p.VM.Config["protection"] == "1" {
		// Protection forbids removing a drive (qemu-server, QemuConfig.pm,
		// check_protection); writing the record sets it again.
		if err := LiftProtection(ctx, px, p.VM); err != nil {
			return err
		}
		if p, disk, found, err = k.look(ctx, px); err != nil || !found {
			return errors.Join(err, k.protect(ctx, px))
		}
	}
	if err := cluster.RequireQuorum(ctx, px); err != nil {
		return err
	}
	if err := px.FreeDisk(ctx, p.VM, k.Key); err != nil {
		return errors.Join(fmt.Errorf("free %s, %s of %s: %w", disk.Volid, k.Key, p.VM, err), k.protect(ctx, px))
	}
	return k.forget(ctx, px)
}

// look finds the disk and refuses if anything differs from what was shown. Its Volid is "" if the
// drive no longer exists.
func (k KeptRef) look(ctx context.Context, px cluster.Proxmox) (p parking.Parking, disk cluster.Disk, found bool, err error) {
	p, entry, found, err := k.Find(ctx, px)
	if err != nil || !found {
		return p, disk, false, err
	}
	if against := p.Untouchable(nil); len(against) > 0 {
		return p, disk, true, fault.PruneRefused.Refusedf("nothing of it is freed: %s", strings.Join(against, "; "))
	}
	if _, there := p.VM.Config[k.Key]; !there {
		return p, disk, true, nil
	}
	if disk, err = p.KeptDisk(entry); err != nil {
		return p, disk, true, fault.PruneRefused.Refusedf("%s of %s is not freed: %w", k.Key, p.VM, err)
	}
	if disk.Volid != k.Volid {
		return p, disk, true, fault.PruneRefused.Refusedf("%s of %s is %s now, not %s as shown: it is not freed", k.Key, p.VM, disk.Volid, words.OrNone(k.Volid))
	}
	ties, err := px.Ties(ctx, p.VM)
	if err == nil && len(ties.Snapshots) > 0 {
		err = fault.PruneRefused.Refusedf("%s has snapshots (%s): nothing of it is freed", p.VM, strings.Join(ties.Snapshots, ", "))
	}
	return p, disk, true, err
}

func (k KeptRef) forget(ctx context.Context, px cluster.Proxmox) error {
	p, _, found, err := k.Find(ctx, px)
	if err != nil || !found {
		return err
	}
	if _, there := p.VM.Config[k.Key]; there || p.Record.Open {
		return fault.PruneRefused.Refusedf("%s of %s is there again, or its record is open: it stays in the record", k.Key, p.VM)
	}
	p.Record.Kept = slices.DeleteFunc(p.Record.Kept, k.is)
	return WriteRecord(ctx, px, p.VM, p.Record)
}

func (k KeptRef) protect(ctx context.Context, px cluster.Proxmox) error {
	vm, err := px.VM(ctx, k.Parking)
	if err != nil || vm.Config["protection"] == "1" {
		return err
	}
	return fault.Prefix(fmt.Sprintf("protect %s again", vm), px.SetConfig(ctx, vm, map[string]string{"protection": "1"}, nil))
}

// Stay records that the disk is not to be freed, and protects the parking VM again.
func (k KeptRef) Stay(ctx context.Context, px cluster.Proxmox) error {
	p, _, found, err := k.Find(ctx, px)
	if err != nil || !found {
		return err
	}
	for i := range p.Record.Kept {
		if k.is(p.Record.Kept[i]) {
			p.Record.Kept[i].Going = false
		}
	}
	return WriteRecord(ctx, px, p.VM, p.Record)
}
