package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Storage implements images.Store.
func (c *Client) Storage(ctx context.Context, host, storage string) (images.StorageInfo, error) {
	var rows []struct {
		Storage, Content        string
		Enabled, Active, Shared json.RawMessage
		Avail                   json.Number
	}
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/storage", &rows); err != nil {
		return images.StorageInfo{}, err
	}
	// Storages of other hosts and disabled ones are listed too (Storage.pm, storage_info).
	for _, s := range rows {
		if s.Storage == storage && toBool(s.Enabled) {
			content := strings.FieldsFunc(s.Content, func(r rune) bool { return r == ',' || r == ' ' })
			return images.StorageInfo{Active: toBool(s.Active), Shared: toBool(s.Shared), Content: content, FreeBytes: bytesOf(s.Avail)}, nil
		}
	}
	err := fmt.Errorf("storage %q on %s: %w", storage, host, images.ErrNoStorage)
	return images.StorageInfo{}, fault.WithHint(fault.StorageUnusable.Of(err), "see /etc/pve/storage.cfg: it may be disabled, or for other nodes than %s; the token needs Datastore.Audit on /storage/%s to see it", host, storage)
}

// ISO implements images.Store.
func (c *Client) ISO(ctx context.Context, host, storage, name string) (sizeBytes int64, found bool, err error) {
	return c.storedFile(ctx, host, storage, isoContent, name)
}

// DiskImage implements images.Store.
func (c *Client) DiskImage(ctx context.Context, host, storage, name string) (sizeBytes int64, found bool, err error) {
	return c.storedFile(ctx, host, storage, importContent, name)
}

// Kinds of files on a storage.
const (
	isoContent    = "iso"
	importContent = "import" // disk images, since Proxmox 8.3
)

func (c *Client) storedFile(ctx context.Context, host, storage, content, name string) (sizeBytes int64, found bool, err error) {
	files, err := c.storedFiles(ctx, host, storage, content)
	i := slices.IndexFunc(files, func(f images.StoredISO) bool { return f.Name == name })
	if i < 0 {
		return 0, false, err
	}
	return files[i].SizeBytes, true, nil
}

// OwnedVolumes implements cluster.StorageReader. Proxmox lists only volumes of VMs that the token may see.
func (c *Client) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	var rows []struct{ Volid string }
	if err := c.conn.Get(ctx, contentPath(host, storage)+fmt.Sprintf("?content=images&vmid=%d", owner), &rows); err != nil {
		return nil, err
	}
	var volids []string
	for _, r := range rows {
		volids = append(volids, r.Volid)
	}
	slices.Sort(volids)
	return volids, nil
}

func contentPath(host, storage string) string {
	return "/nodes/" + url.PathEscape(host) + "/storage/" + url.PathEscape(storage) + "/content"
}

// HasVolume implements cluster.StorageReader. Proxmox lists disks only of VMs that the token may see.
func (c *Client) HasVolume(ctx context.Context, host, volid string) (bool, error) {
	storage, name, ok := strings.Cut(volid, ":")
	if !ok || storage == "" || name == "" {
		return false, fmt.Errorf("%q is not the name of a volume", volid)
	}
	path := contentPath(host, storage)
	if content, _, _ := strings.Cut(name, "/"); content == isoContent || content == importContent {
		path += "?content=" + content
	}
	var rows []struct{ Volid string }
	err := c.conn.Get(ctx, path, &rows)
	return slices.ContainsFunc(rows, func(v struct{ Volid string }) bool { return v.Volid == volid }), err
}

// storageConfig is a section of storage.cfg. A token that may use the storage sees the whole section except passwords
// (pve-storage, API2/Storage/Config.pm, index).
type storageConfig struct {
	Storage, Type string
	Shared        json.RawMessage // also set for types that are always shared (Storage/Plugin.pm)
	Sparse        json.RawMessage
	Preallocation string
	VG            string `json:"vgname"`
	ThinPool      string
	Pool          string // of ZFS or Ceph
	MonHost       string
	Namespace     string
	Path          string // of a storage of files
	Server        string
	Export, Share string // of NFS and CIFS
}

