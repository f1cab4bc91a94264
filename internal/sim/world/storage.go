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

// Storage is the cluster-wide definition of a Proxmox storage.
type Storage struct {
	ID       string
	Type     string   // "dir", "nfs", "cephfs", "btrfs", "lvm", "lvmthin", "zfspool", "rbd", "iscsi", "pbs"
	Content  []string // "images", "iso", "vztmpl", "snippets", "import"
	Shared   bool     // the same volumes on every host; else each host has its own
	Hosts    []string // nil: all
	Capacity int64    // bytes, per host unless shared; 0 means 1 TiB
	// VolumeGroup and ThinPool are the names of an lvm or lvmthin storage; "" means "pve" and the storage's name.
	VolumeGroup, ThinPool string
	Pool                  string // of ZFS or Ceph; "" means "rpool/data" and "rbd"
	MonHost               string // monitors of a Ceph elsewhere; "" is the hosts' own
	Sparse                bool   // ZFS: volumes reserve nothing
	Preallocation         string // of files: "off", "metadata", "falloc", "full"; "" is the default
}

// VolumeInfo is a volume in the content listing of a storage.
type VolumeInfo struct {
	Volid   string
	Content string // "images", "iso", "import", "vztmpl" or "snippets"
	Format  string // "raw", "qcow2", "iso"
	Size    int64
	Disk    int64  // size of the disk in an image to import; 0 if it is none
	Used    int64  // allocated bytes, if its storage reports them
	Parent  string // base of a linked clone, in its storage's form
	Owner   int    // VMID in the name; 0 for ISOs
	Path    string // of the file or device
	Created time.Time
}

// StorageStatus is the status of a storage on one host.
type StorageStatus struct {
	Storage
	Used, Available int64
	Enabled         bool // defined for that host
	Active          bool // usable there now
}

const gib = int64(1) << 30

type storage struct {
	Storage
	volumes map[string]map[string]*volume // host ("" when shared) -> name -> volume
	full    bool
	offline map[string]bool // hosts that can't reach it
	pools   map[string]ThinPool
	busy    int // number of renames that will fail; < 0: all
	busyAs  RenameFault
}

type volume struct {
	name    string // "9011/vm-9011-disk-0.raw", "vm-9011-disk-0", "iso/x.iso"
	content string // "": not listed by Proxmox
	format  string
	size    int64
	media   *Media
	written int64 // bytes written at creation, whatever the media holds
	created time.Time
	synced  map[string]int64 // replication jobs: which of their snapshots it has
}

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

// block reports whether volumes have neither directory nor extension in their names.
func (s *storage) block() bool {
	return slices.Contains([]string{"lvm", "lvmthin", "zfspool", "zfs", "rbd", "iscsi", "iscsidirect"}, s.Type)
}

// fixed reports whether Proxmox neither makes nor frees volumes of the storage: the volumes are existing LUNs.
func (s *storage) fixed() bool { return s.Type == "iscsi" || s.Type == "iscsidirect" }

// renames returns the answer of volume_has_feature to "rename" in the plugins of pve-storage.
func (s *storage) renames() bool {
	return !slices.Contains([]string{"iscsi", "iscsidirect", "zfs", "esxi", "pbs"}, s.Type)
}

// snapshots returns the answer of volume_has_feature to "snapshot" for a volume of that format.
func (s *storage) snapshots(format string) bool {
	switch s.Type {
	case "lvmthin", "zfspool", "zfs", "rbd", "btrfs":
		return true
	}
	return format == "qcow2"
}

// replicates returns the answer of storage_can_replicate: only local ZFS can replicate.
func (s *storage) replicates() bool { return s.Type == "zfspool" }

func (s *storage) on(host string) bool { return len(s.Hosts) == 0 || slices.Contains(s.Hosts, host) }

func (s *storage) holds(content string) bool { return slices.Contains(s.Content, content) }

// at returns the volumes that a host sees, by name.
func (s *storage) at(host string) map[string]*volume {
	if s.Shared {
		host = ""
	}
	if s.volumes[host] == nil {
		s.volumes[host] = map[string]*volume{}
	}
	return s.volumes[host]
}

// ofStorage changes the storage of that name, if it exists.
func (w *World) ofStorage(id string, change func(*storage)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.storages[id]; ok {
		change(s)
	}
}

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

