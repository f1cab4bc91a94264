package observe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// NewDisk is a blank system disk that a roll creates while the old one stays parked.
type NewDisk struct {
	Node, Host string
	Storage    cluster.Storage
	Bytes      int64
	// Freed is what the same node's roll frees at its end on the same storage, for later disks: old
	// system disks beyond the retention.
	Freed int64
}

// takes returns how much space the disk takes until its node is healthy.
func (d NewDisk) takes() int64 {
	if d.Storage.Thick {
		return d.Bytes
	}
	return min(d.Bytes, max(freshSystem, d.Bytes/freshShare))
}

// SpaceUse is how much new disks take of the space that they share.
type SpaceUse struct {
	Storage, Host string
	Disks         []NewDisk // in the order in which they are created
	Room          cluster.StorageRoom
	thin          *cluster.ThinPool
	unknown       string // why the free space is unknown; "": it is known
	notes         []string
}

// Lacks says for each disk why it can't be created; "" if there is space for it beside the earlier ones. What a
// roll frees at its end counts for later disks, but not for those that may be in progress at the same time.
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
			out[i] = "how large its new system disk is to be can't be determined: the drive has no size=: run qm disk rescan, or set nodes[].systemDisk.sizeGiB"
		case need > u.Room.Free+back:
			out[i] = u.lack(fmt.Sprintf("has %s free", cluster.Size(u.Room.Free+back)), d.takes(), taken, before)
		case u.thin != nil && metadata(need) > u.thin.MetaSize-u.thin.MetaUsed+metadata(back):
			out[i] = fmt.Sprintf("the metadata of thin pool %s/%s on %s has %s left, and the new system disks take %s: extend it (lvextend --poolmetadatasize)",
				u.thin.VG, u.thin.Name, u.Host, cluster.Size(u.thin.MetaSize-u.thin.MetaUsed), cluster.Size(metadata(need)))
		}
		taken, before, freed = need, append(before, d.Node), append(freed, d.Freed)
	}
	return out
}

// Takes returns how much space all disks take together.
func (u SpaceUse) Takes() (total int64) {
	for _, d := range u.Disks {
		total += d.takes()
	}
	return total
}

// Warn says what works at first and may fail later.
func (u SpaceUse) Warn() []string {
	out := slices.Clone(u.notes)
	if u.unknown != "" || u.Room.Total <= 0 || len(u.Disks) == 0 || u.Disks[0].Storage.Thick {
		return out
	}
	grown := u.Room.Total - u.Room.Free
	for _, d := range u.Disks {
		grown += d.Bytes
	}
	if share := float64(grown) / float64(u.Room.Total); share > cluster.FullPool {
		out = append(out, fmt.Sprintf("storage %s on %s would be %.0f%% full if the new system disks filled up while the old ones are parked: "+
			"once it is full, every disk on it fails: extend it, or free old system disks with recast prune", u.Storage, u.Host, 100*share))
	}
	return out
}

func (u SpaceUse) lack(free string, takes, taken int64, before []string) string {
	also := ""
	if len(before) > 0 {
		also = fmt.Sprintf(" besides %s for %s before it", cluster.Size(taken), strings.Join(before, ", "))
	}
	return fmt.Sprintf("storage %s on %s %s, but a new system disk takes %s there%s while the old one stays parked: "+
		"free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage", u.Storage, u.Host, free, cluster.Size(takes), also)
}

// SpaceUses groups new disks by the space that they share: on a shared storage across hosts, else
// per host, with all storages of one pool together.
func SpaceUses(disks []NewDisk, rooms map[string]cluster.Room) []SpaceUse {
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

// What a fresh system writes to a disk that grows with its data: the images of kernel and initramfs
// (twice, for the upgrade after this one), XFS on EPHEMERAL, and the container images of Talos,
// Kubernetes and the evicted pods, which are pulled again. No figure is right for every cluster: 4
// GiB are plenty for the first ones, a fifth of the disk stands for the last.
const (
	freshSystem = 4 << 30
	freshShare  = 5
)

func metadata(bytes int64) int64 { return bytes / thinBlock * thinMetadata }

func newSpaceUse(d NewDisk, rooms map[string]cluster.Room) SpaceUse {
	u := SpaceUse{Storage: d.Storage.Name, Host: d.Host}
	room, asked := rooms[d.Host]
	i := slices.IndexFunc(room.Storages, func(s cluster.StorageRoom) bool { return s.Name == d.Storage.Name })
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
		u.notes = append(u.notes, fmt.Sprintf("how full the metadata of thin pool %s on %s is can't be determined: %s", d.Storage.Pool, u.Host, why))
	}
	return u
}

// settled returns how much of what rolls free at their end is certainly free again while underWay of them are still
// in progress: those are assumed to be the largest.
func settled(freed []int64, underWay int) (total int64) {
	sorted := slices.Sorted(slices.Values(freed))
	for _, f := range sorted[:max(0, len(sorted)-max(0, underWay))] {
		total += f
	}
	return total
}

// The metadata that a thin pool needs for a block of data, and the smallest block size (Linux,
// Documentation/admin-guide/device-mapper/thin-provisioning.rst).
const (
	thinMetadata = 48
	thinBlock    = 64 << 10
)
