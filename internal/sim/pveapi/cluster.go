package pveapi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	hostCores  = world.HostCores
	hostMemory = 64 << 30
)

func clusterRoutes() []route {
	return []route{
		{method: "GET", path: "/version", handle: version},
		{method: "GET", path: "/cluster/status", permit: []demand{{"/", []string{"Sys.Audit"}}}, handle: clusterStatus},
		{method: "GET", path: "/cluster/resources", params: []string{"type"}, handle: resources},
		{method: "GET", path: "/cluster/nextid", params: []string{"vmid"}, handle: nextID},
		{method: "POST", path: "/pools", params: []string{"poolid", "comment"}, need: []string{"poolid"}, permit: allocatePool, handle: createPool},
		{method: "PUT", path: "/pools", params: []string{"poolid", "vms", "storage", "delete", "allow-move", "comment"}, need: []string{"poolid"}, permit: allocatePool, handle: updatePool},
		{method: "GET", path: "/pools", params: []string{"poolid", "type"}, handle: pools},
	}
}

var allocatePool = []demand{{"/pool/{poolid}", []string{"Pool.Allocate"}}}

func createPool(c *call) (any, error) { return nil, c.CreatePool(c.params["poolid"]) }

// updatePool adds VMs to a pool, or takes them out. No storage of the lab is in a pool.
func updatePool(c *call) (any, error) {
	for _, id := range list(c.params["vms"]) {
		n, err := strconv.Atoi(id)
		if err != nil {
			return nil, world.BadParam("vms", "value '%s' does not look like a valid VM ID", id)
		}
		change := func() error { return c.JoinPool(c.user, n, c.params["poolid"], c.flag("allow-move")) }
		if c.flag("delete") {
			change = func() error { return c.LeavePool(c.user, n, c.params["poolid"]) }
		}
		if err := change(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func version(*call) (any, error) {
	return object{"version": "9.2.11", "release": "9.2", "repoid": "14a22df3"}, nil
}

// clusterStatus lists the nodes, and the cluster entry only in a cluster: a standalone host is just a node.
func clusterStatus(c *call) (any, error) {
	hosts := c.Hosts()
	var list []object
	if name := c.Cluster(); name != "" {
		list = append(list, object{
			"type": "cluster", "id": "cluster", "name": name, "nodes": len(hosts), "version": len(hosts), "quorate": bit(c.Quorate()),
		})
	}
	for i, host := range hosts {
		list = append(list, object{
			"type": "node", "id": "node/" + host, "name": host, "nodeid": i + 1, "online": bit(!c.HostDown(host)), "level": "",
			"local": bit(host == c.host), "ip": fmt.Sprintf("192.0.2.%d", i+1),
		})
	}
	return list, nil
}

func resources(c *call) (any, error) {
	kind := c.params["type"]
	if kinds := []string{"vm", "storage", "node", "sdn"}; kind != "" && !slices.Contains(kinds, kind) {
		return nil, world.BadParam("type", "value '%s' does not have a value in the enumeration '%s'", kind, strings.Join(kinds, ", "))
	}
	list := []any{}
	if kind == "" || kind == "vm" {
		for _, vm := range c.VMs() {
			if c.may(vmPath(vm.ID), "VM.Audit") {
				list = append(list, c.rows.vmRow(c, vm))
			}
		}
		for _, ct := range c.Containers() {
			if c.may(vmPath(ct.ID), "VM.Audit") {
				list = append(list, containerResource(ct))
			}
		}
	}
	for _, host := range c.Hosts() {
		if kind == "" || kind == "node" {
			list = append(list, hostEntry(c, host))
		}
		if kind == "" || kind == "storage" {
			for _, entry := range storageResources(c, host) {
				list = append(list, entry)
			}
		}
	}
	if kind == "" {
		for name := range c.Pools() {
			if c.may("/pool/"+name, "Pool.Audit") {
				list = append(list, object{"id": "/pool/" + name, "type": "pool", "pool": name})
			}
		}
	}
	return list, nil
}

// vmResource returns a VM as its host last reported it; down says whether the host is down.
func vmResource(vm world.VM, seen world.Report, down bool) object {
	out := vmEntry(vm)
	out["id"], out["type"], out["node"] = fmt.Sprintf("qemu/%d", vm.ID), "qemu", vm.Host
	out["template"], out["maxcpu"] = bit(vm.Config["template"] == "1"), out["cpus"]
	delete(out, "cpus")
	if vm.Pool != "" {
		out["pool"] = vm.Pool
	}
	switch {
	case seen.Running == vm.Running:
	case seen.Running:
		out["status"] = "running"
	default:
		out["status"], out["uptime"], out["cpu"], out["mem"] = "stopped", 0, 0, 0
	}
	if !seen.Known || down { // no figures are reported
		kept := []string{"id", "type", "node", "vmid", "name", "template", "tags", "lock", "pool"}
		if !seen.Known {
			kept = slices.DeleteFunc(kept, func(key string) bool { return key == "name" || key == "template" })
		}
		maps.DeleteFunc(out, func(key string, _ any) bool { return !slices.Contains(kept, key) })
		out["status"] = "unknown"
	}
	if vm.HA.State != "" {
		out["hastate"] = vm.HA.State
	} else if vm.HA.Configured && !vm.HA.Managed {
		out["hastate"] = "ignored"
	}
	return out
}

// containerResource returns a stopped container.
func containerResource(ct world.Container) object {
	return object{
		"id": fmt.Sprintf("lxc/%d", ct.ID), "type": "lxc", "vmid": ct.ID, "name": ct.Name, "node": ct.Host, "status": "stopped", "template": 0,
		"cpu": 0, "maxcpu": 1, "mem": 0, "maxmem": 512 << 20, "disk": 0, "maxdisk": 8 << 30, "diskread": 0, "diskwrite": 0, "netin": 0, "netout": 0, "uptime": 0,
	}
}

// storageResources lists a host's storages. Only storages that a node reports have figures.
func storageResources(c *call, host string) []object {
	var list []object
	for _, s := range c.Storages(host) {
		if !s.Enabled || !c.may("/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			continue
		}
		entry := object{
			"id": "storage/" + host + "/" + s.ID, "type": "storage", "node": host, "storage": s.ID, "status": "unknown",
			"plugintype": s.Type, "content": contentTypes(s), "shared": bit(s.Shared),
		}
		if s.Active && !c.HostDown(host) {
			entry["status"], entry["disk"], entry["maxdisk"] = "available", s.Used, s.Capacity
		}
		list = append(list, entry)
	}
	return list
}

// memoryInUse returns a host's used memory: its own, and the full memory of each VM that runs there.
func memoryInUse(c *call, host string) int64 {
	used := int64(hostMemory / 16)
	for _, vm := range c.VMs() {
		mib, err := strconv.ParseInt(strings.TrimPrefix(vm.Config["memory"], "current="), 10, 64)
		if err == nil && vm.Host == host && vm.Running {
			used += mib << 20
		}
	}
	return min(used, hostMemory)
}

func hostEntry(c *call, host string) object {
	if c.HostDown(host) {
		return object{"id": "node/" + host, "type": "node", "node": host, "status": "offline", "level": ""}
	}
	total, used := c.RootDisk(host)
	return object{
		"id": "node/" + host, "type": "node", "node": host, "status": "online", "level": "",
		"cpu": 0.05, "maxcpu": hostCores, "mem": memoryInUse(c, host), "maxmem": hostMemory, "disk": used, "maxdisk": total, "uptime": int(c.Uptime(host) / time.Second),
	}
}

// nextID returns the lowest free VMID, as a string; the VMID is not reserved.
func nextID(c *call) (any, error) {
	taken := map[int]bool{}
	for _, vm := range c.VMs() {
		taken[vm.ID] = true
	}
	for _, ct := range c.Containers() {
		taken[ct.ID] = true
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
					members = append(members, vmResource(vm, c.Report(vm.ID), c.HostDown(vm.Host)))
				}
			}
			entry["members"] = members
		}
		list = append(list, entry)
	}
	return list, nil
}