// atPath returns the volume that root can attach by its path on the host: a block device, or a volume of a storage
// (pve-storage, Storage.pm, check_volume_access and volume_size_info).
func (w *World) atPath(path, host string) *volume {
	if dev := w.devices[host][path]; dev != nil || !strings.HasPrefix(path, "/") {
		return dev
	}
	for _, s := range w.storages {
		if !s.on(host) {
			continue
		}
		for name, v := range s.at(host) {
			if s.filePath(name) == path {
				return v
			}
		}
	}
	return nil
}

// volumeNamed returns the result of volume, or nil in place of its error.
func (w *World) volumeNamed(volid, host string) *volume {
	if dev := w.atPath(volid, host); dev != nil {
		return dev
	}
	id, name, _ := strings.Cut(volid, ":")
	s := w.storages[id]
	if s == nil || !s.on(host) {
		return nil
	}
	return s.at(host)[name]
}

// volume finds a volume, or a block device (without storage), as a host sees it.
func (w *World) volume(volid, host string) (*storage, *volume, error) {
	if dev := w.atPath(volid, host); dev != nil {
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

// aligned returns size rounded up as the plugins' alloc_image does: LVM counts in extents, ZFS and Ceph in megabytes.
func (s *storage) aligned(size int64) int64 {
	switch s.Type {
	case "lvm", "lvmthin":
		return roundUp(size, 4<<20)
	case "zfspool", "rbd":
		return roundUp(size, 1<<20)
	}
	return size
}

// forgives reports whether freeing a missing volume succeeds: for a missing file there is a warning, LVM-thin removes
// "if exists", ZFS treats a missing data set as destroyed (free_image of Plugin.pm, LvmThinPlugin.pm,
// ZFSPoolPlugin.pm).
func (s *storage) forgives() bool { return !s.block() || s.Type == "lvmthin" || s.Type == "zfspool" }

// freeVolume deletes a volume, even if the volume is in use, as in Proxmox. If the storage forgives, a missing volume
// counts as deleted.
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

// AddLUN puts a LUN on an iSCSI storage: the LUN is a volume that belongs to no VM.
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

// Alloc makes a volume with a VM's number that no configuration names, like pvesm alloc on a Proxmox node. Without
// media the volume is blank.
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

// AddDevice adds a block device to a host, which VMs can use by its path.
func (w *World) AddDevice(host, path string, size int64, m *Media) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.devices[host] == nil {
		w.devices[host] = map[string]*volume{}
	}
	w.devices[host][path] = &volume{name: path, content: "images", format: "raw", size: size, media: m, created: w.now(host)}
}

// StorageConfig lists the storages of the cluster, by name.
func (w *World) StorageConfig() []Storage {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []Storage
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		list = append(list, w.storages[id].Storage)
	}
	return list
}

// Storages lists the storages as a host sees them, by name.
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
		disk := int64(0)
		if v.content == importKind {
			img, _ := openImage("", v.format, v.media) // what cannot be opened has no size
			disk = img.size
		}
		list = append(list, VolumeInfo{
			Disk: disk, Volid: id + ":" + name, Content: v.content, Format: v.format, Size: v.size, Used: s.allocated(v), Parent: s.parentOf(name),
			Owner: volumeOwner(name), Created: v.created, Path: s.filePath(name),
		})
	}
	return list, nil
}

// Media returns the content of the volume that a host knows by that volid; nil if the host knows no such volume.
func (w *World) Media(volid, host string) *Media {
	w.mu.Look()
	defer w.mu.Unlock()
	v := w.volumeNamed(volid, host)
	if v == nil {
		return nil
	}
	return v.media
}

// Path returns the directory of a storage of files; "" for other storages.
func (s Storage) Path() string {
	switch {
	case (&storage{Storage: s}).block(), s.Type == "pbs", s.Type == "esxi":
		return ""
	case s.ID == "local":
		return "/var/lib/vz"
	}
	return "/mnt/pve/" + s.ID
}

// filePath returns the path of the volume with this name.
func (s *storage) filePath(name string) string {
	if s.Path() == "" {
		return "/dev/" + s.ID + "/" + name
	}
	dir, file, _ := strings.Cut(name, "/")
	switch dir {
	case "iso":
		return s.Path() + "/template/iso/" + file
	case "vztmpl":
		return s.Path() + "/template/cache/" + file
	case "import":
		return s.Path() + "/import/" + file
	}
	return s.Path() + "/images/" + name
}

// SetStorageActive sets whether a host can reach one of its storages.
func (w *World) SetStorageActive(id, host string, active bool) {
	w.ofStorage(id, func(s *storage) { s.offline[host] = !active })
}

