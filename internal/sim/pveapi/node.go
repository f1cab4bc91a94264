package pveapi

func nodeRoutes() []route {
	return []route{
		{method: "GET", path: "/nodes", handle: nodes},
		{method: "GET", path: "/nodes/{node}/version", handle: version},
		{method: "GET", path: "/nodes/{node}/status", handle: nodeStatus},
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
	if err := c.Check(c.user, "/nodes/"+c.node(), "Sys.Audit"); err != nil {
		return nil, err
	}
	return object{
		"pveversion": "pve-manager/9.2.11/14a22df3", "kversion": "Linux 6.17.2-1-pve", "uptime": 86400, "cpu": 0.05, "wait": 0, "idle": 0,
		"loadavg": []string{"0.50", "0.40", "0.30"},
		"cpuinfo": object{"cpus": hostCores, "cores": hostCores, "sockets": 1, "model": "Simulated CPU", "mhz": "3000.000", "hvm": "1", "user_hz": 100, "flags": ""},
		"memory":  object{"total": hostMemory, "used": hostMemory / 4, "free": hostMemory / 4 * 3},
		"swap":    object{"total": 0, "used": 0, "free": 0},
		"rootfs":  object{"total": hostDisk, "used": hostDisk / 10, "free": hostDisk / 10 * 9, "avail": hostDisk / 10 * 9},
		"ksm":     object{"shared": 0},
	}, nil
}
