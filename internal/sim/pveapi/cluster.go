package pveapi

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	hostCores  = 16
	hostMemory = 64 << 30
	hostDisk   = 1 << 40
)

func clusterRoutes() []route {
	return []route{
		{method: "GET", path: "/version", handle: version},
		{method: "GET", path: "/cluster/status", handle: clusterStatus},
		{method: "GET", path: "/cluster/resources", params: []string{"type"}, handle: resources},
		{method: "GET", path: "/cluster/nextid", params: []string{"vmid"}, handle: nextID},
		{method: "GET", path: "/cluster/ha/resources", params: []string{"type"}, handle: haResources},
		{method: "GET", path: "/cluster/ha/resources/{sid}", handle: haResource},
		{method: "GET", path: "/cluster/replication", handle: emptyList},
		{method: "GET", path: "/cluster/backup", handle: backupJobs},
		{method: "GET", path: "/pools", params: []string{"poolid", "type"}, handle: pools},
	}
}

func version(*call) (any, error) {
	return object{"version": "9.2.11", "release": "9.2", "repoid": "14a22df3"}, nil
}

func emptyList(*call) (any, error) { return []any{}, nil }

func backupJobs(c *call) (any, error) {
	if err := c.Check(c.user, "/", "Sys.Audit"); err != nil {
		return nil, err
	}
	return []any{}, nil
}

// clusterStatus has an entry for the cluster only where there is one: a host by itself is just a node.
func clusterStatus(c *call) (any, error) {
	if err := c.Check(c.user, "/", "Sys.Audit"); err != nil {
		return nil, err
	}
	hosts := c.Hosts()
	var list []object
	if name := c.Cluster(); name != "" {
		list = append(list, object{
			"type": "cluster", "id": "cluster", "name": name, "nodes": len(hosts), "version": len(hosts), "quorate": bit(c.Quorate()),
		})
	}
	for i, host := range hosts {
		list = append(list, object{
			"type": "node", "id": "node/" + host, "name": host, "nodeid": i + 1, "online": 1, "level": "",
			"local": bit(host == c.host), "ip": fmt.Sprintf("192.0.2.%d", i+1),
		})
	}
	return list, nil
}

func resources(c *call) (any, error) {
	kind := c.params["type"]
	list := []object{}
	if kind == "" || kind == "vm" {
		for _, vm := range c.VMs() {
			if c.may(vmPath(vm.ID), "VM.Audit") {
				list = append(list, vmResource(vm))
			}
		}
	}
	for _, host := range c.Hosts() {
		if kind == "" || kind == "node" {
			list = append(list, hostEntry(host))
		}
		if kind == "" || kind == "storage" {
			list = append(list, storageResources(c, host)...)
		}
	}
	if kind == "" || kind == "pool" {
		for name := range c.Pools() {
			if c.may("/pool/"+name, "Pool.Audit") {
				list = append(list, object{"id": "/pool/" + name, "type": "pool", "pool": name})
			}
		}
	}
	return list, nil
}

func vmResource(vm world.VM) object {
	out := vmEntry(vm)
	out["id"], out["type"], out["node"] = fmt.Sprintf("qemu/%d", vm.ID), "qemu", vm.Host
	out["template"], out["maxcpu"] = bit(vm.Config["template"] == "1"), out["cpus"]
	delete(out, "cpus")
	if vm.Pool != "" {
		out["pool"] = vm.Pool
	}
	if vm.HA {
		out["hastate"] = "started"
	}
	return out
}

func storageResources(c *call, host string) []object {
	var list []object
	for _, s := range c.Storages(host) {
		if c.may("/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			list = append(list, object{
				"id": "storage/" + host + "/" + s.ID, "type": "storage", "node": host, "storage": s.ID, "status": "available",
				"plugintype": s.Type, "content": contentTypes(s), "shared": bit(s.Shared), "disk": s.Used, "maxdisk": s.Capacity,
			})
		}
	}
	return list
}

func hostEntry(host string) object {
	return object{
		"id": "node/" + host, "type": "node", "node": host, "status": "online", "level": "",
		"cpu": 0.05, "maxcpu": hostCores, "mem": hostMemory / 4, "maxmem": hostMemory, "disk": hostDisk / 10, "maxdisk": hostDisk, "uptime": 86400,
	}
}

// nextID is the lowest free VMID now; it is a string, and reserves nothing.
func nextID(c *call) (any, error) {
	taken := map[int]bool{}
	for _, vm := range c.VMs() {
		taken[vm.ID] = true
	}
	if asked := c.vmid(); asked != 0 {
		if taken[asked] {
			return nil, world.BadParam("vmid", "VM %d already exists", asked)
		}
		return strconv.Itoa(asked), nil
	}
	id := 100
	for taken[id] {
		id++
	}
	return strconv.Itoa(id), nil
}

func haResources(c *call) (any, error) {
	if err := c.Check(c.user, "/", "Sys.Audit"); err != nil {
		return nil, err
	}
	list := []object{}
	for _, r := range c.HA() {
		list = append(list, haEntry(r))
	}
	return list, nil
}

func haResource(c *call) (any, error) {
	if err := c.Check(c.user, "/", "Sys.Audit"); err != nil {
		return nil, err
	}
	for _, r := range c.HA() {
		if r.SID == c.vars["sid"] {
			return haEntry(r), nil
		}
	}
	return nil, &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("no such resource '%s'", c.vars["sid"])}
}

func haEntry(r world.HAResource) object {
	out := object{"sid": r.SID, "type": "vm", "state": r.State}
	if r.Group != "" {
		out["group"] = r.Group
	}
	return out
}

func pools(c *call) (any, error) {
	list := []object{}
	for name, ids := range c.Pools() {
		if want := c.params["poolid"]; want != "" && want != name || !c.may("/pool/"+name, "Pool.Audit") {
			continue
		}
		entry := object{"poolid": name}
		if c.params["poolid"] != "" {
			members := []object{}
			for _, vm := range c.VMs() {
				if vm.Pool == name && len(ids) > 0 {
					members = append(members, vmResource(vm))
				}
			}
			entry["members"] = members
		}
		list = append(list, entry)
	}
	return list, nil
}
