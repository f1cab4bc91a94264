package exchange

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// putBackSteps return every disk, including the old system disk, to a VM that is off.
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
