package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

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

// lease is the Lease that a claim is written as.
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

// PeekLease returns the claim of a cluster that is kept as a Lease, which read reads; found is
// false if there is none.
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
