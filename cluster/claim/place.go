package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// place is where a claim is kept, one for the whole cluster. The first run creates the claim, and every run changes
// it by compare-and-swap. The errors of a place are those of an Editor: ErrNotFound, ErrExists, ErrChanged,
// ErrLostAnswer.
type place interface {
	String() string
	// read reads the claim afresh: a *formingError while a run creates it, a *strangeError if
	// something other than a claim of this cluster is there.
	read(ctx context.Context) (State, error)
	create(ctx context.Context, s State) error
	// write changes the claim if it is unchanged since from was read.
	write(ctx context.Context, from, to State) error
	// remove deletes the claim if it is unchanged since s was read.
	remove(ctx context.Context, s State) error
}

// formingError says that a claim is still being created; nothing more is known about it.
type formingError struct{ vm cluster.VM }

func (e *formingError) Error() string { return fmt.Sprintf("%s is being created by someone", e.vm) }

// strangeError says what occupies a claim's place without being a claim of this cluster.
type strangeError struct{ error }

func (e *strangeError) Unwrap() error { return e.error }

// vmPlace is a claim's place in Proxmox.
type vmPlace struct {
	px interface {
		cluster.Inventory
		cluster.Editor
	}
	cluster string
	id      cluster.VMID
	host    string // on which the claim is created
}

func (p vmPlace) String() string { return fmt.Sprintf("VM %d", p.id) }

func (p vmPlace) read(ctx context.Context) (State, error) {
	vm, err := p.px.VMConfig(ctx, p.id)
	switch {
	case err != nil:
		return State{}, fmt.Errorf("look up VM %d: %w", p.id, err)
	case cluster.Forming(vm):
		return State{}, &formingError{vm}
	}
	s, err := ofVM(vm, p.cluster)
	if err != nil {
		return State{}, &strangeError{err}
	}
	return s, nil
}

func (p vmPlace) create(ctx context.Context, s State) error {
	description, err := s.Description()
	if err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("create the claim, VM %d on %s", p.id, p.host), p.px.CreateVM(ctx, p.host, p.id, map[string]string{
		"name": VMName, "memory": "16", "onboot": "0", "protection": "1", "description": description,
	}))
}

func (p vmPlace) write(ctx context.Context, from, to State) error {
	description, err := to.Description()
	if err != nil {
		return err
	}
	// A claim whose delete failed is not protected.
	set := map[string]string{"description": description, "protection": "1"}
	if from.VM.Name != VMName { // someone renamed the VM
		set["name"] = VMName
	}
	return fault.Prefix(fmt.Sprintf("write the claim into %s", from.VM), p.px.SetConfig(ctx, from.VM, set, nil))
}

func (p vmPlace) remove(ctx context.Context, s State) error {
	vm, err := p.px.VM(ctx, p.id)
	switch {
	case err != nil:
		return fmt.Errorf("look up VM %d: %w", p.id, err)
	case vm.Digest != s.VM.Digest || vm.Host != s.VM.Host:
		return fmt.Errorf("%s is no longer as it was read: %w", vm, cluster.ErrChanged)
	}
	disks, err := vm.Disks()
	switch {
	case err != nil:
		return err
	case vm.Running || vm.Template || len(disks) > 0:
		return fault.WithHint(fault.ClaimHeld.Refusedf("%s is not as recast made it: it must be stopped and have no drive", vm),
			"stop VM %d, and give its drives to the VM that they belong to (qm disk move); the next run then takes the claim over and deletes it", vm.ID)
	}
	if err := cluster.RequireQuorum(ctx, p.px); err != nil {
		return err
	}
	// Incrementing the counter makes every run that watches the claim start its watch again, so no run can take the
	// claim over before the delete, which is not conditional. Proxmox may execute a delete after its sender has
	// died, when the number is another run's claim: so a claim is protected until right before its own delete.
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
	if err := cluster.RequireQuorum(ctx, p.px); err != nil { // quorum may have been lost since
		return err
	}
	return fault.Prefix(fmt.Sprintf("delete %s", s.VM), p.px.DeleteVM(ctx, s.VM))
}

// leasePlace is a claim's place in Kubernetes.
type leasePlace struct {
	leases  cluster.Leases
	cluster string
	watch   time.Duration
}

func (p leasePlace) String() string { return "the Lease" }

func (p leasePlace) read(ctx context.Context) (State, error) {
	l, err := p.leases.Lease(ctx)
	if err != nil {
		return State{}, fmt.Errorf("look up the Lease: %w", err)
	}
	s, err := ofLease(l, p.cluster)
	if err != nil {
		return State{}, &strangeError{err}
	}
	return s, nil
}

func ofLease(l cluster.Lease, cluster string) (State, error) {
	s, err := decode(l.Claim)
	if err == nil && s.Run == "" {
		err = errors.New("it names no run")
	}
	if err != nil {
		return State{}, unreadable(fmt.Sprintf("Lease %s: the claim in it can't be read", l.Name), err, "delete that Lease")
	}
	if s.Cluster != cluster {
		return State{}, fault.WithHint(fault.ClaimHeld.Refusedf("Lease %s is the claim of cluster %s, not of %s", l.Name, s.Cluster, cluster),
			"one Kubernetes cluster has one name in every recast.yaml: cluster")
	}
	s.Lease = l
	return s, nil
}

// lease returns the Lease that holds a claim.
func (p leasePlace) lease(s State) (cluster.Lease, error) {
	b, err := s.encode()
	if err != nil {
		return cluster.Lease{}, err
	}
	return cluster.Lease{
		UID: s.Lease.UID, Revision: s.Lease.Revision, Holder: fmt.Sprintf("recast run %s, %s", s.Run, s.Holder), Duration: p.watch,
		Acquired: s.Since, Renewed: time.Now(), Claim: string(b),
	}, nil
}

func (p leasePlace) create(ctx context.Context, s State) error {
	l, err := p.lease(s)
	if err != nil {
		return err
	}
	return fault.Prefix("create the claim, a Lease", p.leases.CreateLease(ctx, l))
}

func (p leasePlace) write(ctx context.Context, from, to State) error {
	to.Lease = from.Lease
	l, err := p.lease(to)
	if err != nil {
		return err
	}
	return fault.Prefix("write the claim into Lease "+from.Lease.Name, p.leases.UpdateLease(ctx, l))
}

func (p leasePlace) remove(ctx context.Context, s State) error {
	return fault.Prefix("delete Lease "+s.Lease.Name, p.leases.DeleteLease(ctx, s.Lease))
}

// Exists says whether there is a claim of the cluster, in Proxmox or as a Lease, held or left over.
func Exists(ctx context.Context, vms []cluster.VM, read func(context.Context) (cluster.Lease, error), name string, id cluster.VMID) (bool, error) {
	_, found, err := Peek(vms, name, id)
	if err == nil && !found {
		_, found, err = PeekLease(ctx, read, name)
	}
	return found, err
}

// PeekLease returns the claim of a cluster that is kept as a Lease, read by read; found is false if there is none.
func PeekLease(ctx context.Context, read func(context.Context) (cluster.Lease, error), name string) (s State, found bool, err error) {
	l, err := read(ctx)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return State{}, false, nil
	case err != nil:
		return State{}, false, fmt.Errorf("look up the Lease: %w", err)
	}
	s, err = ofLease(l, name)
	return s, err == nil, err
}
