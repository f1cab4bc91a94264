package pveapi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
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

// updatePool adds VMs to a pool. No storage of the lab is in a pool.
func updatePool(c *call) (any, error) {
	if c.flag("delete") {
		return nil, unsupported("taking VMs out of a pool")
	}
	for _, id := range list(c.params["vms"]) {
		n, err := strconv.Atoi(id)
		if err != nil {
			return nil, world.BadParam("vms", "value '%s' does not look like a valid VM ID", id)
		}
		if err := c.JoinPool(c.user, n, c.params["poolid"], c.flag("allow-move")); err != nil {
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
	out.with(map[string]string{"pool": vm.Pool})
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
			"plugintype": s.Type, "content": strings.Join(s.Content, ","), "shared": bit(s.Shared),
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
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
}

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
		"type": s.Type, "content": strings.Join(s.Content, ","), "shared": bit(s.Shared), "active": bit(s.Active), "enabled": bit(s.Enabled),
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
	if want := c.params["content"]; want != "" && v.Content != want {
		return false
	}
	ofVM := v.Content != "iso" && v.Content != "vztmpl" && (v.Content != "images" || v.Owner == c.vmid())
	return c.params["vmid"] == "" || ofVM
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
	const pattern = `https?://.*`
	if address, ok := c.params["url"]; ok && !regexp.MustCompile(`^`+pattern+`$`).MatchString(address) {
		wrong["url"] = fmt.Sprintf("value does not match the regex pattern '%s'", pattern)
	}
	return world.BadParams(wrong)
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

// authenticate does the work of auth_handler of HTTPServer.pm: it accepts a ticket in the cookie, with a CSRF
// prevention token for changes, or else an API token. The permission to upload is checked before the file is read.
func (s *Server) authenticate(r *http.Request, q request) (user string, err error) {
	if q.open() {
		return "", nil
	}
	ticket := credential(r, "PVEAuthCookie")
	token := credential(r, "PVEAPIToken")
	switch {
	case ticket != "":
		if user, err = s.world.VerifyTicket(ticket); err != nil {
			return "", err
		}
	case token != "":
		i := strings.LastIndex(token, "=")
		if i < 0 {
			return "", unauthorized("no tokenid specified")
		}
		user = token[:i]
		if err := s.world.VerifyToken(user, token[i+1:]); err != nil {
			return "", err
		}
	default:
		return "", unauthorized("No ticket")
	}
	if q.isUpload() {
		return user, s.world.Check(user, "/storage/"+q.path[3], "Datastore.AllocateTemplate")
	}
	if ticket != "" && q.method != http.MethodGet {
		return user, s.world.VerifyCSRF(user, r.Header.Get("CSRFPreventionToken"))
	}
	return user, nil
}

func (q *request) open() bool {
	path := "/" + strings.Join(q.path, "/")
	return path == "/access/ticket" && (q.method == http.MethodGet || q.method == http.MethodPost)
}

func unauthorized(message string) error {
	return &world.Error{Status: http.StatusUnauthorized, Message: message}
}

// credential reads "name=value" or "name:value" from the cookie, or else from the Authorization header.
func credential(r *http.Request, name string) string {
	for _, header := range []string{"Cookie", "Authorization"} {
		if header == "Cookie" && name == "PVEAPIToken" {
			continue
		}
		for part := range strings.SplitSeq(r.Header.Get(header), ";") {
			part = strings.TrimSpace(part)
			value, ok := strings.CutPrefix(part, name)
			if !ok || value == "" || value[0] != '=' && value[0] != ':' {
				continue
			}
			if plain, err := url.PathUnescape(value[1:]); err == nil {
				return plain
			}
		}
	}
	return ""
}

func sessionRoutes() []route {
	return []route{
		{
			method: "POST", path: "/access/ticket", params: []string{"username", "password", "realm", "otp", "path", "privs", "tfa-challenge", "new-format"},
			need: []string{"username", "password"}, handle: login,
		},
		{method: "GET", path: "/access/ticket", handle: func(*call) (any, error) { return nil, nil }},
		{
			method: "PUT", path: "/access/password", params: []string{"userid", "password", "confirmation-password"},
			need: []string{"userid", "password"}, noToken: true, handle: changePassword,
		},
	}
}

func login(c *call) (any, error) {
	user := c.params["username"]
	if c.params["realm"] != "" {
		user += "@" + c.params["realm"]
	}
	t, err := c.Login(user, c.params["password"])
	if err != nil {
		return nil, err
	}
	out := object{"username": user, "ticket": t.Ticket, "CSRFPreventionToken": t.CSRF, "cap": c.capabilities(user)}
	if name := c.Cluster(); name != "" && c.Check(user, "/", "Sys.Audit") == nil {
		out["clustername"] = name
	}
	return out, nil
}

// capabilities does the work of compute_api_permission of RPCEnvironment.pm, for the web interface.
func (c *call) capabilities(user string) object {
	out := object{}
	for kind, path := range map[string]string{
		"vms": "/vms", "storage": "/storage", "access": "/access", "nodes": "/nodes", "dc": "/", "sdn": "/sdn", "mapping": "/mapping",
	} {
		held := object{}
		for privilege := range c.Permissions(user, path) {
			held[privilege] = 1
		}
		out[kind] = held
	}
	return out
}

func changePassword(c *call) (any, error) {
	user := c.params["userid"]
	if user != c.user && c.user != "root@pam" {
		if err := c.Check(c.user, "/access", "User.Modify"); err != nil {
			return nil, err
		}
	}
	c.SetPassword(user, c.params["password"])
	return nil, nil
}

func (c *call) refuseToken(r route) error {
	if !r.noToken || !strings.Contains(c.user, "!") {
		return nil
	}
	return &world.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("Permission check failed (URI '%s' not available with API token, need proper ticket.\n)", r.path)}
}

// late returns an error of auth_handler, which is answered after three seconds, with an empty body.
func late(err error) *earlyError {
	e, ok := errors.AsType[*world.Error](err)
	if !ok || !slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden}, e.Status) {
		return bare(http.StatusUnauthorized, err.Error())
	}
	return bare(e.Status, e.Message)
}