func nodeRoutes() []route {
	return []route{
		{method: "GET", path: "/nodes", handle: nodes},
		{method: "GET", path: "/nodes/{node}/version", daemonless: true, handle: version},
		{method: "GET", path: "/nodes/{node}/status", permit: []demand{{"/nodes/{node}", []string{"Sys.Audit"}}}, handle: nodeStatus},
		{method: "GET", path: "/nodes/{node}/time", permit: []demand{{"/nodes/{node}", []string{"Sys.Audit"}}}, handle: nodeTime},
		{method: "GET", path: "/nodes/{node}/network", params: []string{"type"}, handle: bridges},
		{method: "GET", path: "/nodes/{node}/disks/lvmthin", permit: []demand{{"/", []string{"Sys.Audit"}}}, handle: thinPools},
		{method: "GET", path: "/nodes/{node}/ceph/status", permit: []demand{{"/", []string{"Sys.Audit", "Datastore.Audit"}}}, handle: cephStatus},
	}
}

func nodes(c *call) (any, error) {
	return listed(c.Hosts(), func(host string) object {
		entry := hostEntry(c, host)
		if !c.may("/nodes/"+host, "Sys.Audit") {
			entry = object{"id": entry["id"], "type": "node", "node": host, "status": entry["status"], "level": ""}
		}
		return entry
	}), nil
}

