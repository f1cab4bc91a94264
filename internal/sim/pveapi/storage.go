package pveapi

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

func storageRoutes() []route {
	const at = "/nodes/{node}/storage/{storage}"
	see := []demand{{"/storage/{storage}", []string{"Datastore.Audit", "Datastore.AllocateSpace"}}}
	return []route{
		{method: "GET", path: "/storage", params: []string{"type"}, handle: storageConfigs},
		{method: "GET", path: "/nodes/{node}/storage", params: []string{"content", "enabled", "format", "storage", "target"}, handle: storages},
		{method: "GET", path: at + "/status", permit: see, handle: storageStatus},
		{method: "GET", path: at + "/content", params: []string{"content", "vmid"}, permit: see, handle: content},
		{method: "GET", path: at + "/content/{volume...}", handle: volumeAttributes},
		{method: "DELETE", path: at + "/content/{volume...}", params: []string{"delay"}, handle: deleteVolume},
	}
}

func contentTypes(s world.StorageStatus) string { return strings.Join(s.Content, ",") }

func storageConfigs(c *call) (any, error) {
	return listed(c.StorageConfig(), func(s world.Storage) object {
		wrongType := c.params["type"] != "" && s.Type != c.params["type"]
		if wrongType || !c.may("/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			return nil
		}
		return configEntry(s)
	}), nil
}

// configEntry returns a section of storage.cfg, without unset properties.
func configEntry(s world.Storage) object {
	out := object{"storage": s.ID, "type": s.Type, "content": strings.Join(s.Content, ",")}
	if s.Shared {
		out["shared"] = 1
	}
	if s.Sparse {
		out["sparse"] = 1
	}
	return out.with(map[string]string{
		"path": s.Path(), "vgname": s.VolumeGroup, "thinpool": s.ThinPool, "pool": s.Pool, "monhost": s.MonHost, "preallocation": s.Preallocation,
		"nodes": strings.Join(s.Hosts, ","),
	})
}

// storageEntry returns the entry of storage_info; an unreachable storage has no figures.
func storageEntry(s world.StorageStatus) object {
	out := object{
		"type": s.Type, "content": contentTypes(s), "shared": bit(s.Shared), "active": bit(s.Active), "enabled": bit(s.Enabled),
		"total": 0, "used": 0, "avail": 0,
	}
	if s.Active {
		out["total"], out["used"], out["avail"] = s.Capacity, s.Used, s.Available
	}
	return out
}

// storages lists storages, those of other hosts too unless the request names a content (Storage.pm, storage_info).
func storages(c *call) (any, error) {
	list, found := []object{}, false
	for _, s := range c.Storages(c.node()) {
		wrongContent := c.params["content"] != "" && (!s.Enabled || !slices.Contains(s.Content, c.params["content"]))
		if wrongContent || c.params["storage"] != "" && s.ID != c.params["storage"] {
			continue
		}
		if found = true; !c.may("/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			continue
		}
		entry := storageEntry(s)
		entry["storage"] = s.ID
		if s.Active {
			entry["used_fraction"] = float64(s.Used) / float64(s.Capacity)
		}
		list = append(list, entry)
	}
	if c.params["storage"] != "" && !found {
		return nil, world.BadParam("storage", "No such storage.")
	}
	return list, nil
}

func storageStatus(c *call) (any, error) {
	for _, s := range c.Storages(c.node()) {
		if s.ID == c.storage() {
			return storageEntry(s), nil
		}
	}
	return nil, world.BadParam("storage", "No such storage.")
}

func content(c *call) (any, error) {
	volumes, err := c.Volumes(c.storage(), c.node())
	if err != nil {
		return nil, err
	}
	return listed(volumes, func(v world.VolumeInfo) object {
		if !c.wantsVolume(v) || !c.MaySee(c.user, v.Volid) {
			return nil
		}
		entry := object{"volid": v.Volid, "content": v.Content, "format": v.Format, "size": v.Size, "ctime": v.Created.Unix()}
		if v.Owner != 0 {
			entry["vmid"] = v.Owner
		}
		if v.Content == "images" {
			c.addAllocated(entry, v)
		}
		return entry
	}), nil
}

// wantsVolume reports whether the listing has a volume: filtered by a VM, the listing has no ISOs and templates, but
// all snippets and images to import (list_volumes in Storage/Plugin.pm).
func (c *call) wantsVolume(v world.VolumeInfo) bool {
	if c.params["content"] != "" && v.Content != c.params["content"] {
		return false
	}
	if c.params["vmid"] == "" {
		return true
	}
	switch v.Content {
	case "iso", "vztmpl":
		return false
	case "images":
		return v.Owner == c.vmid()
	}
	return true
}

// addAllocated adds the further fields of a directory's listing, which Proxmox gets from qemu-img.
func (c *call) addAllocated(entry object, v world.VolumeInfo) {
	if c.ListsUsed(c.storage()) {
		entry["used"], entry["parent"] = v.Used, nil
	}
	if v.Parent != "" {
		entry["parent"] = v.Parent
	}
}

// volid returns the path's volume, which may lack the storage's name.
func (c *call) volid() string {
	if strings.Contains(c.vars["volume"], ":") {
		return c.vars["volume"]
	}
	return c.storage() + ":" + c.vars["volume"]
}

