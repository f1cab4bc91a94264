package cluster

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Room is the space that a host has for disks of VMs.
type Room struct {
	Storages  []StorageRoom // the storages that take disks of VMs on the host, by name
	ThinPools []ThinPool    // of the host, if such a storage is on one
	ErrPools  error         // of reading ThinPools
	Err       error         // why none of this could be read
}

// StorageRoom is one storage as a host sees it. A storage that is not active has no figures.
type StorageRoom struct {
	Name        string
	Active      bool
	Total, Free int64 // bytes

	Ceph    bool     // on the Proxmox hosts' own Ceph, which reports Blocked and Notes
	Blocked string   // why reads or writes wait; "": they do not wait
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

// Host is the state of a Proxmox node, as the node says itself. A value that could not be read is zero, and Errs has
// the reason.
type Host struct {
	Name      string
	Online    bool
	Entry     bool   // the host whose API answered: uploads are spooled there
	Version   string // "9.2.11"
	Clock     time.Time
	Asked     time.Time // the time to compare Clock with
	SpoolFree int64     // bytes free on its root filesystem, which has /var/tmp
	ThinPools []ThinPool
	ErrPools  error // of reading ThinPools: a host need not have LVM at all
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

// SameVolume says whether two drives name one volume, in whatever spelling: with or without the base of a
// linked clone (pve-storage, Storage/Plugin.pm, filesystem_path, leaves that out), by two storages on the
// same space, or by its path. Both drives must be of VMs that see the same storages.
func SameVolume(a, b Disk, storages []Storage) bool {
	switch {
	case a.Volid == b.Volid:
		return true
	case a.OfHost() && b.OfHost():
		return path.Clean(a.Volid) == path.Clean(b.Volid)
	case a.OfHost():
		return atPath(a.Volid, b, storages)
	case b.OfHost():
		return atPath(b.Volid, a, storages)
	}
	return a.image() == b.image() && samePlace(a.Storage(), b.Storage(), storages)
}

// NamesVolume says whether the drive names a volume that two slots can't share: not an ISO, not an empty
// drive, and not the cloud-init drive, which Proxmox generates.
func (d Disk) NamesVolume() bool {
	return strings.ContainsAny(d.Volid, ":/") && !d.CloudInit() && (!d.CDROM || d.Owner != 0)
}

// image is the volume's name on its storage without a linked clone's base: "9011/vm-9011-disk-1.raw", "vm-9011-disk-1".
func (d Disk) image() string {
	_, name, _ := strings.Cut(d.Volid, ":")
	dir, file := path.Split(name)
	if owner := path.Base(dir); owner != "" {
		if _, err := strconv.Atoi(owner); err == nil {
			return owner + "/" + file
		}
	}
	return file
}

// Mentions says whether a drive's value can name the volume: a quick test before it is parsed.
func (d Disk) Mentions(value string) bool {
	if d.OfHost() {
		return strings.Contains(value, ":") || strings.Contains(value, "/")
	}
	_, name, _ := strings.Cut(d.Volid, ":")
	_, name = path.Split(name)
	name = path.Base(name)
	return strings.Contains(value, name) || strings.Contains(value, "--") && strings.Contains(value, strings.ReplaceAll(name, "-", "--"))
}

func samePlace(a, b string, storages []Storage) bool {
	if a == b {
		return true
	}
	s, okS := storageNamed(a, storages)
	t, okT := storageNamed(b, storages)
	if !okS || !okT {
		return false
	}
	return s.Dir != "" && s.Dir == t.Dir || s.Pool != "" && s.volumeGroup() == t.volumeGroup()
}

func storageNamed(name string, storages []Storage) (Storage, bool) {
	return Find(storages, func(s Storage) bool { return s.Name == name })
}

// volumeGroup returns the namespace in which a volume's name is unique. Thin and thick volumes of one LVM group share
// a namespace.
func (s Storage) volumeGroup() string {
	if strings.HasPrefix(s.Type, "lvm") {
		group, _, _ := strings.Cut(s.Pool, "/")
		return "lvm " + group
	}
	return s.Pool
}

// atPath says whether a path on a host is the path of a volume. The device mapper doubles the hyphens of a name.
// Where the storage's own path is not known, the volume's name decides.
func atPath(at string, d Disk, storages []Storage) bool {
	at = strings.ReplaceAll(path.Clean(at), "--", "-")
	name := path.Base(d.image())
	if base := path.Base(at); base != name && !(strings.HasPrefix(at, "/dev/mapper/") && strings.HasSuffix(base, "-"+name)) {
		return false
	}
	s, _ := storageNamed(d.Storage(), storages)
	switch {
	case s.Dir != "":
		return strings.HasPrefix(at, s.Dir+"/")
	case strings.HasPrefix(s.Type, "lvm") && s.Pool != "":
		group, _, _ := strings.Cut(s.Pool, "/")
		return strings.HasPrefix(at, "/dev/"+group+"/") || strings.HasPrefix(at, "/dev/mapper/"+group+"-")
	case s.Type == "zfspool" && s.Pool != "":
		return strings.HasSuffix(path.Dir(at), strings.TrimPrefix(s.Pool, "zfs "))
	}
	return true
}
