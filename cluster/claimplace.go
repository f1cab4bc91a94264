package cluster

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// claimPlace is where a claim is kept: one for the whole cluster, which whoever
// is first makes, and everybody changes by compare-and-swap. Its errors are those
// of an Editor: ErrNotFound, ErrExists, ErrChanged, ErrLostAnswer.
type claimPlace interface {
	String() string
	// read reads the claim afresh: a *formingError while somebody makes it, a
	// *strangeError if what is there is no claim of this cluster.
	read(ctx context.Context) (ClaimState, error)
	create(ctx context.Context, s ClaimState) error
	// write changes the claim if it still is as from was read.
	write(ctx context.Context, from, to ClaimState) error
	// remove ends the claim if it still is as s was read.
	remove(ctx context.Context, s ClaimState) error
}

// formingError says that a claim is being made, and nothing more is known of it.
type formingError struct{ vm VM }

func (e *formingError) Error() string { return fmt.Sprintf("%s is being created by somebody", e.vm) }

// strangeError says what is at a claim's place, which is no claim of this cluster.
type strangeError struct{ error }

func (e *strangeError) Unwrap() error { return e.error }

// claimVM is a claim's place in Proxmox.
type claimVM struct {
	px interface {
		Inventory
		Editor
	}
	cluster string
	id      VMID
	host    string // to make it on
}

func (p claimVM) String() string { return fmt.Sprintf("VM %d", p.id) }

func (p claimVM) read(ctx context.Context) (ClaimState, error) {
	vm, err := p.px.VMConfig(ctx, p.id)
	switch {
	case err != nil:
		return ClaimState{}, fmt.Errorf("look up VM %d: %w", p.id, err)
	case Forming(vm):
		return ClaimState{}, &formingError{vm}
	}
	s, err := claimOf(vm, p.cluster)
	if err != nil {
		return ClaimState{}, &strangeError{err}
	}
	return s, nil
}

func (p claimVM) create(ctx context.Context, s ClaimState) error {
	description, err := s.Description()
	if err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("create the claim, VM %d on %s", p.id, p.host), p.px.CreateVM(ctx, p.host, p.id, map[string]string{
		"name": ClaimVMName, "memory": "16", "onboot": "0", "protection": "1", "description": description,
	}))
}

func (p claimVM) write(ctx context.Context, from, to ClaimState) error {
	description, err := to.Description()
	if err != nil {
		return err
	}
	// A claim of a recast from before, or one whose delete did not succeed, is not protected.
	return fault.Prefix(fmt.Sprintf("write the claim into %s", from.VM), p.px.SetConfig(ctx, from.VM, map[string]string{"description": description, "protection": "1"}, nil))
}

func (p claimVM) remove(ctx context.Context, s ClaimState) error {
	vm, err := p.px.VM(ctx, p.id)
	switch {
	case err != nil:
		return fmt.Errorf("look up VM %d: %w", p.id, err)
	case vm.Digest != s.VM.Digest || vm.Host != s.VM.Host:
		return fmt.Errorf("%s is no longer as it was read: %w", vm, ErrChanged)
	}
	disks, err := vm.Disks()
	switch {
	case err != nil:
		return err
	case vm.Name != ClaimVMName || vm.Running || vm.Template || len(disks) > 0:
		return fault.ClaimHeld.Refusedf("%s is not as recast made it: it must be named %s, be stopped and have no drive", vm, ClaimVMName)
	}
	if err := RequireQuorum(ctx, p.px); err != nil {
		return err
	}
	// Whoever watches it has to begin anew: between this and the delete, which
	// is not conditional, nobody can take it over. Proxmox may carry a delete out
	// after its sender has died, when the number is another run's claim: so a claim
	// is protected until right before its own delete.
	next := s
	next.Beat++
	description, err := next.Description()
	if err != nil {
		return err
	}
	lift := map[string]string{"description": description, "protection": "0"}
	if err := p.px.SetConfig(ctx, s.VM, lift, nil); err != nil {
		return fmt.Errorf("write the claim into %s: %w", s.VM, err)
	}
	if err := RequireQuorum(ctx, p.px); err != nil { // it may have been lost since
		return err
	}
	return fault.Prefix(fmt.Sprintf("delete %s", s.VM), p.px.DeleteVM(ctx, s.VM))
}
