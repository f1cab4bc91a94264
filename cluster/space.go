package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
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

// NewDisk is a blank system disk that a roll makes while the old one stays parked.
type NewDisk struct {
	Node, Host string
	Storage    Storage
	Bytes      int64
	// Freed is what the same node's roll frees at its end on the same storage, for
	// those after it: old system disks beyond the retention.
	Freed int64
}

// What a fresh system writes into a disk that grows with its data: the images of
// kernel and initramfs (twice, for the upgrade after this one), XFS on EPHEMERAL,
// and there the container images of Talos, of Kubernetes and of the pods that
// were evicted, which are pulled again. No figure is right for everybody: 4 GiB
// hold the first ones with ease, a fifth of the disk stands for the last.
const (
	freshSystem = 4 << 30
	freshShare  = 5
)

// What a thin pool's metadata takes for a block of data, and the smallest such
// block (Linux, Documentation/admin-guide/device-mapper/thin-provisioning.rst).
const (
	thinMetadata = 48
	thinBlock    = 64 << 10
)

// FullPool is how full a thin pool may be: once it has no room left, every disk
// in it fails, not only the one that grew.
const FullPool = 0.9

// takes is what the disk takes until its node is healthy.
func (d NewDisk) takes() int64 {
	if d.Storage.Thick {
		return d.Bytes
	}
	return min(d.Bytes, max(freshSystem, d.Bytes/freshShare))
}

// SpaceUse is what new disks take of the room that they share.
type SpaceUse struct {
	Storage, Host string
	Disks         []NewDisk // in the order in which they are made
	Room          StorageRoom
	thin          *ThinPool
	unknown       string // why the room can't be told; "": it can
	notes         []string
}

// SpaceUses sorts new disks by the room that they share: a shared storage's
// wherever they are, else their host's, and that of storages on one pool together.
func SpaceUses(disks []NewDisk, rooms map[string]Room) []SpaceUse {
	var uses []SpaceUse
	var keys []string
	for _, d := range disks {
		key := d.Storage.Pool
		if key == "" {
			key = "storage " + d.Storage.Name
		}
		if !d.Storage.Shared {
			key += " on " + d.Host
		}
		i := slices.Index(keys, key)
		if i < 0 {
			i = len(keys)
			keys = append(keys, key)
			uses = append(uses, newSpaceUse(d, rooms))
		}
		uses[i].Disks = append(uses[i].Disks, d)
	}
	return uses
}

func newSpaceUse(d NewDisk, rooms map[string]Room) SpaceUse {
	u := SpaceUse{Storage: d.Storage.Name, Host: d.Host}
	room, asked := rooms[d.Host]
	i := slices.IndexFunc(room.Storages, func(s StorageRoom) bool { return s.Name == d.Storage.Name })
	switch {
	case !asked:
		u.unknown = fmt.Sprintf("nobody asked %s for its room", d.Host)
		return u
	case room.Err != nil:
		u.unknown = fmt.Sprintf("the room on %s can't be read: %v", d.Host, room.Err)
		return u
	case i < 0:
		u.unknown = fmt.Sprintf("storage %s takes no disks on %s: see its content, nodes and state (pvesm status)", u.Storage, u.Host)
		return u
	case !room.Storages[i].Active:
		u.unknown = fmt.Sprintf("storage %s is not active on %s: see pvesm status there", u.Storage, u.Host)
		return u
	}
	u.Room = room.Storages[i]
	if d.Storage.Type != "lvmthin" {
		return u
	}
	for _, p := range room.ThinPools {
		if p.VG+"/"+p.Name == d.Storage.Pool {
			u.thin = &p
		}
	}
	if u.thin == nil {
		why := "Proxmox does not list it"
		if room.ErrPools != nil {
			why = room.ErrPools.Error()
		}
		u.notes = append(u.notes, fmt.Sprintf("how full the metadata of thin pool %s on %s is can't be told: %s", d.Storage.Pool, u.Host, why))
	}
	return u
}

// Takes is what all of them take together.
func (u SpaceUse) Takes() (total int64) {
	for _, d := range u.Disks {
		total += d.takes()
	}
	return total
}

