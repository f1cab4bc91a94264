package pveapi

import (
	"fmt"
	"net/http"
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
	list := []object{}
	for _, s := range c.StorageConfig() {
		wrongType := c.params["type"] != "" && s.Type != c.params["type"]
		if !wrongType && c.may("/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			list = append(list, configEntry(s))
		}
	}
	return list, nil
}

// configEntry is a section of storage.cfg, without unset properties.
func configEntry(s world.Storage) object {
	out := object{"storage": s.ID, "type": s.Type, "content": strings.Join(s.Content, ",")}
	if s.Shared {
		out["shared"] = 1
	}
	if len(s.Hosts) > 0 {
		out["nodes"] = strings.Join(s.Hosts, ",")
	}
	if s.Sparse {
		out["sparse"] = 1
	}
	addText(out, map[string]string{"path": s.Path(), "vgname": s.VolumeGroup, "thinpool": s.ThinPool, "pool": s.Pool, "monhost": s.MonHost, "preallocation": s.Preallocation})
	return out
}

// storageEntry is storage_info's; it has no figures of an unreachable storage.
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

// storages lists storages of other hosts too, unless a content is given (Storage.pm,
// storage_info).
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
	list := []object{}
	for _, v := range volumes {
		if !c.wantsVolume(v) || !c.MaySee(c.user, v.Volid) {
			continue
		}
		entry := object{"volid": v.Volid, "content": v.Content, "format": v.Format, "size": v.Size, "ctime": v.Created.Unix()}
		if v.Owner != 0 {
			entry["vmid"] = v.Owner
		}
		if v.Content == "images" {
			c.addAllocated(entry, v)
		}
		list = append(list, entry)
	}
	return list, nil
}

// wantsVolume: filtered by a VM, the listing has no ISOs and templates, but all snippets
// and images to import (list_volumes in Storage/Plugin.pm).
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

// addAllocated adds the further fields of a directory's listing, which come from qemu-img.
func (c *call) addAllocated(entry object, v world.VolumeInfo) {
	if c.ListsUsed(c.storage()) {
		entry["used"], entry["parent"] = v.Used, nil
	}
	if v.Parent != "" {
		entry["parent"] = v.Parent
	}
}

// volid is the path's volume, which may lack the storage's name.
func (c *call) volid() string {
	if strings.Contains(c.vars["volume"], ":") {
		return c.vars["volume"]
	}
	return c.storage() + ":" + c.vars["volume"]
}

// volumeAttributes is the info method of API2/Storage/Content.pm. ISOs count as images
// here; of an image to import it has the size of the disk, while the listing has the file's.
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

func deleteVolume(c *call) (any, error) {
	return c.DeleteVolume(c.user, c.node(), c.volid())
}
