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

// SeenFromProxmox is what forbids a strategy whatever the machine would say.
func (c Candidate) SeenFromProxmox() map[Strategy][]string {
	var replacing []string
	if c.DisksErr != nil {
		replacing = append(replacing, c.DisksErr.Error())
	}
	replacing = slices.Concat(replacing, Texts(c.Occupied()), Texts(c.Entangled()), Texts(c.preconfigured()))
	return map[Strategy][]string{
		Recreate: slices.Concat(replacing, Texts(c.Tied()), Texts(c.unwritable()), c.Immovable(Recreate)),
		Reimage:  replacing,
	}
}

// CanReassign says whether storages of that type can hand a disk over to another VM.
func (s Storage) CanReassign() bool { return slices.Contains(reassigns, s.Type) }
