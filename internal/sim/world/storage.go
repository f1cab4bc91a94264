package world

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Storage is a Proxmox storage as it is defined for the whole cluster.
type Storage struct {
	ID       string
	Type     string   // "dir", "nfs", "cephfs", "btrfs", "lvm", "lvmthin", "zfspool", "rbd", "iscsi", "pbs"
	Content  []string // "images", "iso", "vztmpl", "snippets", "import", "backup"
	Shared   bool     // the same volumes on every host; else each host has its own
	Hosts    []string // where it is; nil: everywhere
	Capacity int64    // bytes, per host unless shared; 0 means 1 TiB
	NoRename bool     // volumes can't be given to another VM, whatever the type
	// VolumeGroup and ThinPool are what an lvm or lvmthin storage lies on; "" means "pve" and the storage's name.
	VolumeGroup, ThinPool string
	Pool                  string // of ZFS or Ceph; "" means "rpool/data" and "rbd"
	Sparse                bool   // ZFS: volumes reserve nothing
	Preallocation         string // of files: "off", "metadata", "falloc", "full"; "" is the default
}

// VolumeInfo is a volume as the content listing of a storage shows it.
type VolumeInfo struct {
	Volid   string
	Content string // "images", "iso", "import", "vztmpl", "snippets" or "backup"
	Format  string // "raw", "qcow2", "iso"
	Size    int64
	Used    int64  // what is allocated of it, where its storage can tell
	Parent  string // what a linked clone is built on, as its storage calls that
	Owner   int    // VMID in the name; 0 for ISOs
	Path    string // of the file or device
	Created time.Time
}

// StorageStatus is a storage as one host sees it.
type StorageStatus struct {
	Storage
	Used, Available int64
	Enabled         bool // it is for that host
	Active          bool // it can be used there now
}

const gib = int64(1) << 30

type storage struct {
	Storage
	volumes map[string]map[string]*volume // host ("" when shared) -> name -> volume
	full    bool
	offline map[string]bool // hosts that can't reach it
	pools   map[string]ThinPool
	busy    int // how many of its next renames fail; < 0: all
	busyAs  RenameFault
}

type volume struct {
	name    string // "9011/vm-9011-disk-0.raw", "vm-9011-disk-0", "iso/x.iso"
	content string // "": Proxmox doesn't list it
	format  string
	size    int64
	media   *Media
	written int64 // bytes written when it was made, whatever the media holds
	created time.Time
	synced  map[string]int64 // replication jobs: which of their snapshots it has
}

// AddStorage defines a storage.
func (w *World) AddStorage(s Storage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Capacity = cmp.Or(s.Capacity, 1024*gib)
	switch s.Type {
	case "lvmthin":
		s.VolumeGroup, s.ThinPool = cmp.Or(s.VolumeGroup, "pve"), cmp.Or(s.ThinPool, s.ID)
	case "lvm":
		s.VolumeGroup = cmp.Or(s.VolumeGroup, "pve")
	case "zfspool":
		s.Pool = cmp.Or(s.Pool, "rpool/data")
	case "rbd":
		s.Pool = cmp.Or(s.Pool, "rbd")
	}
	w.storages[s.ID] = &storage{
		Storage: s, volumes: map[string]map[string]*volume{}, offline: map[string]bool{}, pools: map[string]ThinPool{},
	}
}

// block says that volumes have neither directory nor extension in their names.
func (s *storage) block() bool {
	return slices.Contains([]string{"lvm", "lvmthin", "zfspool", "zfs", "rbd", "iscsi", "iscsidirect"}, s.Type)
}

// fixed says that volumes are neither made nor freed by Proxmox: they are somebody's LUNs.
func (s *storage) fixed() bool { return s.Type == "iscsi" || s.Type == "iscsidirect" }

// renames is what volume_has_feature says of "rename" in the plugins of pve-storage.
func (s *storage) renames() bool {
	return !s.NoRename && !slices.Contains([]string{"iscsi", "iscsidirect", "zfs", "esxi", "pbs"}, s.Type)
}