// volumeAttributes does the work of the info method of API2/Storage/Content.pm. ISOs count as images here; for an
// image to import, the size is that of the disk, while the listing has the size of the file.
func volumeAttributes(c *call) (any, error) {
	if err := c.CheckVolume(c.user, c.volid()); err != nil {
		return nil, err
	}
	volumes, err := c.Volumes(c.storage(), c.node())
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		if v.Volid != c.volid() {
			continue
		}
		if v.Format == "iso" {
			v.Format = "raw"
		}
		if v.Content == "import" {
			v.Size = v.Disk
		}
		return object{"path": v.Path, "size": v.Size, "used": v.Used, "format": v.Format}, nil
	}
	return nil, &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("volume_size_info on '%s' failed - no format", c.volid())}
}

func deleteVolume(c *call) (any, error) { return c.DeleteVolume(c.user, c.node(), c.volid()) }

// fileParams are the common parameters of uploads and downloads.
var fileParams = []string{"content", "filename", "checksum", "checksum-algorithm"}

func publishRoutes() []route {
	const at = "/nodes/{node}/storage/{storage}"
	permit := []demand{{"/storage/{storage}", []string{"Datastore.AllocateTemplate"}}}
	return []route{
		{
			method: "POST", path: at + "/upload", permit: permit, params: append([]string{"tmpfilename"}, fileParams...),
			need: []string{"content", "filename"}, local: true, handle: upload,
		},
		{
			method: "POST", path: at + "/download-url", permit: permit, network: true,
			params: append([]string{"url", "compression", "verify-certificates"}, fileParams...),
			need:   []string{"content", "filename", "url"}, handle: downloadURL,
		},
		{
			method: "GET", path: "/nodes/{node}/query-url-metadata", network: true, daemonless: true,
			params: []string{"url", "verify-certificates"}, need: []string{"url"}, handle: queryURLMetadata,
		},
	}
}

// mayFetch checks the privilege to make a node access its network. Either of two privileges suffices, so the error
// names no path (exec_api2_perm_check of RPCEnvironment.pm).
func (c *call) mayFetch() error {
	old := c.Check(c.user, "/", "Sys.Audit") == nil && c.Check(c.user, "/", "Sys.Modify") == nil
	if old || c.may("/nodes/"+c.node(), "Sys.AccessNetwork") {
		return nil
	}
	return &world.Error{Status: http.StatusForbidden, Message: "Permission check failed"}
}

// checkFile checks the parameters of an upload or download against the schema.
func (c *call) checkFile() error {
	wrong := map[string]string{}
	oneOf := func(name string, values ...string) {
		if value, ok := c.params[name]; ok && !slices.Contains(values, value) {
			wrong[name] = fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", value, strings.Join(values, ", "))
		}
	}
	oneOf("content", "iso", "vztmpl", "import")
	oneOf("checksum-algorithm", "md5", "sha1", "sha224", "sha256", "sha384", "sha512")
	for name, other := range map[string]string{"checksum": "checksum-algorithm", "checksum-algorithm": "checksum"} {
		if c.params[name] != "" && c.params[other] == "" {
			wrong[other] = fmt.Sprintf("missing property - '%s' requires this property", name)
		}
	}
	if len(c.params["filename"]) > 255 {
		wrong["filename"] = "value may only be 255 characters long"
	}
	c.checkURL(wrong)
	if len(wrong) > 0 {
		return &world.Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Params: wrong}
	}
	return nil
}

func (c *call) checkURL(wrong map[string]string) {
	const pattern = `https?://.*`
	if address, ok := c.params["url"]; ok && !regexp.MustCompile(`^`+pattern+`$`).MatchString(address) {
		wrong["url"] = fmt.Sprintf("value does not match the regex pattern '%s'", pattern)
	}
}

// insecure reports whether to skip the verification of certificates; by default certificates are verified.
func (c *call) insecure() bool { return c.params["verify-certificates"] == "0" }

func upload(c *call) (any, error) {
	if err := c.checkFile(); err != nil {
		if c.spool != nil {
			c.spool.Close()
		}
		return nil, err
	}
	return c.Upload(c.user, c.host, c.node(), world.UploadRequest{
		Storage: c.storage(), Content: c.params["content"], Filename: c.params["filename"],
		Algorithm: c.params["checksum-algorithm"], Checksum: c.params["checksum"], Spool: c.spool,
	})
}

func downloadURL(c *call) (any, error) {
	if c.params["compression"] != "" {
		return nil, unsupported("a download with compression")
	}
	if err := c.checkFile(); err != nil {
		return nil, err
	}
	return c.Download(c.user, c.node(), world.DownloadRequest{
		Storage: c.storage(), Content: c.params["content"], Filename: c.params["filename"], URL: c.params["url"],
		Algorithm: c.params["checksum-algorithm"], Checksum: c.params["checksum"], Insecure: c.insecure(),
	})
}

func queryURLMetadata(c *call) (any, error) {
	if err := c.checkFile(); err != nil {
		return nil, err
	}
	m, err := c.QueryURLMetadata(c.node(), c.params["url"], c.insecure())
	if err != nil {
		return nil, err
	}
	out := object{}.with(map[string]string{"filename": m.Filename, "mimetype": m.Mimetype})
	if m.Size > 0 {
		out["size"] = m.Size
	}
	return out, nil
}
