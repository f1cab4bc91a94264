package cluster

import (
	"context"
	"time"
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