// Storages implements cluster.StorageReader. Proxmox omits those on which the token has
// neither Datastore.Audit nor Datastore.AllocateSpace.
func (c *Client) Storages(ctx context.Context) ([]cluster.Storage, error) {
	var rows []storageConfig
	if err := c.conn.Get(ctx, "/storage", &rows); err != nil {
		return nil, err
	}
	found := make([]cluster.Storage, 0, len(rows))
	for _, r := range rows {
		found = append(found, cluster.Storage{Name: r.Storage, Type: r.Type, Shared: toBool(r.Shared), Thick: r.thick(), Pool: r.pool(), Dir: strings.TrimRight(r.Path, "/")})
	}
	slices.SortFunc(found, func(a, b cluster.Storage) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

// thick reports whether an image takes its full size when it is created. File storages allocate the full size only if
// configured: by default a raw image is sparse, and only the metadata of a qcow2 image is written (Storage/Plugin.pm,
// preallocation_cmd_opt). ZFS reserves a volume's size unless the storage is sparse (ZFSPoolPlugin.pm,
// zfs_create_zvol). LVM always allocates the full size, also for qcow2 (LVMPlugin.pm, alloc_lvm_image).
func (s storageConfig) thick() bool {
	switch s.Type {
	case "lvmthin", "rbd":
		return false
	case "zfspool", "zfs":
		return !toBool(s.Sparse)
	case "btrfs", "cephfs", "cifs", "dir", "glusterfs", "nfs":
		return s.Preallocation == "falloc" || s.Preallocation == "full"
	}
	return true
}

// pool identifies the space that several storages may share. Two directories on one filesystem cannot be detected.
func (s storageConfig) pool() string {
	switch s.Type {
	case "lvm":
		return s.VG
	case "lvmthin":
		return s.VG + "/" + s.ThinPool
	case "zfspool":
		return "zfs " + s.Pool
	case "nfs", "cifs":
		if r := s.Export + s.Share; s.Server != "" && r != "" {
			return s.Type + " " + s.Server + " " + r
		}
	case "rbd":
		return "rbd " + cmp.Or(s.Pool, "rbd") + " of " + cmp.Or(s.MonHost, "the hosts' own Ceph") // RBDPlugin.pm: the pool's default is rbd
	}
	return ""
}

// Room implements cluster.StorageReader. A request with a content type lists only the storages that are enabled for
// the host and accept that content (Storage.pm, storage_info).
func (c *Client) Room(ctx context.Context, host string) (cluster.Room, error) {
	at := "/nodes/" + url.PathEscape(host)
	var rows []struct {
		Storage, Type string
		Active        json.RawMessage
		Total, Avail  json.Number
	}
	if err := c.conn.Get(ctx, at+"/storage?content=images", &rows); err != nil {
		return cluster.Room{}, err
	}
	var room cluster.Room
	thin, ceph := false, false
	for _, r := range rows {
		s := cluster.StorageRoom{Name: r.Storage, Active: toBool(r.Active)}
		thin, ceph = thin || r.Type == "lvmthin", ceph || onCeph(r.Type)
		if s.Active {
			s.Total, s.Free = bytesOf(r.Total), bytesOf(r.Avail)
		}
		room.Storages = append(room.Storages, s)
	}
	slices.SortFunc(room.Storages, func(a, b cluster.StorageRoom) int { return cmp.Compare(a.Name, b.Name) })
	if thin {
		room.ThinPools, room.ErrPools = thinPools(ctx, c.conn, at)
	}
	if ceph {
		return room, c.readCeph(ctx, at, room.Storages)
	}
	return room, nil
}

// bytesOf reads a size, which some storages give with a fraction (a quota of CephFS,
// for example, as 1.5e+15). An unreadable size counts as 0.
func bytesOf(n json.Number) int64 {
	if i, err := n.Int64(); err == nil {
		return i
	}
	f, err := n.Float64()
	if err != nil || f < 0 || f >= 1<<62 {
		return 0
	}
	return int64(f)
}

// MayImport implements images.Importer. The storage must have the content type, which Proxmox has since 8.3, and must
// be readable (pve-storage, Storage.pm, check_volume_access). MayImport does not check the free space on the storage
// of the disk.
func (c *Client) MayImport(ctx context.Context, host, storage string) (why string, err error) {
	info, err := c.Storage(ctx, host, storage)
	if err != nil {
		return "", err
	}
	if !slices.Contains(info.Content, importContent) {
		return fmt.Sprintf("storage %q does not have the content type %q, which Proxmox VE has since 8.3: `pvesm set %s --content` sets the types", storage, importContent, storage), nil
	}
	path := "/storage/" + storage
	held, err := c.Permissions(ctx, path)
	if err != nil {
		return "", err
	}
	for _, privilege := range []string{"Datastore.Audit", "Datastore.AllocateSpace", "Datastore.Allocate"} {
		if _, has := held[privilege]; has {
			return "", nil
		}
	}
	return "the token has neither Datastore.Audit nor Datastore.AllocateSpace on " + path, nil
}

// onCeph reports whether storages of that type are on a Ceph.
func onCeph(kind string) bool { return kind == "rbd" || kind == "cephfs" }

// cephStatus is the part that recast reads of the output of "ceph status" and "ceph health detail" (pve-manager,
// PVE/Ceph/Tools.pm, ceph_cluster_status).
type cephStatus struct {
	Health struct {
		Status string
		Checks map[string]struct {
			Severity string
			Summary  struct{ Message string }
		}
	}
}

// Health checks of Ceph (https://docs.ceph.com/en/latest/rados/operations/health-checks/). While one of cephBlocks
// holds, reads or writes wait; cephWarns precede cephBlocks.
var (
	cephBlocks = []string{"PG_AVAILABILITY", "OBJECT_UNFOUND", "OSD_FULL", "POOL_FULL"}
	cephWarns  = []string{"OSD_BACKFILLFULL", "OSD_NEARFULL", "POOL_BACKFILLFULL", "POOL_NEARFULL", "POOL_NEAR_FULL", "PG_RECOVERY_FULL"}
)

// Flags of OSDMAP_FLAGS, which people set (OSDMap::check_health in Ceph).
var (
	cephStops = []string{"pauserd", "pausewr", "full"}
	cephHolds = []string{"norecover", "nobackfill", "pauserec"}
)

// readCeph reads the status of the hosts' own Ceph, for the storages on it: those without an address of monitors
// (pve-storage, CephConfig.pm). A host without a configured Ceph gives no status.
func (c *Client) readCeph(ctx context.Context, at string, rooms []cluster.StorageRoom) error {
	var configs []storageConfig
	if err := c.conn.Get(ctx, "/storage", &configs); err != nil {
		return err
	}
	own := func(s cluster.StorageRoom) bool {
		return slices.ContainsFunc(configs, func(r storageConfig) bool { return r.Storage == s.Name && onCeph(r.Type) && r.MonHost == "" })
	}
	if !slices.ContainsFunc(rooms, own) {
		return nil
	}
	var status cephStatus
	err := c.conn.Get(ctx, at+"/ceph/status", &status)
	if isNotCeph(err) {
		return nil
	}
	blocked, notes := status.judge()
	switch {
	case api.IsForbidden(err):
		blocked, notes = "", []string{"whether the Proxmox hosts' Ceph takes reads and writes can't be determined: the token needs Sys.Audit or Datastore.Audit on /"}
	case err != nil:
		blocked = foreign.Line("the Proxmox hosts' Ceph does not say how it is (" + err.Error() + ")")
	}
	for i := range rooms {
		if own(rooms[i]) {
			rooms[i].Ceph, rooms[i].Blocked, rooms[i].Notes = true, blocked, notes
		}
	}
	return nil
}

// isNotCeph reports whether the host has no Ceph, or has not configured it (PVE/Ceph/Tools.pm, check_ceph_inited).
func isNotCeph(err error) bool {
	failed, ok := errors.AsType[*api.Error](err)
	return ok && (strings.Contains(failed.Said(), "binary not installed: ") || strings.Contains(failed.Said(), "pveceph configuration not initialized"))
}

// judge returns why reads or writes wait, and what may become worse.
func (s cephStatus) judge() (blocked string, notes []string) {
	if s.Health.Status == "" {
		return "the Proxmox hosts' Ceph does not say how it is", nil
	}
	var stops []string
	for _, code := range slices.Sorted(maps.Keys(s.Health.Checks)) {
		check := s.Health.Checks[code]
		text := foreign.Line(fmt.Sprintf("%s (%s)", code, cmp.Or(check.Summary.Message, "no reason given")))
		flags := strings.FieldsFunc(check.Summary.Message, func(r rune) bool { return r == ',' || r == ' ' })
		has := func(some []string) bool {
			return code == "OSDMAP_FLAGS" && slices.ContainsFunc(flags, func(flag string) bool { return slices.Contains(some, flag) })
		}
		switch {
		case slices.Contains(cephBlocks, code) || has(cephStops):
			stops = append(stops, text)
		case slices.Contains(cephWarns, code) || has(cephHolds) || check.Severity == "HEALTH_ERR":
			notes = append(notes, "the Proxmox hosts' Ceph says "+text)
		}
	}
	if len(stops) > 0 {
		blocked = "the Proxmox hosts' Ceph lets reads or writes wait: " + strings.Join(stops, ", ")
	}
	return blocked, notes
}
