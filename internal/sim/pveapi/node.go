package pveapi

import (
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

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
	list := []object{}
	for _, host := range c.Hosts() {
		entry := hostEntry(c, host)
		if !c.may("/nodes/"+host, "Sys.Audit") {
			entry = object{"id": entry["id"], "type": "node", "node": host, "status": entry["status"], "level": ""}
		}
		list = append(list, entry)
	}
	return list, nil
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

// nodeTime is the time on the node's clock; every node is in UTC.
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
	list := []object{}
	for _, p := range c.ThinPools(c.node()) {
		list = append(list, object{
			"lv": p.Name, "vg": p.VolumeGroup, "lv_size": p.Size, "used": p.Used, "metadata_size": p.MetadataSize, "metadata_used": p.MetadataUsed,
		})
	}
	return list, nil
}