func nodeStatus(c *call) (any, error) {
	total, used := c.RootDisk(c.node())
	inUse := memoryInUse(c, c.node())
	return object{
		"pveversion": "pve-manager/9.2.11/14a22df3", "kversion": "Linux 6.17.2-1-pve", "current-kernel": object{"sysname": "Linux", "release": "6.17.2-1-pve", "version": "#1 SMP PREEMPT_DYNAMIC PMX 6.17.2-1", "machine": "x86_64"}, "uptime": int(c.Uptime(c.node()) / time.Second), "cpu": 0.05, "wait": 0, "idle": 0,
		"loadavg": []string{"0.50", "0.40", "0.30"},
		"cpuinfo": object{"cpus": hostCores, "cores": hostCores, "sockets": 1, "model": "Simulated CPU", "mhz": "3000.000", "hvm": "1", "user_hz": 100, "flags": ""},
		"memory":  object{"total": hostMemory, "used": inUse, "free": hostMemory - inUse, "available": hostMemory - inUse},
		"swap":    object{"total": 0, "used": 0, "free": 0},
		"rootfs":  object{"total": total, "used": used, "free": total - used, "avail": total - used},
		"ksm":     object{"shared": 0},
	}, nil
}

// nodeTime returns the time on the node's clock; every node is in UTC.
func nodeTime(c *call) (any, error) {
	now := c.Clock(c.node()).Unix()
	return object{"timezone": "UTC", "time": now, "localtime": now}, nil
}

// bridges lists a host's bridges and the VNets that the caller may use or see (pve-manager,
// PVE/API2/Network.pm, index). Other interfaces are not simulated.
func bridges(c *call) (any, error) {
	list := []object{}
	add := func(zone, name string, entry object) {
		if c.may("/sdn/zones/"+zone+"/"+name, "SDN.Audit", "SDN.Use") {
			entry["iface"], entry["active"] = name, 1
			list = append(list, entry)
		}
	}
	kind := c.params["type"]
	if kind == "" || kind == "bridge" || kind == "any_bridge" || kind == "any_local_bridge" {
		add("localnetwork", world.LocalBridge, object{"type": "bridge", "bridge_ports": "", "autostart": 1, "method": "manual"})
	}
	if kind == "any_bridge" || kind == "include_sdn" || kind == "vnet" {
		for _, v := range c.VNets() {
			add(v.Zone, v.Name, object{"type": "vnet", "ipam": bit(v.IPAM), "vlanaware": 0, "active": "1"})
		}
	}
	return list, nil
}

func thinPools(c *call) (any, error) {
	return listed(c.ThinPools(c.node()), func(p world.ThinPool) object {
		return object{
			"lv": p.Name, "vg": p.VolumeGroup, "lv_size": p.Size, "used": p.Used, "metadata_size": p.MetadataSize, "metadata_used": p.MetadataUsed,
		}
	}), nil
}