func accessRoutes() []route {
	return []route{
		{method: "GET", path: "/access/permissions", params: []string{"path", "userid"}, handle: permissions},
		{method: "GET", path: "/access/acl", handle: acl},
		{method: "GET", path: "/cluster/options", handle: options},
	}
}

// permissions maps each path to the caller's privileges; the values say whether a privilege propagates. With a path in
// the request, permissions returns only that path, even without privileges (pve-access-control, API2/AccessControl.pm).
func permissions(c *call) (any, error) {
	user := cmp.Or(c.params["userid"], c.user)
	owner, _, _ := strings.Cut(user, "!")
	if user != c.user && owner != c.user {
		if err := c.Check(c.user, "/access", "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	effective := map[string]map[string]bool{}
	if path := c.params["path"]; path != "" {
		effective[path] = c.Permissions(user, path)
	} else {
		effective = c.EffectivePermissions(user)
	}
	out := object{}
	for path, privileges := range effective {
		held := object{}
		for p, propagates := range privileges {
			held[p] = bit(propagates)
		}
		out[path] = held
	}
	return out, nil
}

func acl(c *call) (any, error) {
	all := c.may("/access", "Sys.Audit", "Permissions.Modify")
	return listed(c.ACLs(), func(a world.ACL) object {
		if !all && !c.may(a.Path, "Permissions.Modify") {
			return nil
		}
		kind := "user"
		if strings.Contains(a.Who, "!") {
			kind = "token"
		}
		return object{"path": a.Path, "ugid": a.Who, "roleid": a.Role, "propagate": bit(a.Propagate), "type": kind}
	}), nil
}

// options returns the datacenter's options. The tags that the caller may set are shown to everybody (pve-manager,
// API2/Cluster.pm, get_options).
func options(c *call) (any, error) {
	out := object{"allowed-tags": c.AllowedTags(c.user)}
	if registered := c.RegisteredTags(); len(registered) > 0 && c.may("/", "Sys.Audit") {
		out["registered-tags"] = registered
	}
	if crs := c.CRS(); crs != (world.CRS{}) && c.may("/", "Sys.Audit") {
		set := object{"ha-auto-rebalance": bit(crs.AutoRebalance), "ha-rebalance-on-start": bit(crs.OnStart)}
		if out["crs"] = set; crs.Scheduler != "" {
			set["ha"] = crs.Scheduler
		}
	}
	if a := c.TagAccess(); a.Allow != "" && c.may("/", "Sys.Audit") {
		out["user-tag-access"] = object{"user-allow": a.Allow, "user-allow-list": slices.AppendSeq([]string{}, slices.Values(a.List))}
	}
	return out, nil
}