// Lacks says for each of the disks why it can't be made; "": there is room for
// it beside those before it. What a roll frees at its end counts for those that
// come after, but for those that may be under way at the same time.
func (u SpaceUse) Lacks(atOnce int) []string {
	out := make([]string, len(u.Disks))
	var taken int64
	var before []string
	var freed []int64
	for i, d := range u.Disks {
		back := settled(freed, atOnce-1)
		need := taken + d.takes()
		switch {
		case u.unknown != "":
			out[i] = u.unknown
		case d.Bytes <= 0:
			out[i] = "how large its new system disk is to be can't be told: the drive has no size=: run qm disk rescan, or set nodes[].systemDisk.sizeGiB"
		case need > u.Room.Free+back:
			out[i] = u.lack(fmt.Sprintf("has %s free", Size(u.Room.Free+back)), d.takes(), taken, before)
		case u.thin != nil && metadata(need) > u.thin.MetaSize-u.thin.MetaUsed+metadata(back):
			out[i] = fmt.Sprintf("the metadata of thin pool %s/%s on %s has %s left, and the new system disks take %s: extend it (lvextend --poolmetadatasize)",
				u.thin.VG, u.thin.Name, u.Host, Size(u.thin.MetaSize-u.thin.MetaUsed), Size(metadata(need)))
		}
		taken, before, freed = need, append(before, d.Node), append(freed, d.Freed)
	}
	return out
}

// settled is what certainly is free again of what rolls free at their end, while
// as many others are still under way: the largest are taken to be theirs.
func settled(freed []int64, underWay int) (total int64) {
	sorted := slices.Sorted(slices.Values(freed))
	for _, f := range sorted[:max(0, len(sorted)-max(0, underWay))] {
		total += f
	}
	return total
}

func metadata(bytes int64) int64 { return bytes / thinBlock * thinMetadata }

func (u SpaceUse) lack(free string, takes, taken int64, before []string) string {
	also := ""
	if len(before) > 0 {
		also = fmt.Sprintf(" besides %s for %s before it", Size(taken), strings.Join(before, ", "))
	}
	return fmt.Sprintf("storage %s on %s %s, but a new system disk takes %s there%s while the old one stays parked: "+
		"free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage", u.Storage, u.Host, free, Size(takes), also)
}

// Warn says what goes well at first and may end badly.
func (u SpaceUse) Warn() []string {
	out := slices.Clone(u.notes)
	if u.unknown != "" || u.Room.Total <= 0 || len(u.Disks) == 0 || u.Disks[0].Storage.Thick {
		return out
	}
	grown := u.Room.Total - u.Room.Free
	for _, d := range u.Disks {
		grown += d.Bytes
	}
	if share := float64(grown) / float64(u.Room.Total); share > FullPool {
		out = append(out, fmt.Sprintf("storage %s on %s would be %.0f%% full if the new system disks filled up while the old ones are parked: "+
			"once it is full, every disk on it fails: extend it, or free old system disks with recast prune", u.Storage, u.Host, 100*share))
	}
	return out
}

// Size writes bytes as people do.
func Size(bytes int64) string {
	if bytes < 10<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d GiB", bytes>>30)
}

// hostsOf are the hosts of the nodes' VMs.
func hostsOf(found []Found) []string {
	var hosts []string
	for _, f := range found {
		if f.VM != nil && !slices.Contains(hosts, f.VM.Host) {
			hosts = append(hosts, f.VM.Host)
		}
	}
	return hosts
}

// roomsOf asks hosts. One that does not answer is in the way of its own nodes only.
func roomsOf(ctx context.Context, px StorageReader, hosts []string) map[string]Room {
	read := make([]Room, len(hosts))
	g := errgroup.Group{}
	g.SetLimit(ObserveLimit)
	for i, host := range hosts {
		g.Go(func() error { read[i] = RoomOn(ctx, px, host); return nil })
	}
	_ = g.Wait() // none of them returns an error: each is in its room
	rooms := map[string]Room{}
	for i, host := range hosts {
		rooms[host] = read[i]
	}
	return rooms
}

func RoomOn(ctx context.Context, px StorageReader, host string) Room {
	room, err := px.Room(ctx, host)
	room.Err = err
	return room
}
