package pve

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

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

func (c *Client) ISO(ctx context.Context, host, storage, name string) (file images.StoredISO, found bool, err error) {
	return c.storedFile(ctx, host, storage, isoContent, name)
}

func (c *Client) DiskImage(ctx context.Context, host, storage, name string) (file images.StoredISO, found bool, err error) {
	return c.storedFile(ctx, host, storage, importContent, name)
}

// Kinds of files on a storage.
const (
	isoContent    = "iso"
	importContent = "import" // disk images, since Proxmox 8.3
)

func (c *Client) storedFile(ctx context.Context, host, storage, content, name string) (file images.StoredISO, found bool, err error) {
	files, err := c.storedFiles(ctx, host, storage, content)
	file, found = cluster.Find(files, func(f images.StoredISO) bool { return f.Name == name })
	return file, found, err
}

// OwnedVolumes implements cluster.StorageReader. Proxmox lists only volumes of VMs that the token may see.
func (c *Client) OwnedVolumes(ctx context.Context, host, storage string, owner cluster.VMID) ([]string, error) {
	rows, err := get[[]volume](ctx, c.conn, contentPath(host, storage)+fmt.Sprintf("?content=images&vmid=%d", owner))
	volids := cluster.Each(rows, func(v volume) string { return v.Volid })
	slices.Sort(volids)
	return volids, err
}

type volume struct {
	Volid string
	CTime flexInt
}

func contentPath(host, storage string) string {
	return "/nodes/" + url.PathEscape(host) + "/storage/" + url.PathEscape(storage) + "/content"
}

// HasVolume implements cluster.StorageReader. Proxmox lists disks only of VMs that the token may see.
func (c *Client) HasVolume(ctx context.Context, host, volid string) (bool, error) {
	_, found, err := c.VolumeChanged(ctx, host, volid)
	return found, err
}

func (c *Client) VolumeChanged(ctx context.Context, host, volid string) (at time.Time, found bool, err error) {
	storage, name, ok := strings.Cut(volid, ":")
	if !ok || storage == "" || name == "" {
		return at, false, fmt.Errorf("%q is not the name of a volume", volid)
	}
	path := contentPath(host, storage)
	if content, _, _ := strings.Cut(name, "/"); content == isoContent || content == importContent {
		path += "?content=" + content
	}
	rows, err := get[[]volume](ctx, c.conn, path)
	row, found := cluster.Find(rows, func(v volume) bool { return v.Volid == volid })
	return timeOf(row.CTime), found, err
}

// timeOf reads the time of a last change; zero if Proxmox gives none.
func timeOf(ctime flexInt) (at time.Time) {
	if ctime > 0 {
		at = time.Unix(int64(ctime), 0).UTC()
	}
	return at
}

// storageConfig is a section of storage.cfg. A token that may use the storage sees the whole section except passwords
// (pve-storage, API2/Storage/Config.pm, index).
type storageConfig struct {
	Storage, Type      string
	Shared             json.RawMessage // also set for types that are always shared (Storage/Plugin.pm)
	Sparse             json.RawMessage
	Preallocation      string
	VG                 string `json:"vgname"`
	ThinPool           string
	Pool               string // of ZFS or Ceph
	MonHost, Namespace string
	Path               string // of a storage of files
	Server             string
	Export, Share      string // of NFS and CIFS
}