// cephStatus returns what "ceph status" says, with the health of "ceph health detail" (pve-manager,
// PVE/Ceph/Tools.pm, ceph_cluster_status).
func cephStatus(c *call) (any, error) {
	ceph, err := c.Ceph()
	if err != nil {
		return nil, err
	}
	checks := object{}
	for code, check := range ceph.Checks {
		checks[code] = object{
			"severity": check.Severity, "muted": false, "detail": []object{{"message": check.Message}},
			"summary": object{"message": check.Message, "count": 1},
		}
	}
	return object{
		"fsid": "8e3bd9f2-0b9c-4f0e-9d3a-3a6f5f1f2c11", "quorum": []int{0, 1, 2}, "quorum_names": []string{"pve1", "pve2", "pve3"},
		"health": object{"status": ceph.Health(), "checks": checks, "mutes": []object{}},
	}, nil
}

func jobRoutes() []route {
	see := []demand{{"/", []string{"Sys.Audit"}}}
	return []route{
		{method: "GET", path: "/cluster/replication", handle: replicationJobs},
		{method: "GET", path: "/nodes/{node}/replication", params: []string{"guest"}, handle: replicationStatus},
		{method: "GET", path: "/cluster/backup", permit: see, handle: backupJobs},
	}
}

func replicationJobs(c *call) (any, error) {
	return listed(c.Replication(), func(j world.ReplicationJob) object {
		if !c.may(vmPath(j.Guest), "VM.Audit") {
			return nil
		}
		return replicationEntry(j)
	}), nil
}

func replicationEntry(j world.ReplicationJob) object {
	_, number, _ := strings.Cut(j.ID, "-")
	out := object{"id": j.ID, "type": "local", "guest": j.Guest, "jobnum": atoi(number), "target": j.Target}.
		with(map[string]string{"schedule": j.Schedule, "comment": j.Comment})
	if j.Disabled {
		out["disable"] = 1
	}
	return out
}

// replicationStatus returns what the VMs' host knows of their jobs.
func replicationStatus(c *call) (any, error) {
	here := map[int]bool{}
	for _, vm := range c.VMs() {
		here[vm.ID] = vm.Host == c.node()
	}
	return listed(c.Replication(), func(j world.ReplicationJob) object {
		other := c.params["guest"] != "" && c.params["guest"] != strconv.Itoa(j.Guest)
		if other || !here[j.Guest] || !c.may(vmPath(j.Guest), "VM.Audit") {
			return nil
		}
		entry := replicationEntry(j).with(map[string]string{"error": j.Error})
		entry["last_try"], entry["fail_count"], entry["vmtype"] = 0, j.Fails, "qemu"
		entry["next_sync"], entry["last_sync"] = c.dated(c.node(), j.NextSync), c.dated(c.node(), j.LastSync)
		if j.Running {
			entry["pid"] = 4711
		}
		return entry
	}), nil
}

// dated returns at by the clock of host; 0: never.
func (c *call) dated(host string, at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return c.Clock(host).Add(time.Until(at)).Unix()
}

func backupJobs(c *call) (any, error) { return listed(c.BackupJobs(), c.backupEntry), nil }

// backupEntry shows the set properties; a disabled job has no next-run.
func (c *call) backupEntry(j world.BackupJob) object {
	out := object{"id": j.ID, "type": "vzdump", "enabled": bit(!j.Disabled)}.with(map[string]string{
		"schedule": j.Schedule, "storage": j.Storage, "pool": j.Pool, "node": j.Host, "mode": j.Mode, "comment": j.Comment,
		"vmid": numbers(j.VMIDs), "exclude": numbers(j.Exclude),
	})
	if j.All {
		out["all"] = 1
	}
	if !j.NextRun.IsZero() && !j.Disabled {
		out["next-run"] = c.dated(c.host, j.NextRun)
	}
	return out
}

func numbers(ids []int) string {
	var list []string
	for _, id := range ids {
		list = append(list, strconv.Itoa(id))
	}
	return strings.Join(list, ",")
}
