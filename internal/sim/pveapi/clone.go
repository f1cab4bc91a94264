package pveapi

import (
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// cloneRoutes are not used by recast itself: they create the situations that recast must handle.
func cloneRoutes() []route {
	const vm = "/nodes/{node}/qemu/{vmid}"
	return []route{
		{method: "POST", path: vm + "/template", params: []string{"disk"}, handle: template},
		{
			method: "POST", path: vm + "/clone", need: []string{"newid"}, handle: clone,
			params: []string{"newid", "name", "description", "pool", "full", "snapname", "storage", "format", "target", "bwlimit"},
		},
		{method: "POST", path: vm + "/snapshot", params: []string{"snapname", "description", "vmstate"}, need: []string{"snapname"}, handle: createSnapshot},
		{
			method: "POST", path: "/nodes/{node}/storage/{storage}/content", params: []string{"filename", "vmid", "size", "format"},
			need: []string{"filename", "vmid", "size"}, handle: allocDisk,
		},
		{method: "DELETE", path: vm + "/snapshot/{snapname}", params: []string{"force"}, handle: removeSnapshot},
	}
}

func template(c *call) (any, error) {
	if c.params["disk"] != "" {
		return nil, unsupported("making a single disk a base volume")
	}
	return c.MakeTemplate(c.user, c.node(), c.vmid())
}

func clone(c *call) (any, error) {
	for _, name := range []string{"snapname", "storage", "format", "target"} {
		if c.params[name] != "" {
			return nil, unsupported("clone with " + name)
		}
	}
	r := world.CloneRequest{
		ID: c.vmid(), NewID: c.number("newid", 0), Name: c.params["name"], Description: c.params["description"], Pool: c.params["pool"],
	}
	if c.params["full"] != "" {
		r.Full = new(c.flag("full"))
	}
	return c.Clone(c.user, c.node(), r)
}

// allocDisk takes a size in KiB, or with the suffix M or G.
func allocDisk(c *call) (any, error) {
	size := c.params["size"]
	unit := int64(1) << 10
	if number, ok := strings.CutSuffix(size, "G"); ok {
		size, unit = number, 1<<30
	} else if number, ok := strings.CutSuffix(size, "M"); ok {
		size, unit = number, 1<<20
	}
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return nil, world.BadParam("size", "value does not match the regex pattern")
	}
	return c.AllocDisk(c.user, c.node(), world.AllocRequest{
		Storage: c.storage(), VMID: c.vmid(), Name: c.params["filename"], Bytes: n * unit, Format: c.params["format"],
	})
}

func createSnapshot(c *call) (any, error) {
	return c.CreateSnapshot(c.user, c.node(), world.SnapshotRequest{
		ID: c.vmid(), Name: c.params["snapname"], Description: c.params["description"], Memory: c.flag("vmstate"),
	})
}

func removeSnapshot(c *call) (any, error) {
	return c.RemoveSnapshot(c.user, c.node(), c.vmid(), c.vars["snapname"])
}
