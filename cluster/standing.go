package cluster

import (
	"slices"
	"time"
)

// Host is a Proxmox node as it says it stands. What could not be read is zero
// and has its reason in Errs.
type Host struct {
	Name      string
	Online    bool
	Entry     bool   // the one whose API answered: uploads are spooled there
	Version   string // "9.2.11"
	Clock     time.Time
	Asked     time.Time // the moment that Clock is to be held against
	SpoolFree int64     // bytes free on its root filesystem, which has /var/tmp
	ThinPools []ThinPool
	ErrPools  error // of reading them: a host need not have LVM at all
	Errs      []error
}

// ThinPool is an LVM thin pool of a host.
type ThinPool struct {
	VG, Name           string
	Size, Used         int64 // bytes
	MetaSize, MetaUsed int64
}

// CanReassign says whether storages of that type can hand a disk over to another VM.
func (s Storage) CanReassign() bool { return slices.Contains(Reassigns, s.Type) }
