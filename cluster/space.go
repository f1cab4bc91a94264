package cluster

import (
	"context"
	"fmt"
)

// Room is what room a host has for disks of VMs.
type Room struct {
	Storages  []StorageRoom // those that take disks of VMs there, by name
	ThinPools []ThinPool    // of the host, where such a storage lies on one
	ErrPools  error         // of reading them
	Err       error         // why none of this could be read
}

// StorageRoom is one storage as a host sees it. One that is not active has no figures.
type StorageRoom struct {
	Name        string
	Active      bool
	Total, Free int64 // bytes
}

// FullPool is how full a thin pool may be: once it has no room left, every disk
// in it fails, not only the one that grew.
const FullPool = 0.9

// Size writes bytes as people do.
func Size(bytes int64) string {
	if bytes < 10<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d GiB", bytes>>30)
}

func RoomOn(ctx context.Context, px StorageReader, host string) Room {
	room, err := px.Room(ctx, host)
	room.Err = err
	return room
}
