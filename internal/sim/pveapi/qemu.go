package pveapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

func qemuRoutes() []route {
	const vm = "/nodes/{node}/qemu/{vmid}"
	change := []string{"digest", "delete", "revert", "force", "skiplock"}
	return []route{
		{method: "GET", path: "/nodes/{node}/qemu", params: []string{"full"}, handle: vms},
		{
			method: "POST", path: "/nodes/{node}/qemu", options: true, need: []string{"vmid"}, handle: createVM,
			params: []string{"vmid", "pool", "start", "force", "storage", "unique", "bwlimit", "live-restore", "archive", "ha-managed", "import-working-storage"},
		},
		{
			method: "DELETE", path: vm, params: []string{"purge", "destroy-unreferenced-disks", "skiplock"}, handle: destroyVM,
		},
		{method: "GET", path: vm + "/config", params: []string{"current", "snapshot"}, handle: config},
		{method: "PUT", path: vm + "/config", params: change, options: true, handle: setConfig},
		{method: "POST", path: vm + "/config", params: append(change, "background_delay", "import-working-storage"), options: true, handle: setConfigTask},
		{method: "GET", path: vm + "/pending", handle: pending},
		{method: "GET", path: vm + "/status/current", handle: current},
		{method: "POST", path: vm + "/status/start", params: []string{"skiplock", "timeout", "machine", "force-cpu"}, handle: start},
		{method: "POST", path: vm + "/status/stop", params: []string{"skiplock", "timeout", "keepActive", "overrule-shutdown"}, handle: stop},
		{method: "POST", path: vm + "/status/shutdown", params: []string{"skiplock", "timeout", "keepActive", "forceStop"}, handle: shutdown},
		{method: "POST", path: vm + "/status/reset", params: []string{"skiplock"}, handle: reset},
		{
			method: "POST", path: vm + "/move_disk", need: []string{"disk"}, handle: moveDisk,
			params: []string{"disk", "target-vmid", "target-disk", "digest", "target-digest", "storage", "delete", "format", "bwlimit"},
		},
		{method: "PUT", path: vm + "/resize", params: []string{"disk", "size", "digest", "skiplock"}, need: []string{"disk", "size"}, handle: resize},
		{method: "GET", path: vm + "/agent/network-get-interfaces", handle: agentInterfaces},
		{method: "GET", path: vm + "/snapshot", handle: snapshots},
		{method: "GET", path: vm + "/snapshot/{snapname}/config", handle: snapshotConfig},
	}
}

func vmPath(id int) string { return fmt.Sprintf("/vms/%d", id) }

// look checks the privilege to see the path's VM, then that it exists.
func (c *call) look() (world.VM, error) {
	if err := c.Check(c.user, vmPath(c.vmid()), "VM.Audit"); err != nil {
		return world.VM{}, err
	}
	return c.LookupVM(c.node(), c.vmid())
}

func vms(c *call) (any, error) {
	list := []object{}
	for _, vm := range c.VMs() {
		if vm.Host == c.node() && c.may(vmPath(vm.ID), "VM.Audit") {
			list = append(list, vmEntry(vm))
		}
	}
	return list, nil
}

// vmEntry is what lists and the status have in common.
func vmEntry(vm world.VM) object {
	name := vm.Value("name")
	cores := max(1, atoi(vm.Value("cores"))) * max(1, atoi(vm.Value("sockets")))
	memory := atoi(vm.Value("memory"))
	if memory == 0 {
		memory = 512
	}
	out := object{
		"vmid": vm.ID, "name": name, "status": "stopped", "cpus": cores, "maxmem": memory << 20, "maxdisk": 0,
		"cpu": 0, "mem": 0, "disk": 0, "netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0, "uptime": 0,
	}
	if name == "" {
		out["name"] = fmt.Sprintf("VM %d", vm.ID)
	}
	if vm.Running {
		out["status"], out["uptime"] = "running", uptimeOf(vm)
		out["pid"], out["mem"] = 100000+vm.ID, memory<<19
	}
	for _, key := range []string{"tags", "lock"} {
		if vm.Config[key] != "" {
			out[key] = vm.Config[key]
		}
	}
	if vm.Config["template"] == "1" {
		out["template"] = 1
	}
	return out
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

func current(c *call) (any, error) {
	vm, err := c.look()
	if err != nil {
		return nil, err
	}
	out := vmEntry(vm)
	out["qmpstatus"], out["ha"] = vm.QMP, haOf(vm.HA)
	if agent := vm.Config["agent"]; agent == "1" || strings.HasPrefix(agent, "1,") || strings.Contains(agent, "enabled=1") {
		out["agent"] = 1
	}
	if vm.Running {
		out["running-qemu"], out["running-machine"] = "10.1.2", "pc-i440fx-10.1+pve0"
	}
	return out, nil
}

func config(c *call) (any, error) {
	vm, err := c.look()
	if err != nil {
		return nil, err
	}
	values := vm.Merged()
	switch name, asked := c.params["snapshot"]; {
	case asked && c.flag("current"):
		return nil, world.BadParam("snapshot", "cannot use 'snapshot' parameter with 'current'")
	case asked:
		return snapshotOf(vm, name)
	case c.flag("current"):
		values = vm.Config
	}
	return configObject(vm, values), nil
}

func configObject(vm world.VM, values map[string]string) object {
	out := object{"digest": vm.Digest}
	for key, value := range values {
		out[key] = typed(key, value)
	}
	if values["cipassword"] != "" {
		out["cipassword"] = masked
	}
	return out
}

// masked is shown in place of a password (vm_config in Qemu.pm).
const masked = "**********"

// typed is a value as the API shows it: some are numbers, but not "memory" and "agent".
func typed(key, value string) any {
	if world.IsNumeric(key) {
		return json.Number(value)
	}
	return value
}

func pending(c *call) (any, error) {
	vm, err := c.look()
	if err != nil {
		return nil, err
	}
	keys := maps.Clone(vm.Config)
	maps.Copy(keys, vm.Pending)
	for key := range vm.PendingDelete {
		keys[key] = ""
	}
	list := []object{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		entry := object{"key": key}
		if value, ok := vm.Config[key]; ok {
			entry["value"] = typed(key, value)
		}
		if value, ok := vm.Pending[key]; ok {
			entry["pending"] = typed(key, value)
		}
		if _, set := vm.Config[key]; set && key == "cipassword" {
			entry["value"] = masked
		}
		if force, ok := vm.PendingDelete[key]; ok {
			entry["delete"] = 1 + bit(force)
		}
		list = append(list, entry)
	}
	return append(list, object{"key": "digest", "value": vm.Digest}), nil
}

func agentInterfaces(c *call) (any, error) {
	found, err := c.AgentInterfaces(c.user, c.node(), c.vmid())
	if err != nil {
		return nil, err
	}
	list := []object{}
	for _, i := range found {
		addresses := []object{}
		for _, a := range i.Addresses {
			ip, bits, _ := strings.Cut(a, "/")
			kind := "ipv4"
			if strings.Contains(ip, ":") {
				kind = "ipv6"
			}
			addresses = append(addresses, object{"ip-address": ip, "ip-address-type": kind, "prefix": atoi(bits)})
		}
		list = append(list, object{"name": i.Name, "hardware-address": strings.ToLower(i.MAC), "ip-addresses": addresses})
	}
	return object{"result": list}, nil
}
