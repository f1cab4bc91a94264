package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// readBlank reads the machine of a node that should have been configured but is
// in maintenance mode; nil if it is not, or is not the VM's.
func readBlank(ctx context.Context, src Sources, f *Found) *Machine {
	if src.Maintenance == nil || f.VM == nil || !f.VM.Running || f.Open() {
		return nil
	}
	m, err := src.Maintenance.MaintenanceMachine(ctx, f.Addr)
	if err != nil || m.Stage != "maintenance" || m.UUID != f.VM.UUID() {
		return nil
	}
	return &m
}

// Installable says whether the configuration would choose a disk to install on.
func (m Machine) Installable() bool { return m.FromISO || m.SystemDisk == "" }

func (f *Found) applyByHand() string {
	return fmt.Sprintf("talosctl apply-config --insecure -n %s --file %s.yaml", f.Addr, f.Name)
}

const bySerial = "installs it on the disk that the file names, which is wiped: have it select that by its serial. Then run the same command again"

// withoutConfig is what to do about a machine in maintenance mode that recast can't give its configuration.
func (f *Found) withoutConfig() string {
	if f.Blank.Installable() {
		return "Talos is on none of its disks: " + f.applyByHand() + " " + bySerial
	}
	return fmt.Sprintf("its machine configuration is nowhere to be had: put it as %s.yaml into the directory that talos.machineConfigs names, and run the same command again, or %s", f.Name, f.applyByHand())
}

// silent is what to do about a machine that is on and does not answer at all.
func (f *Found) silent(w Wanted) string {
	look := fmt.Sprintf("look at the console of VM %d", f.VM.ID)
	disks, err := f.VM.Disks()
	if err != nil || len(w.ISOStorages) == 0 {
		return look
	}
	cd := CDKey(f.VM.Config, disks)
	boot := fmt.Sprintf("qm set %d --%s %s:iso/%s,media=cdrom", f.VM.ID, cd, w.ISOStorages[0], w.Build.ISOName)
	if order := BootDevices(f.VM.Config["boot"]); order != nil && !slices.Contains(order, cd) {
		boot += fmt.Sprintf(" --boot 'order=%s'", strings.Join(append(order, cd), ";"))
	}
	return fmt.Sprintf("%s. Where it boots nothing, because its system disk was wiped (talosctl reset): recast publish, then on %s %s && qm stop %d && qm start %d; "+
		"in maintenance mode %s %s", look, f.VM.Host, boot, f.VM.ID, f.VM.ID, f.applyByHand(), bySerial)
}
