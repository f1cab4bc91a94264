package cluster

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// A VM's firewall goes with the VM. The parking VM, which never runs, has it
// meanwhile: whatever Proxmox would not take is known before the node is touched,
// and whoever undoes the exchange by hand has a file to copy.

// rememberStep is the step that gives the parking VM the firewall.
const rememberStep = "remember"

// rememberFirewall tells the firewall of a VM that is to be deleted; see Replace.Firewall.
func rememberFirewall(ctx context.Context, px Inventory, vm VM, s Strategy) (string, error) {
	if s != Recreate {
		return "", nil
	}
	f, err := px.Firewall(ctx, vm)
	return f.Sum(), fault.Prefix("read the firewall of "+vm.String(), err)
}

// firewallKept says whether the parking VM has the firewall, and nothing that was
// sent can change that any more.
func (r *Replace) firewallKept(ctx context.Context) (bool, error) {
	if r.Firewall == "" {
		return true, nil
	}
	park, rec, err := r.parkingNow(ctx)
	if err != nil || r.late.left(r.Parking, rec.Sent, []string{sentFirewall}) > 0 {
		return false, err
	}
	kept, err := r.Proxmox.Firewall(ctx, park)
	return kept.Sum() == r.Firewall, fault.Prefix("read the firewall of "+park.String(), err)
}

// keepFirewall gives the parking VM the firewall of the VM as it is.
func (r *Replace) keepFirewall(ctx context.Context) error {
	if kept, err := r.firewallKept(ctx); err != nil || kept {
		return err
	}
	return r.copyFirewall(ctx, rememberStep, r.VM, r.Parking)
}

// copyFirewall gives one VM the firewall of another, if it is still the remembered
// one. What an earlier attempt sent may still come, and would change what is written now.
func (r *Replace) copyFirewall(ctx context.Context, id string, from VM, to VMID) error {
	if err := r.awaitLate(ctx, id, sentFirewall); err != nil {
		return err
	}
	f, err := r.Proxmox.Firewall(ctx, from)
	switch {
	case err != nil:
		return fmt.Errorf("read the firewall of %s: %w", from, err)
	case f.Sum() != r.Firewall:
		return r.otherFirewall(from)
	}
	vm, err := r.Proxmox.VMConfig(ctx, to)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", to, err)
	}
	return r.sending(ctx, sentFirewall, LateQueue, func(ctx context.Context) error { return r.Proxmox.SetFirewall(ctx, vm, f) })
}

// requireFirewallKept refuses to delete a VM whose firewall nobody else has.
func (r *Replace) requireFirewallKept(ctx context.Context, vm VM) error {
	now, err := r.Proxmox.Firewall(ctx, vm)
	switch {
	case err != nil:
		return fmt.Errorf("read the firewall of %s: %w", vm, err)
	case now.Sum() != r.Firewall:
		return r.otherFirewall(vm)
	}
	kept, err := r.firewallKept(ctx)
	if err == nil && !kept {
		err = r.otherFirewall(VM{ID: r.Parking, Name: "the parking VM", Host: r.VM.Host})
	}
	return err
}

func (r *Replace) otherFirewall(vm VM) error {
	return fault.WithHint(fault.VMChanged.Refusedf("the firewall of %s is not the one that VM %d had when it was remembered: somebody else changed it", vm, r.VM.ID),
		"set it back (Firewall in Proxmox' interface, or /etc/pve/firewall/%d.fw), then run the same command again", vm.ID)
}

// firewallSteps give the new VM its firewall before it is started: none where there was none.
func (r *Replace) firewallSteps() []step.Step {
	if r.Firewall == "" {
		return nil
	}
	return []step.Step{{ID: "firewall", Code: fault.ParkedHalf, Title: "give it its firewall", Risk: step.Disruptive, Skip: r.hasFirewall, Do: r.giveFirewall}}
}

func (r *Replace) hasFirewall(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil || !found {
		return "", err
	}
	rec, err := r.record(ctx)
	if err != nil || r.late.left(r.Parking, rec.Sent, []string{sentFirewall}) > 0 {
		return "", err
	}
	f, err := r.Proxmox.Firewall(ctx, vm)
	if err != nil || f.Sum() != r.Firewall {
		return "", fault.Prefix("read the firewall of "+vm.String(), err)
	}
	return fmt.Sprintf("%s has its firewall (%s)", vm, f), nil
}

func (r *Replace) giveFirewall(ctx context.Context) error {
	park, err := r.Proxmox.VMConfig(ctx, r.Parking)
	if err != nil {
		return fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	return r.copyFirewall(ctx, "attach/firewall", park, r.VM.ID)
}
