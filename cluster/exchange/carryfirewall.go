package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// Proxmox deletes a VM's firewall with the VM. The parking VM, which never runs, keeps a copy.
// So recast learns what Proxmox would reject before it touches the node, and a person who undoes
// the exchange by hand has a file to copy.

// rememberStep is the step that copies the firewall to the parking VM.
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
// for earlier unanswered requests, which would overwrite it.
func (r *Replace) copyFirewall(ctx context.Context, id string, from cluster.VM, to cluster.VMID) error {
	if err := r.record().await(ctx, r.saying(id), cluster.SentFirewall); err != nil {
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
	park, err := r.Proxmox.VMConfig(ctx, r.Parking)
	if err != nil {
		return fmt.Errorf("look up parking VM %d: %w", r.Parking, err)
	}
	return r.copyFirewall(ctx, "attach/firewall", park, r.VM.ID)
}