// Storages implements cluster.StorageReader. Proxmox omits those on which the token has
// neither Datastore.Audit nor Datastore.AllocateSpace.
func (c *Client) Storages(ctx context.Context) ([]cluster.Storage, error) {
	rows, err := get[[]storageConfig](ctx, c.conn, "/storage")
	found := cluster.Each(rows, func(r storageConfig) cluster.Storage {
		return cluster.Storage{Name: r.Storage, Type: r.Type, Shared: toBool(r.Shared), Thick: r.thick(), Pool: r.pool(), Dir: strings.TrimRight(r.Path, "/")}
	})
	slices.SortFunc(found, func(a, b cluster.Storage) int { return cmp.Compare(a.Name, b.Name) })
	return found, err
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

// ISOs implements images.Shelf. Unfinished downloads are not included: they are
// called <name>.iso.tmp_dwnl.<pid>, and Proxmox does not list them as ISOs.
func (c *Client) ISOs(ctx context.Context, host, storage string) ([]images.StoredISO, error) {
	return c.storedFiles(ctx, host, storage, isoContent)
}

func (c *Client) DiskImages(ctx context.Context, host, storage string) ([]images.StoredISO, error) {
	return c.storedFiles(ctx, host, storage, importContent)
}

func (c *Client) storedFiles(ctx context.Context, host, storage, content string) ([]images.StoredISO, error) {
	var rows []struct {
		Volid string
		Size  json.Number
		CTime flexInt
	}
	if err := c.conn.Get(ctx, contentPath(host, storage)+"?content="+content, &rows); err != nil {
		return nil, err
	}
	var isos []images.StoredISO
	for _, r := range rows {
		name, is := strings.CutPrefix(r.Volid, storage+":"+content+"/")
		if !is {
			continue
		}
		size, err := r.Size.Int64()
		if err != nil {
			return nil, fmt.Errorf("size of %s: %w", r.Volid, err)
		}
		isos = append(isos, images.StoredISO{Host: host, Storage: storage, Name: name, SizeBytes: size, Changed: timeOf(r.CTime)})
	}
	slices.SortFunc(isos, func(a, b images.StoredISO) int { return cmp.Compare(a.Name, b.Name) })
	return isos, nil
}

// DeleteISO implements images.Shelf. Proxmox's task also succeeds if the file does not exist.
func (c *Client) DeleteISO(ctx context.Context, iso images.StoredISO) error {
	content := contentOf(iso.Name)
	volid := iso.Storage + ":" + content + "/" + iso.Name
	err := c.carryOut(ctx, mutation{
		method: http.MethodDelete, path: contentPath(iso.Host, iso.Storage) + "/" + url.PathEscape(volid),
		worker: worker{iso.Host, "imgdel", iso.Storage}, repeatable: true,
		look: func(ctx context.Context) (sight, error) {
			_, found, err := c.storedFile(ctx, iso.Host, iso.Storage, content, iso.Name)
			if err == nil && !found {
				return sight{state: reached, what: volid + " is gone"}, nil
			}
			return sight{state: untouched, what: volid + " is there"}, err
		},
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", iso, err)
	}
	return nil
}

// MayDownload implements images.Store. It checks what API2/Storage/Status.pm,
// download_url, and API2/Nodes.pm, query_url_metadata, check.
func (c *Client) MayDownload(ctx context.Context, host, storage string) (why string, err error) {
	on, node, root := "/storage/"+storage, "/nodes/"+host, "/"
	has := func(path, privilege string) bool {
		held, askErr := c.Permissions(ctx, path)
		err = errors.Join(err, askErr)
		_, is := held[privilege]
		return is
	}
	switch {
	case !has(on, "Datastore.AllocateTemplate"):
		why = "the token has no Datastore.AllocateTemplate on " + on
	case !has(node, "Sys.AccessNetwork") && !(has(root, "Sys.Audit") && has(root, "Sys.Modify")):
		why = "the token has no Sys.AccessNetwork on " + node
	}
	return why, err
}

func (c *Client) URLSize(ctx context.Context, host, link string) (sizeBytes int64, err error) {
	var meta struct{ Size flexInt }
	query := url.Values{"url": {link}, "verify-certificates": {"1"}}
	err = c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/query-url-metadata?"+query.Encode(), &meta)
	return int64(meta.Size), err
}

// otherContent matches the error of a download whose file, new or existing, does not
// have the requested checksum (Tools.pm, download_file_from_url).
var otherContent = regexp.MustCompile(`^checksum mismatch: got '`)

func (c *Client) Download(ctx context.Context, d images.Download) error {
	if err := checkFileName(d.Name); err != nil {
		return err
	}
	err := c.carryOut(ctx, mutation{
		method: http.MethodPost, path: "/nodes/" + url.PathEscape(d.Host) + "/storage/" + url.PathEscape(d.Storage) + "/download-url",
		params: map[string]string{
			"content": contentOf(d.Name), "filename": d.Name, "url": d.URL, "verify-certificates": "1",
			"checksum": d.SHA256, "checksum-algorithm": "sha256",
		},
		worker: worker{d.Host, "download", d.Name},
		// A second download finds the file of the first, or loads the same file.
		repeatable: true,
		look: func(ctx context.Context) (sight, error) {
			file, found, err := c.storedFile(ctx, d.Host, d.Storage, contentOf(d.Name), d.Name)
			if err == nil && found && file.SizeBytes == d.SizeBytes {
				return sight{state: reached, what: d.Name + " is there"}, nil
			}
			return sight{state: untouched, what: d.Name + " is not there"}, err
		},
	})
	if e, ok := errors.AsType[*api.TaskError](err); ok && otherContent.MatchString(e.Exit) {
		return fmt.Errorf("%w: %w", images.ErrOtherContent, err)
	}
	return err
}

// uploadAttempts bounds how often an ISO is sent when answers are lost.
const uploadAttempts = 3

// Upload implements images.Store. It holds only a buffer of the ISO in memory. It sends an upload again if its answer
// was lost and it had no effect: the bytes are the same, whichever upload Proxmox stores.
func (c *Client) Upload(ctx context.Context, u images.Upload) error {
	if err := checkFileName(u.Name); err != nil {
		return err
	}
	if err := c.mayUpload(ctx, u.Storage); err != nil {
		return err
	}
	// A file that already has this size proves nothing about this upload.
	was, found, err := c.storedFile(ctx, u.Host, u.Storage, contentOf(u.Name), u.Name)
	if err != nil {
		return err
	}
	absent := !found || was.SizeBytes != u.SizeBytes
	path := "/nodes/" + url.PathEscape(u.Host) + "/storage/" + url.PathEscape(u.Storage) + "/upload"
	for attempt := 1; ; attempt++ {
		sent := time.Now()
		upid, whole, err := c.sendISO(ctx, path, u)
		if err == nil {
			return c.tasks.finish(ctx, upid)
		}
		if !errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil {
			return err
		}
		again := true // a partial upload has no effect: the server waits for Content-Length bytes
		if whole {
			again, err = c.findUpload(ctx, u, absent, sent, err)
		}
		if err == nil || !again || attempt == uploadAttempts {
			return err
		}
	}
}

// mayUpload refuses an upload that Proxmox would refuse without our receiving the answer. Proxmox checks this
// privilege before it reads the file, and answers three seconds later. By then it closes a connection on which more
// than half a megabyte has arrived, and takes data on a connection that it knows for a bad request (pve-manager,
// HTTPServer.pm, auth_handler; pve-http-server, AnyEvent.pm).
func (c *Client) mayUpload(ctx context.Context, storage string) error {
	const privilege = "Datastore.AllocateTemplate"
	path := "/storage/" + storage
	held, err := c.Permissions(ctx, path)
	if err != nil {
		return err
	}
	if _, may := held[privilege]; !may {
		return c.conn.HintPrivilege(fault.Refusedf("upload to storage %q: 403 Permission check failed (%s, %s): nothing was sent", storage, path, privilege), path, privilege)
	}
	return nil
}

// fileName matches the names that Proxmox does not change (pve-storage, Storage.pm, normalize_content_filename) and
// accepts for an ISO or a disk image. The length is checked separately: a length in the pattern would slow its
// compilation, at every start, a thousandfold.
var fileName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+\.(iso|qcow2)$`)

const maxFileName = 255

// checkFileName refuses names under which Proxmox would not store the file.
func checkFileName(name string) error {
	if len(name) > maxFileName || !fileName.MatchString(name) {
		return fault.Configf("%q can't be the name of an ISO on Proxmox: it takes letters, digits, _ . - and the ending .iso, or .qcow2 for a disk image, %d characters in all", name, maxFileName)
	}
	return nil
}

// contentOf returns Proxmox's content type of a file with that name.
func contentOf(name string) string {
	if strings.HasSuffix(name, ".qcow2") {
		return importContent
	}
	return isoContent
}

// sendISO uploads an ISO and returns the name of the task that checks and stores it.
// whole says whether the file was sent to its end.
func (c *Client) sendISO(ctx context.Context, path string, u images.Upload) (upid string, whole bool, err error) {
	form, err := newForm(u)
	if err != nil {
		return "", false, err
	}
	bodies := &uploads{form: form, upload: u}
	_, err = c.conn.Send(ctx, http.MethodPost, path, func(req *http.Request) {
		// Proxmox rejects chunked bodies: the length must be known beforehand.
		req.ContentLength = int64(len(form.head)) + u.SizeBytes + int64(len(form.tail))
		req.GetBody = bodies.open
		req.Header.Set("Content-Type", form.contentType)
	}, &upid)
	whole = bodies.whole()
	return upid, whole, errors.Join(err, bodies.close())
}

// findUpload finds out the outcome of an upload whose answer was lost. The upload's task runs on the node that
// received the upload: Proxmox does not forward uploads to their host. again says that the upload had no effect;
// absent says that no file of the right size existed before.
func (c *Client) findUpload(ctx context.Context, u images.Upload, absent bool, sent time.Time, lost error) (again bool, err error) {
	upid, stored := "", false
	w := wait.For{Name: "find out whether the upload arrived", Every: c.conn.Poll}
	err = search(ctx, w, lateness, func(ctx context.Context) (final bool, what string, err error) {
		if upid, err = c.uploadTask(ctx, sent); err != nil || upid != "" {
			return true, "", err
		}
		file, found, err := c.storedFile(ctx, u.Host, u.Storage, contentOf(u.Name), u.Name)
		stored = absent && found && file.SizeBytes == u.SizeBytes
		return stored, "neither a task nor the file", err
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("%w; %w", lost, err)
	case upid != "":
		return false, c.tasks.finish(ctx, upid)
	case stored:
		return false, nil
	}
	return true, fmt.Errorf("%w; since then neither a task nor the file has appeared", lost)
}

// uploadTask finds the task of an upload sent at that time, on any host; "" if there is none.
func (c *Client) uploadTask(ctx context.Context, sent time.Time) (upid string, err error) {
	online, _, err := c.Nodes(ctx)
	if err != nil {
		return "", err
	}
	for _, host := range online {
		if upid, err = c.tasks.startedSince(ctx, worker{host: host, kind: "imgcopy"}, sent); err != nil || upid != "" {
			return upid, err
		}
	}
	return "", nil
}

// form is the multipart body around the file. Proxmox's parser takes the parts in this order only, with the file last
// and Content-Disposition as the first header of each part.
type form struct {
	head, tail  []byte
	contentType string
}

func newForm(u images.Upload) (form, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	fields := [...][2]string{{"content", contentOf(u.Name)}, {"checksum-algorithm", "sha256"}, {"checksum", u.SHA256}}
	for _, f := range fields {
		if err := w.WriteField(f[0], f[1]); err != nil {
			return form{}, err
		}
	}
	if _, err := w.CreateFormFile("filename", u.Name); err != nil {
		return form{}, err
	}
	head := b.Len()
	if err := w.Close(); err != nil {
		return form{}, err
	}
	return form{head: b.Bytes()[:head], tail: b.Bytes()[head:], contentType: w.FormDataContentType()}, nil
}

// uploads holds the bodies of one upload's attempts. net/http may still read a body for a moment after it has
// returned an answer; close ends that reading.
type uploads struct {
	form   form
	upload images.Upload

	mu     sync.Mutex
	bodies []*uploadBody
}

func (b *uploads) open() (io.ReadCloser, error) {
	file, err := b.upload.Open()
	if err != nil {
		return nil, err
	}
	content := &wholeReader{file: io.LimitReader(file, b.upload.SizeBytes), size: b.upload.SizeBytes, progress: b.upload.Progress}
	body := &uploadBody{
		file: file, content: content,
		reader: io.MultiReader(bytes.NewReader(b.form.head), content, bytes.NewReader(b.form.tail)),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bodies = append(b.bodies, body)
	return body, nil
}

// whole reports whether any attempt has read its file to the end.
func (b *uploads) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.bodies, func(body *uploadBody) bool {
		body.mu.Lock()
		defer body.mu.Unlock()
		return body.content.read == body.content.size
	})
}

func (b *uploads) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(cluster.Each(b.bodies, (*uploadBody).Close)...)
}

type uploadBody struct {
	mu      sync.Mutex
	closed  bool
	file    io.Closer
	content *wholeReader
	reader  io.Reader
}

func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errors.New("the upload has ended")
	}
	return b.reader.Read(p)
}

func (b *uploadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	return b.file.Close()
}

// wholeReader reads a file of known size and reports how much has been read.
type wholeReader struct {
	file       io.Reader
	read, size int64
	progress   func(int64)
}

func (r *wholeReader) Read(p []byte) (int, error) {
	n, err := r.file.Read(p)
	r.read += int64(n)
	if n > 0 && r.progress != nil {
		r.progress(r.read)
	}
	if err == io.EOF && r.read < r.size {
		err = fmt.Errorf("the file ends after %d of %d bytes: %w", r.read, r.size, io.ErrUnexpectedEOF)
	}
	return n, err
}

// Uses implements images.Users: it returns every VM of the whole Proxmox cluster,
// with its pending changes, and every snapshot. Containers have no ISOs.
func (c *Client) Uses(ctx context.Context) ([]images.Use, error) {
	if err := c.seesEveryVM(ctx); err != nil {
		return nil, err
	}
	rows, err := c.resources(ctx)
	if err != nil {
		return nil, err
	}
	away, err := c.offline(ctx)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if away.has(row.Node) {
			away.addVM(fromResource(row))
		}
	}
	if err := away.err(); err != nil {
		return nil, err
	}
	found := make([][]images.Use, len(rows))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(api.ReadsAtOnce)
	for i, row := range rows {
		g.Go(func() error {
			vm := fromResource(row)
			var err error
			found[i], err = c.usesOf(ctx, vm)
			if isNoConfig(err) {
				// Deleted or moved since the list was read: look up this VM alone.
				if vm, err = c.VM(ctx, vm.ID); errors.Is(err, cluster.ErrNotFound) {
					return nil
				}
				if err == nil {
					found[i], err = c.usesOf(ctx, vm)
				}
			}
			if err != nil {
				return fmt.Errorf("read what VM %d refers to: %w", vm.ID, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(found...), nil
}

// usesOf reads one VM. It reads the list of pending changes, which has the old and the new value. GET config merges
// pending changes, and so omits what a running VM still has in a drive that is to be removed.
func (c *Client) usesOf(ctx context.Context, vm cluster.VM) ([]images.Use, error) {
	var rows []pendingRow
	if err := c.conn.Get(ctx, vmPath(vm, "pending"), &rows); err != nil {
		return nil, err
	}
	var own images.Use
	for _, r := range rows {
		switch r.Key {
		case "description":
			continue
		case "name": // the cluster's list may not have the name yet
			vm.Name = cmp.Or(scalar(r.Value), vm.Name)
		}
		for _, value := range []json.RawMessage{r.Value, r.Pending} {
			if len(value) > 0 {
				own.Values = append(own.Values, scalar(value))
			}
		}
	}
	own.By = vm.String()
	uses := []images.Use{own}
	snapshots, err := c.snapshots(ctx, vm)
	if err != nil {
		return nil, err
	}
	for _, name := range snapshots {
		var config rawConfig
		if err := c.conn.Get(ctx, vmPath(vm, "snapshot/"+url.PathEscape(name)+"/config"), &config); err != nil {
			return nil, err
		}
		use := images.Use{By: fmt.Sprintf("snapshot %s of %s", name, vm)}
		for key, value := range config {
			if key != "description" {
				use.Values = append(use.Values, scalar(value))
			}
		}
		slices.Sort(use.Values)
		uses = append(uses, use)
	}
	return uses, nil
}