// snapshots is volume_has_feature's answer to "snapshot" for a volume of that format.
func (s *storage) snapshots(format string) bool {
	switch s.Type {
	case "lvmthin", "zfspool", "zfs", "rbd", "btrfs":
		return true
	}
	return format == "qcow2"
}

// replicates is storage_can_replicate: nothing but local ZFS does.
func (s *storage) replicates() bool { return s.Type == "zfspool" }

func (s *storage) on(host string) bool {
	return len(s.Hosts) == 0 || slices.Contains(s.Hosts, host)
}

func (s *storage) holds(content string) bool { return slices.Contains(s.Content, content) }

// at is the set of volumes that a host sees.
func (s *storage) at(host string) map[string]*volume {
	if s.Shared {
		host = ""
	}
	if s.volumes[host] == nil {
		s.volumes[host] = map[string]*volume{}
	}
	return s.volumes[host]
}

// storageOn finds a storage that a host has.
func (w *World) storageOn(id, host string) (*storage, error) {
	s, ok := w.storages[id]
	if !ok {
		return nil, failf("storage '%s' does not exist", id)
	}
	if !s.on(host) {
		return nil, failf("storage '%s' is not available on node '%s'", id, host)
	}
	return s, nil
}

// volumeNamed is volume where nobody asks why there is none.
func (w *World) volumeNamed(volid, host string) *volume {
	if dev := w.devices[host][volid]; dev != nil {
		return dev
	}
	id, name, _ := strings.Cut(volid, ":")
	s := w.storages[id]
	if s == nil || !s.on(host) {
		return nil
	}
	return s.at(host)[name]
}

// volume finds a volume, or a block device of its own (without storage), as a host sees it.
func (w *World) volume(volid, host string) (*storage, *volume, error) {
	if dev := w.devices[host][volid]; dev != nil {
		return nil, dev, nil
	}
	id, name, ok := strings.Cut(volid, ":")
	if !ok {
		return nil, nil, failf("unable to parse volume ID '%s'", volid)
	}
	s, err := w.storageOn(id, host)
	if err != nil {
		return nil, nil, err
	}
	v, ok := s.at(host)[name]
	if !ok {
		return s, nil, failf("volume '%s' does not exist", volid)
	}
	return s, v, nil
}

// allocate makes a disk volume for a VM and returns its volid.
func (w *World) allocate(s *storage, host string, owner int, format string, size int64, media *Media) (string, error) {
	if s.block() && format != "" && format != "raw" {
		return "", failf("unsupported format '%s'", format)
	}
	return w.allocateNamed(s, host, s.freeName(host, owner, cmp.Or(format, "raw")), size, media)
}

func (w *World) allocateNamed(s *storage, host, name string, size int64, media *Media) (string, error) {
	if s.fixed() {
		return "", failf("can't allocate space in iscsi storage")
	}
	if !s.holds("images") {
		return "", failf("storage '%s' does not support content-type 'images'", s.ID)
	}
	if err := s.activate(host); err != nil {
		return "", err
	}
	format := cmp.Or(strings.TrimPrefix(path.Ext(name), "."), "raw")
	size = s.aligned(size)
	switch free := s.Capacity - s.used(host); {
	case s.room(host, s.firstTaken(size)):
	case s.Type == "lvm": // alloc_lvm_image of LVMPlugin.pm counts in kilobytes
		return "", failf("not enough free space (%d < %d)", free>>10, size>>10)
	default:
		return "", failf("unable to create image: qemu-img: %s:%s: Could not preallocate data for the new file: No space left on device", s.ID, name)
	}
	s.at(host)[name] = &volume{name: name, content: "images", format: format, size: size, media: media, created: w.now(host)}
	return s.ID + ":" + name, nil
}

// aligned is what a volume of that size takes: LVM counts in extents, ZFS and Ceph
// in megabytes (alloc_image of the plugins).
func (s *storage) aligned(size int64) int64 {
	switch s.Type {
	case "lvm", "lvmthin":
		return roundUp(size, 4<<20)
	case "zfspool", "rbd":
		return roundUp(size, 1<<20)
	}
	return size
}