// activate does the work of activate_storage of pve-storage's Storage.pm and its plugins, which precedes any use of a
// storage.
func (s *storage) activate(host string) error {
	switch {
	case !s.offline[host]:
		return nil
	case s.block():
		return failf("activating storage '%s' failed", s.ID)
	case s.Type == "dir" || s.Type == "btrfs":
		return failf("unable to activate storage '%s' - directory '%s' does not exist or is unreachable", s.ID, s.Path())
	}
	return failf("storage '%s' is not online", s.ID)
}

// RenameFault is the way in which the rename of a volume that is briefly in use fails.
type RenameFault int

const (
	// RenameBusy fails at once without effect.
	RenameBusy RenameFault = iota + 1
	// RenameTimeout times out: the volume keeps its name.
	RenameTimeout
	// RenameTimeoutDone times out after the volume was renamed.
	RenameTimeoutDone
)

// BusyStorage makes the next n renames of a storage's volumes fail; n < 0: all renames until NoMoreFailures.
func (w *World) BusyStorage(id string, n int, fault RenameFault) {
	w.ofStorage(id, func(s *storage) { s.busy, s.busyAs = n, fault })
}

// busyRename returns how the next rename fails; 0: the rename does not fail. LVM can rename logical volumes in use
// (lvrename), so renames never fail there.
func (s *storage) busyRename() RenameFault {
	if s.busy == 0 || s.Type == "lvm" || s.Type == "lvmthin" {
		return 0
	}
	if s.busy > 0 {
		s.busy--
	}
	return s.busyAs
}

// rename renames a volume. It may fail after the rename.
func (s *storage) rename(host string, vol *volume, name string) error {
	from, fault := vol.name, s.busyRename()
	if fault == 0 || fault == RenameTimeoutDone {
		delete(s.at(host), vol.name)
		vol.name = name
		s.at(host)[vol.name] = vol
	}
	if fault != 0 {
		return s.renameError(fault, from, name)
	}
	return nil
}

// renameError returns an error of pve-storage (ZFSPoolPlugin.pm, RBDPlugin.pm and Plugin.pm, rename_volume). A
// command that times out is killed (pve-common, Cmd.pm, run_command); only ZFS commands have a timeout (zfs_request).
func (s *storage) renameError(fault RenameFault, from, to string) error {
	switch {
	case s.Type == "zfspool" && fault == RenameBusy:
		return fmt.Errorf("zfs error: cannot rename '%s/%s': dataset is busy", s.Pool, path.Base(from))
	case s.Type == "zfspool":
		return fmt.Errorf("command 'zfs rename %s/%s %s/%s' failed: got timeout", s.Pool, path.Base(from), s.Pool, path.Base(to))
	case s.Type == "rbd" && fault == RenameBusy:
		return fmt.Errorf("could not rename image '%s' to '%s': rbd: rename error: (16) Device or resource busy", path.Base(from), path.Base(to))
	case s.Type == "rbd":
		return fmt.Errorf("could not rename image '%s' to '%s': rbd: rename error: (110) Connection timed out", path.Base(from), path.Base(to))
	}
	return fmt.Errorf("rename '%s' to '%s' failed - Device or resource busy", s.filePath(from), s.filePath(to))
}

// ThinPool is an LVM thin pool as its host sees it.
type ThinPool struct {
	VolumeGroup, Name          string
	Size, Used                 int64 // bytes; Used counts bytes written, not allocated
	MetadataSize, MetadataUsed int64
}

// SetThinPool sets the usage of a host's pool below an lvmthin storage. The names and the size of the pool are the
// storage's.
func (w *World) SetThinPool(id, host string, p ThinPool) {
	w.ofStorage(id, func(s *storage) { s.pools[host] = p })
}

// ThinPools lists the thin pools of a host, by storage.
func (w *World) ThinPools(host string) []ThinPool {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []ThinPool
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		s := w.storages[id]
		if s.Type != "lvmthin" || !s.on(host) || s.offline[host] {
			continue
		}
		p, ok := s.pools[host]
		if !ok {
			p = ThinPool{MetadataSize: s.Capacity / 100, MetadataUsed: s.Capacity / 1000}
		}
		p.VolumeGroup, p.Name, p.Size, p.Used = s.VolumeGroup, s.ThinPool, s.Capacity, s.used(host)
		list = append(list, p)
	}
	return list
}
