package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// Leases keeps the claim of a run whose Proxmox token may not make VMs: as a
// Lease of Kubernetes, in kube-system.
type Leases interface {
	// Lease reads the claim's Lease. ErrNotFound if there is none; ErrNoAnswer if
	// the API can't tell.
	Lease(ctx context.Context) (Lease, error)
	// CreateLease makes it. ErrExists if somebody was faster.
	CreateLease(ctx context.Context, l Lease) error
	// UpdateLease writes it if it still is that one, with that revision, else ErrChanged.
	UpdateLease(ctx context.Context, l Lease) error
	// DeleteLease deletes it if it still is that one, with that revision, else ErrChanged.
	DeleteLease(ctx context.Context, l Lease) error
}

// Lease is a Lease that is a claim.
type Lease struct {
	Name     string // as Kubernetes knows it: "kube-system/recast"
	UID      string // "" while it is to be made
	Revision string
	Holder   string // for people
	Duration time.Duration
	Acquired time.Time
	Renewed  time.Time
	Claim    string // what recast reads; "": somebody else's Lease
}

// claimLease is a claim's place in Kubernetes.
type claimLease struct {
	leases  Leases
	cluster string
	watch   time.Duration
}

func (p claimLease) String() string { return "the Lease" }

func (p claimLease) read(ctx context.Context) (ClaimState, error) {
	l, err := p.leases.Lease(ctx)
	if err != nil {
		return ClaimState{}, fmt.Errorf("look up the Lease: %w", err)
	}
	s, err := claimOfLease(l, p.cluster)
	if err != nil {
		return ClaimState{}, &strangeError{err}
	}
	return s, nil
}

func claimOfLease(l Lease, cluster string) (ClaimState, error) {
	var s ClaimState
	if err := json.Unmarshal([]byte(l.Claim), &s); err != nil || s.Run == "" {
		return ClaimState{}, fault.WithHint(fault.ClaimHeld.Refusedf("Lease %s is no claim of recast that can be read", l.Name),
			"make sure that no run is at work, then delete that Lease")
	}
	if s.Cluster != cluster {
		return ClaimState{}, fault.WithHint(fault.ClaimHeld.Refusedf("Lease %s is the claim of cluster %s, not of %s", l.Name, s.Cluster, cluster),
			"one Kubernetes cluster has one name in every recast.yaml: cluster")
	}
	s.Lease = l
	return s, nil
}

// lease is what a claim is written as.
func (p claimLease) lease(s ClaimState) (Lease, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return Lease{}, fmt.Errorf("claim of cluster %s: %w", s.Cluster, err)
	}
	return Lease{
		UID: s.Lease.UID, Revision: s.Lease.Revision, Holder: fmt.Sprintf("recast run %s, %s", s.Run, s.Holder), Duration: p.watch,
		Acquired: s.Since, Renewed: time.Now(), Claim: string(b),
	}, nil
}

func (p claimLease) create(ctx context.Context, s ClaimState) error {
	l, err := p.lease(s)
	if err != nil {
		return err
	}
	return fault.Prefix("create the claim, a Lease", p.leases.CreateLease(ctx, l))
}

func (p claimLease) write(ctx context.Context, from, to ClaimState) error {
	to.Lease = from.Lease
	l, err := p.lease(to)
	if err != nil {
		return err
	}
	return fault.Prefix("write the claim into Lease "+from.Lease.Name, p.leases.UpdateLease(ctx, l))
}

func (p claimLease) remove(ctx context.Context, s ClaimState) error {
	return fault.Prefix("delete Lease "+s.Lease.Name, p.leases.DeleteLease(ctx, s.Lease))
}

// PeekLease says who holds the claim of a cluster that is kept as a Lease, which
// read reads; found is false when nobody does.
func PeekLease(ctx context.Context, read func(context.Context) (Lease, error), cluster string) (s ClaimState, found bool, err error) {
	l, err := read(ctx)
	switch {
	case errors.Is(err, ErrNotFound):
		return ClaimState{}, false, nil
	case err != nil:
		return ClaimState{}, false, fmt.Errorf("look up the Lease: %w", err)
	}
	s, err = claimOfLease(l, cluster)
	return s, err == nil, err
}
