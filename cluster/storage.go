package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Room is the space that a host has for disks of VMs.
type Room struct {
	Storages  []StorageRoom // those that take disks of VMs there, by name
	ThinPools []ThinPool    // of the host, if such a storage is on one
	ErrPools  error         // of reading them
	Err       error         // why none of this could be read
}

// StorageRoom is one storage as a host sees it. One that is not active has no figures.
type StorageRoom struct {
	Name        string
	Active      bool
	Total, Free int64 // bytes

	Ceph    bool     // on the Proxmox hosts' own Ceph, which says the following
	Blocked string   // why reads or writes wait; "": they don't
	Notes   []string // what may become worse
}

// FullPool is how full a thin pool may be: once it has no room left, every disk
// in it fails, not only the one that grew.
const FullPool = 0.9

// Size formats bytes for people.
func Size(bytes int64) string {
	if bytes < 10<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d GiB", bytes>>30)
}

// RoomOn reads the room on the storages of a host; Room.Err says why it could not be read.
func RoomOn(ctx context.Context, px StorageReader, host string) Room {
	room, err := px.Room(ctx, host)
	room.Err = err
	return room
}

// Host is the state of a Proxmox node, as it says itself. What could not be read is zero and has
// its reason in Errs.
type Host struct {
	Name      string
	Online    bool
	Entry     bool   // the one whose API answered: uploads are spooled there
	Version   string // "9.2.11"
	Clock     time.Time
	Asked     time.Time // the time to compare Clock with
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

// CanReassign says whether storages of that type can give a disk to another VM.
func (s Storage) CanReassign() bool { return slices.Contains(Reassigns, s.Type) }