// forgives says that freeing what is not there is no error: a missing file is
// warned of, LVM-thin removes a volume "if exists", ZFS takes a data set that does
// not exist as destroyed (free_image of Plugin.pm, LvmThinPlugin.pm, ZFSPoolPlugin.pm).
func (s *storage) forgives() bool {
	return !s.block() || s.Type == "lvmthin" || s.Type == "zfspool"
}

// freeVolume deletes a volume; that it is in use somewhere matters to nobody,
// as in Proxmox. Where that is forgiven, one that is not there any more counts as deleted.
func (w *World) freeVolume(volid, host string) error {
	s, v, err := w.volume(volid, host)
	if s != nil {
		if err := s.activate(host); err != nil { // vdisk_free of Storage.pm
			return err
		}
	}
	switch {
	case s != nil && s.fixed():
		return failf("can't free space in iscsi storage")
	case s != nil && v == nil && s.forgives():
		return nil
	case err != nil:
		return err
	}
	if s.cloned(host, v) {
		return failf("base volume '%s' is still in use by linked clones", v.name)
	}
	w.violateLoss(volid, v)
	delete(s.at(host), v.name)
	return nil
}

// AddLUN puts a LUN on an iSCSI storage: a volume that belongs to no VM.
func (w *World) AddLUN(storageID, host, name string, size int64, m *Media) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(storageID, host)
	if err != nil {
		return fmt.Errorf("add LUN %s: %w", name, err)
	}
	s.at(host)[name] = &volume{name: name, content: "images", format: "raw", size: size, media: m, created: w.now(host)}
	return nil
}

// Alloc makes a volume of a VM's number that no configuration names, as pvesm
// alloc on a Proxmox node does; without media it is blank.
func (w *World) Alloc(storageID, host string, vmid int, size int64, m *Media) (volid string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(storageID, host)
	if err != nil {
		return "", err
	}
	if m == nil {
		m = NewMedia(nil)
	}
	return w.allocate(s, host, vmid, "", size, m)
}

// AddDevice gives a host a block device that VMs can be given as it is, by its path.
func (w *World) AddDevice(host, path string, size int64, m *Media) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.devices[host] == nil {
		w.devices[host] = map[string]*volume{}
	}
	w.devices[host][path] = &volume{name: path, content: "images", format: "raw", size: size, media: m, created: w.now(host)}
}

// StorageConfig lists the storages of the whole cluster, by name.
func (w *World) StorageConfig() []Storage {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []Storage
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		list = append(list, w.storages[id].Storage)
	}
	return list
}

// Storages lists the cluster's storages as a host sees them, by name.
func (w *World) Storages(host string) []StorageStatus {
	w.mu.Look()
	defer w.mu.Unlock()
	var list []StorageStatus
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		s := w.storages[id]
		if !s.on(host) {
			list = append(list, StorageStatus{Storage: s.Storage})
			continue
		}
		used := s.used(host)
		list = append(list, StorageStatus{Storage: s.Storage, Used: used, Available: max(0, s.Capacity-used), Enabled: true, Active: !s.offline[host]})
	}
	return list
}

// Volumes lists a storage's content as a host sees it, by volid.
func (w *World) Volumes(id, host string) ([]VolumeInfo, error) {
	w.mu.Look()
	defer w.mu.Unlock()
	s, err := w.storageOn(id, host)
	if err != nil {
		return nil, err
	}
	if err := s.activate(host); err != nil {
		return nil, err
	}
	var list []VolumeInfo
	for _, name := range slices.Sorted(maps.Keys(s.at(host))) {
		v := s.at(host)[name]
		if v.content == "" {
			continue
		}
		list = append(list, VolumeInfo{
			Volid: id + ":" + name, Content: v.content, Format: v.format, Size: v.size, Used: s.allocated(v), Parent: s.parentOf(name),
			Owner: max(volumeOwner(name), backupOwner(name)), Created: v.created, Path: s.filePath(name),
		})
	}
	return list, nil
}

// Media is the content of the volume that a host knows under that volid; nil when there is none.
func (w *World) Media(volid, host string) *Media {
	w.mu.Look()
	defer w.mu.Unlock()
	v := w.volumeNamed(volid, host)
	if v == nil {
		return nil
	}
	return v.media
}
