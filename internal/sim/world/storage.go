package world

import (
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
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
	defer w.mu.changing()()
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

func (s *storage) at(host string) map[string]*volume {
	if s.Shared {
		host = ""
	}
	if s.volumes[host] == nil {
		s.volumes[host] = map[string]*volume{}
	}
	return s.volumes[host]
}

func (w *World) ofStorage(id string, change func(*storage)) {
	defer w.mu.changing()()
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
	_, v, err := w.volume(volid, host)
	if err != nil {
		return nil
	}
	return v
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
	w.violateOf(v, false, "disk %s: its volume %s was freed", volid)
	delete(s.at(host), v.name)
	return nil
}

// AddLUN puts a LUN on an iSCSI storage: the LUN is a volume that belongs to no VM.
func (w *World) AddLUN(storageID, host, name string, size int64, m *Media) error {
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
	if w.devices[host] == nil {
		w.devices[host] = map[string]*volume{}
	}
	w.devices[host][path] = &volume{name: path, content: "images", format: "raw", size: size, media: m, created: w.now(host)}
}

// StorageConfig lists the storages of the cluster, by name.
func (w *World) StorageConfig() []Storage {
	defer w.mu.changing()()
	var list []Storage
	for _, id := range slices.Sorted(maps.Keys(w.storages)) {
		list = append(list, w.storages[id].Storage)
	}
	return list
}

// Storages lists the storages as a host sees them, by name.
func (w *World) Storages(host string) []StorageStatus {
	defer w.mu.looking()()
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
	defer w.mu.looking()()
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
	defer w.mu.looking()()
	if v := w.volumeNamed(volid, host); v != nil {
		return v.media
	}
	return nil
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
	defer w.mu.changing()()
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

// UploadRequest is a file on a host that is to become a volume.
type UploadRequest struct {
	Storage   string
	Content   string // "iso", "vztmpl" or "import"
	Filename  string
	Algorithm string // "sha256"; "": no checksum
	Checksum  string // hex
	Spool     *Spool // nil: there is no file. The worker closes it
}

// Upload copies a file to a storage in a task, which also verifies the checksum and overwrites a file of that name. The
// task runs on entry, the host that received the file; target is the host whose storage gets it.
func (w *World) Upload(user, entry, target string, r UploadRequest) (upid string, err error) {
	defer func() {
		if err != nil && r.Spool != nil {
			r.Spool.Close()
		}
	}()
	defer w.mu.changing()()
	s, err := w.storageOn(r.Storage, target)
	if err != nil {
		return "", err
	}
	if s.Path() == "" {
		return "", failf("can't upload to storage type '%s'", s.Type)
	}
	if r.Spool == nil {
		return "", failf("missing temporary file name")
	}
	name, err := contentName(r.Content, r.Filename)
	if err != nil {
		return "", err
	}
	if !s.holds(r.Content) {
		return "", failf("storage '%s' does not support '%s' content", r.Storage, r.Content)
	}
	if err := w.reach(s, entry, target); err != nil {
		return "", err
	}
	return w.startTask(entry, "imgcopy", "", user, func(t *task) error {
		defer r.Spool.Close()
		if err := t.begin(taskTime); err != nil {
			return err
		}
		return w.importFile(t, s, target, name, r)
	}), nil
}

// reach activates the target storage; on another host by ssh.
func (w *World) reach(s *storage, entry, target string) error {
	if entry == target {
		return s.activate(target)
	}
	if w.down[target] || s.offline[target] {
		return failf("can't activate storage '%s' on node '%s': command '/usr/bin/ssh -- /usr/sbin/pvesm status --storage %s' failed: exit code 255",
			s.ID, target, s.ID)
	}
	return nil
}

// importFile is the worker of Storage/Status.pm: the copy is not atomic, and a failed copy removes the previous file
// of that name.
func (w *World) importFile(t *task, s *storage, host, name string, r UploadRequest) error {
	t.printf("starting file import from: %s", r.Spool.Name)
	if err := firstError(verify(t, r.Spool.media, r.Algorithm, r.Checksum), checkImage(r.Content, name, r.Spool.Name, r.Spool.media)); err != nil {
		return err
	}
	path, size := s.filePath(name), r.Spool.Size()
	t.printf("target node: %s", host)
	t.printf("target file: %s", path)
	t.printf("file size is: %d", size)
	t.printf("command: cp -- %s %s", r.Spool.Name, path)
	w.mu.Lock()
	v := s.put(host, name)
	v.media.Write(nil)
	v.size = 0
	if !s.room(host, size) {
		delete(s.at(host), name)
		w.mu.Unlock()
		return fmt.Errorf("import failed: cp: error writing '%s': No space left on device", path)
	}
	v.size = size / 2
	w.mu.Unlock()
	err := t.delay(copyTime(size))
	defer w.mu.changing()()
	if err != nil && !t.killed {
		delete(s.at(host), name)
		return fmt.Errorf("import failed: %w", err)
	}
	if err != nil {
		return err
	}
	v.media.replace(r.Spool.media)
	v.size, v.created = size, w.now(host)
	t.logf("finished file import successfully")
	return nil
}

func copyTime(size int64) time.Duration {
	return time.Duration(float64(size) / float64(gib) * float64(time.Second))
}

// contentName returns the name of a file's volume, by normalize_content_filename of Storage.pm and by the extensions
// that each kind of content may have.
func contentName(content, filename string) (string, error) {
	name := filename[strings.LastIndexAny(filename, `/\`)+1:]
	clean := []byte(name)
	for i, c := range clean {
		if !regexp.MustCompile(`[a-zA-Z0-9_.-]`).Match([]byte{c}) {
			clean[i] = '_'
		}
	}
	name = string(clean)
	for kind, rule := range map[string]struct{ pattern, problem string }{
		"iso":    {`(?i).\.(iso|img)$`, "wrong file extension"},
		"vztmpl": {`(?i).\.tar\.(gz|xz|zst|bz2)$`, "wrong file extension"},
		"import": {`.\.(ova|qcow2|raw|vmdk)$`, "invalid filename or wrong extension"},
	} {
		if kind == content && !regexp.MustCompile(rule.pattern).MatchString(name) {
			return "", BadParam("filename", "%s", rule.problem)
		}
	}
	return content + "/" + name, nil
}

// put finds or makes a file: an overwritten file stays the same volume.
func (s *storage) put(host, name string) *volume {
	v, ok := s.at(host)[name]
	if !ok {
		content, file, _ := strings.Cut(name, "/")
		format := file[strings.LastIndex(file, ".")+1:]
		if content == "iso" {
			format = "iso" // also for .img files
		}
		v = &volume{name: name, content: content, format: format, media: NewMedia(nil), created: time.Now()}
		s.at(host)[name] = v
	}
	return v
}

func hexDigest(algorithm string, r io.Reader) (string, error) {
	made := map[string]func() hash.Hash{
		"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
	}[algorithm]
	if made == nil {
		return "", fmt.Errorf("unknown algorithm '%s'", algorithm)
	}
	h := made()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// DownloadRequest asks a host to fetch a file.
type DownloadRequest struct {
	Storage   string
	Content   string // "iso", "vztmpl" or "import"
	Filename  string
	URL       string
	Algorithm string // "sha256"; "": no checksum
	Checksum  string // hex
	Insecure  bool   // certificates are not verified
}

// Download fetches a file to a storage in a task. It never overwrites a file.
func (w *World) Download(user, host string, r DownloadRequest) (upid string, err error) {
	defer w.mu.changing()()
	s, err := w.storageOn(r.Storage, host)
	if err != nil {
		return "", err
	}
	if s.Path() == "" {
		return "", failf("can't upload to storage type '%s', not a file based storage!", s.Type)
	}
	if !s.holds(r.Content) {
		return "", failf("storage '%s' is not configured for content-type '%s'", r.Storage, r.Content)
	}
	name, err := contentName(r.Content, r.Filename)
	if err != nil {
		return "", err
	}
	if err := s.activate(host); err != nil {
		return "", err
	}
	id := name[strings.Index(name, "/")+1:]
	return w.startTask(host, "download", id, user, func(t *task) error {
		if err := t.begin(taskTime); err != nil {
			return err
		}
		return w.download(t, s, host, name, r)
	}), nil
}

// download does the work of download_file_from_url of pve-common's Tools.pm.
func (w *World) download(t *task, s *storage, host, name string, r DownloadRequest) error {
	path := s.filePath(name)
	t.printf("downloading %s to %s", r.URL, path)
	w.mu.Lock()
	there := s.at(host)[name]
	w.mu.Unlock()
	if there != nil {
		return checkExisting(t, there, path, r)
	}
	partial := fmt.Sprintf("%s.tmp_dwnl.%d", name, t.PID)
	err := w.fetchTo(t, s, host, partial, r)
	defer w.mu.changing()()
	if err != nil {
		if !t.killed { // after kill -9 nothing cleans up
			delete(s.at(host), partial)
		}
		return err
	}
	got := s.at(host)[partial]
	delete(s.at(host), partial)
	v := s.put(host, name)
	v.media, v.size, v.created = got.media, got.size, w.now(host)
	t.logf("download of '%s' to '%s' finished", r.URL, path)
	return nil
}

func checkExisting(t *task, there *volume, path string, r DownloadRequest) error {
	if r.Algorithm == "" {
		return fmt.Errorf("refusing to override existing file '%s'", path)
	}
	got, err := hexDigest(r.Algorithm, there.media.Open())
	if err != nil {
		return err
	}
	if !strings.EqualFold(got, r.Checksum) {
		t.printf("calculating checksum of existing file...")
		return fmt.Errorf("checksum mismatch: got '%s' != expect '%s', aborting", got, r.Checksum)
	}
	t.printf("calculating checksum of existing file...OK, got correct file already, no need to download")
	return nil
}

// fetchTo downloads into a hidden file and verifies it.
func (w *World) fetchTo(t *task, s *storage, host, partial string, r DownloadRequest) error {
	w.mu.Lock()
	v := s.put(host, partial)
	v.content = ""
	w.mu.Unlock()
	file := &Spool{Name: s.filePath(partial), media: v.media, room: func(more int64) bool {
		defer w.mu.changing()()
		if !s.room(host, more) {
			return false
		}
		v.size += more
		return true
	}}
	err := w.wget(t, host, r, file)
	if err == nil {
		err = t.delay(copyTime(file.Size()))
	}
	if err != nil {
		return fmt.Errorf("download failed: %w", err)
	}
	if err := verify(t, file.media, r.Algorithm, r.Checksum); err != nil {
		return err
	}
	name, _, _ := strings.Cut(partial, ".tmp_dwnl")
	if err := checkImage(r.Content, name, file.Name, file.media); err != nil {
		return fmt.Errorf("failed to verify file: %w", err)
	}
	return nil
}

func verify(t *task, m *Media, algorithm, checksum string) error {
	if algorithm == "" {
		return nil
	}
	got, err := hexDigest(algorithm, m.Open())
	if err != nil {
		return err
	}
	if !strings.EqualFold(got, checksum) {
		t.printf("calculating checksum...")
		return fmt.Errorf("checksum mismatch: got '%s' != expect '%s'", got, checksum)
	}
	t.printf("calculating checksum...OK, checksum verified")
	return nil
}

// wget downloads a file; the task's error is wget's last line.
func (w *World) wget(t *task, host string, r DownloadRequest, to *Spool) error {
	res, done, err := w.fetch(webRequest{host: host, method: http.MethodGet, url: r.URL, insecure: r.Insecure, stop: t.stop})
	if err == nil {
		defer done()
		defer func() { _ = res.Body.Close() }() // read to the end already
		if res.StatusCode != http.StatusOK {
			_, words, _ := strings.Cut(res.Status, " ")
			return failf("%s ERROR %d: %s.", w.Clock(host).Format(time.DateTime), res.StatusCode, words)
		}
		_, err = io.Copy(to, res.Body)
	}
	select {
	case <-t.stop:
		return errInterrupted
	case <-w.done:
		return ErrClosed
	default:
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return failf("Cannot write to '%s' (No space left on device).", to.Name)
	}
	return failf("failed: %s.", reason(err))
}

// URLMetadata is what a web server says about a file without sending the file.
type URLMetadata struct {
	Filename, Mimetype string // "": unknown
	Size               int64  // 0: unknown
}

// lwpTimeout is LWP::UserAgent's timeout.
const lwpTimeout = 3 * time.Minute

// QueryURLMetadata does the work of query_url_metadata of API2/Nodes.pm: the host sends a HEAD request.
func (w *World) QueryURLMetadata(host, target string, insecure bool) (URLMetadata, error) {
	res, done, err := w.fetch(webRequest{host: host, method: http.MethodHead, url: target, insecure: insecure, patience: lwpTimeout})
	if err != nil {
		// LWP turns a failed connection into a status of its own.
		return URLMetadata{}, failf("invalid server response: '500 Can't connect to %s (%s)'", address(target), reason(err))
	}
	defer done()
	defer func() { _ = res.Body.Close() }() // empty for HEAD
	if res.StatusCode != http.StatusOK {
		return URLMetadata{}, failf("invalid server response: '%s'", res.Status)
	}
	out := URLMetadata{Size: max(0, res.ContentLength)}
	out.Mimetype, _, _ = strings.Cut(res.Header.Get("Content-Type"), ";")
	named := regexp.MustCompile(`filename="([^"]*)"|filename=([^;]*)`).FindStringSubmatch(res.Header.Get("Content-Disposition"))
	if named == nil {
		named = regexp.MustCompile(`^[^?]+/([^?/]*)()(?:\?.*)?$`).FindStringSubmatch(target)
	}
	if named != nil {
		out.Filename = named[1] + named[2]
	}
	return out, nil
}

func address(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return fmt.Sprintf("%s:%s", u.Hostname(), port)
}

// DialFunc connects to "host:port", as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// SetDial sets how hosts connect outside of the datacentre. Without SetDial, hosts can't connect outside.
func (w *World) SetDial(dial DialFunc) { w.set(func() { w.dial = dial }) }

// SetOutbound sets whether a host can connect outside of the datacentre.
func (w *World) SetOutbound(host string, open bool) { w.set(func() { w.isolated[host] = !open }) }

type webRequest struct {
	host, method, url string
	insecure          bool            // certificates are not verified
	stop              <-chan struct{} // closed to cancel
	patience          time.Duration   // timeout for the answer; 0: none
}

// fetch sends a request. The caller closes the body and calls done.
func (w *World) fetch(r webRequest) (res *http.Response, done func(), err error) {
	w.mu.Lock()
	dial := w.dial
	if w.isolated[r.host] {
		dial = nil
	}
	w.mu.Unlock()
	if dial == nil {
		return nil, nil, syscall.ENETUNREACH
	}
	req, err := http.NewRequest(r.method, r.url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("fetch %s: %w", r.url, err)
	}
	ctx, cancel := context.WithCancel(req.Context())
	w.mu.Lock()
	spawned := w.spawn(func() {
		var late <-chan time.Time
		if r.patience > 0 {
			late = time.After(w.scaled(r.patience))
		}
		select {
		case <-late:
		case <-r.stop:
		case <-w.done:
		case <-ctx.Done():
		}
		cancel()
	})
	w.mu.Unlock()
	if !spawned {
		cancel()
		return nil, nil, ErrClosed
	}
	transport := &http.Transport{
		DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: r.insecure},
	}
	res, err = (&http.Client{Transport: transport}).Do(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, nil, plain(err)
	}
	return res, cancel, nil
}

// plain returns err without net/http's prefix about the request.
func plain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// reason returns the C library's message about a failed connection.
func reason(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "No route to host"
	case errors.Is(err, syscall.ENETUNREACH):
		return "Network is unreachable"
	case errors.Is(err, context.Canceled):
		return "Connection timed out"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "certificate verify failed"
	}
	return err.Error()
}
