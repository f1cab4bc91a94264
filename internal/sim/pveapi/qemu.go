package pveapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

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
		{method: "DELETE", path: vm, params: []string{"purge", "destroy-unreferenced-disks", "skiplock"}, handle: destroyVM},
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
	return listed(c.VMs(), func(vm world.VM) object {
		if vm.Host != c.node() || !c.may(vmPath(vm.ID), "VM.Audit") {
			return nil
		}
		return vmEntry(vm)
	}), nil
}

// vmEntry returns the fields that lists and the status have in common.
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

// typed returns a value as the API shows it: some values are numbers, but not "memory" and "agent".
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
	list := listed(slices.Sorted(maps.Keys(keys)), func(key string) object {
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
		return entry
	})
	return append(list, object{"key": "digest", "value": vm.Digest}), nil
}

func agentInterfaces(c *call) (any, error) {
	found, err := c.AgentInterfaces(c.user, c.node(), c.vmid())
	if err != nil {
		return nil, err
	}
	address := func(a string) object {
		ip, bits, _ := strings.Cut(a, "/")
		kind := "ipv4"
		if strings.Contains(ip, ":") {
			kind = "ipv6"
		}
		return object{"ip-address": ip, "ip-address-type": kind, "prefix": atoi(bits)}
	}
	return object{"result": listed(found, func(i world.Interface) object {
		return object{"name": i.Name, "hardware-address": strings.ToLower(i.MAC), "ip-addresses": listed(i.Addresses, address)}
	})}, nil
}

// options returns the parameters for the VM's configuration.
func (c *call) options() map[string]string {
	set := maps.Clone(c.params)
	maps.DeleteFunc(set, func(name, _ string) bool { return !world.IsOption(name) })
	return set
}

func unsupported(what string) error {
	return &world.Error{Status: http.StatusNotImplemented, Message: what + " is not something this simulator can do"}
}

func createVM(c *call) (any, error) {
	for _, name := range []string{"archive", "ha-managed", "force", "unique", "live-restore"} {
		if c.params[name] != "" && c.params[name] != "0" {
			return nil, unsupported("create with " + name)
		}
	}
	return c.CreateVM(c.user, c.node(), world.CreateRequest{
		ID: c.vmid(), Config: c.options(), Pool: c.params["pool"], Start: c.flag("start"),
	})
}

func destroyVM(c *call) (any, error) {
	return c.DestroyVM(c.user, c.node(), world.DestroyRequest{
		ID: c.vmid(), Purge: c.flag("purge"), Unreferenced: c.flag("destroy-unreferenced-disks"),
	})
}

func (c *call) changeRequest() world.ChangeRequest {
	return world.ChangeRequest{
		ID: c.vmid(), Set: c.options(), Delete: list(c.params["delete"]), Revert: list(c.params["revert"]),
		Digest: c.params["digest"], Force: c.flag("force"),
	}
}

// list splits "scsi1,scsi2"; like Proxmox, also at blanks and semicolons.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
}

func setConfig(c *call) (any, error) { return nil, c.SetConfig(c.user, c.node(), c.changeRequest()) }

func setConfigTask(c *call) (any, error) { return c.SetConfigTask(c.user, c.node(), c.changeRequest()) }

func start(c *call) (any, error) { return c.Start(c.user, c.node(), c.vmid()) }
func stop(c *call) (any, error)  { return c.Stop(c.user, c.node(), c.vmid()) }
func reset(c *call) (any, error) { return c.Reset(c.user, c.node(), c.vmid()) }

func shutdown(c *call) (any, error) {
	return c.Shutdown(c.user, c.node(), world.ShutdownRequest{
		ID: c.vmid(), Timeout: time.Duration(c.number("timeout", 0)) * time.Second, ForceStop: c.flag("forceStop"),
	})
}

func moveDisk(c *call) (any, error) {
	if c.params["storage"] != "" && c.params["target-vmid"] != "" {
		return nil, badTarget("either set 'storage' or 'target-vmid', but not both")
	}
	if c.params["storage"] == "" && c.params["target-vmid"] == "" {
		return nil, badTarget("both 'storage' and 'target-vmid' missing, either needs to be set")
	}
	if c.params["target-vmid"] == "" {
		return nil, unsupported("moving a disk to another storage")
	}
	return c.MoveDisk(c.user, c.node(), world.MoveRequest{
		ID: c.vmid(), Disk: c.params["disk"], Target: c.number("target-vmid", 0), TargetDisk: c.params["target-disk"],
		Digest: c.params["digest"], TargetDigest: c.params["target-digest"],
	})
}

func badTarget(problem string) error {
	return &world.Error{
		Status: http.StatusBadRequest, Message: "Parameter verification failed.", Params: map[string]string{"storage": problem, "target-vmid": problem},
	}
}

func resize(c *call) (any, error) {
	return c.Resize(c.user, c.node(), world.ResizeRequest{
		ID: c.vmid(), Disk: c.params["disk"], Size: c.params["size"], Digest: c.params["digest"],
	})
}

// snapshots lists the snapshots and the VM's present state, "current".
func snapshots(c *call) (any, error) {
	vm, err := c.look()
	if err != nil {
		return nil, err
	}
	list := listed(vm.Snapshots, func(s world.Snapshot) object {
		return object{"name": s.Name, "description": s.Description, "snaptime": s.Time.Unix(), "vmstate": bit(s.Memory)}.
			with(map[string]string{"parent": s.Parent})
	})
	now := object{"name": "current", "description": "You are here!", "running": bit(vm.Running), "digest": vm.Digest}
	return append(list, now.with(map[string]string{"parent": vm.Config["parent"]})), nil
}

func snapshotConfig(c *call) (any, error) {
	if err := c.Check(c.user, vmPath(c.vmid()), "VM.Snapshot", "VM.Snapshot.Rollback", "VM.Audit"); err != nil {
		return nil, err
	}
	vm, err := c.LookupVM(c.node(), c.vmid())
	if err != nil {
		return nil, err
	}
	return snapshotOf(vm, c.vars["snapname"])
}

func snapshotOf(vm world.VM, name string) (any, error) {
	for _, s := range vm.Snapshots {
		if s.Name == name {
			return configObject(vm, s.Config), nil
		}
	}
	return nil, &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("snapshot '%s' does not exist", name)}
}

// cloneRoutes returns routes that recast itself does not use: they create the situations that recast must handle.
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

// allocDisk allocates a disk. Its size is in KiB, or has the suffix M or G.
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

func migrateRoutes() []route {
	const vm = "/nodes/{node}/qemu/{vmid}"
	return []route{
		{method: "GET", path: vm + "/migrate", params: []string{"target"}, handle: migratePreconditions},
		{
			method: "POST", path: vm + "/migrate", need: []string{"target"}, handle: migrate,
			params: []string{"target", "online", "force", "with-local-disks", "targetstorage", "migration_type", "migration_network", "bwlimit", "with-conntrack-state"},
		},
	}
}

func migrate(c *call) (any, error) {
	for _, name := range []string{"force", "migration_type", "migration_network"} {
		if c.params[name] != "" && c.params[name] != "0" && c.user != "root@pam" {
			return nil, world.BadParam(name, "Only root may use this option.")
		}
	}
	if c.params["targetstorage"] != "" {
		return nil, unsupported("migrate with targetstorage")
	}
	return c.Migrate(c.user, c.node(), world.MigrateRequest{
		ID: c.vmid(), Target: c.params["target"], Online: c.flag("online"), WithLocalDisks: c.flag("with-local-disks"),
	})
}

// migratePreconditions returns what Proxmox knows against a migration of a VM. For every host it lists the storages
// that the host lacks, and for every other host also the mapped devices that the host lacks.
func migratePreconditions(c *call) (any, error) {
	check, err := c.CheckMigration(c.user, c.node(), c.vmid())
	if err != nil {
		return nil, err
	}
	refused, mapped, disks := object{}, object{}, []object{}
	for _, host := range c.Hosts() {
		lacks := object{}
		if s := check.Storages[host]; len(s) > 0 {
			lacks["unavailable_storages"] = s
		}
		if m := check.Mappings[host]; len(m) > 0 && host != c.node() {
			lacks["unavailable-resources"] = m
		}
		if len(lacks) > 0 {
			refused[host] = lacks
		}
	}
	for key, name := range check.Mapped {
		mapped[key] = object{"name": name}
	}
	for _, d := range check.LocalDisks {
		disks = append(disks, object{
			"volid": d.Volid, "drivename": d.Key, "size": d.Size, "cdrom": bit(d.CDROM), "is_unused": bit(d.Unused), "is_attached": 1 - bit(d.Unused),
		})
	}
	out := object{
		"running": bit(check.Running), "allowed_nodes": orEmpty(check.Allowed), "not_allowed_nodes": refused, "local_disks": disks,
		"local_resources": orEmpty(check.Local), "mapped-resources": orEmpty(slices.Sorted(maps.Keys(check.Mapped))), "mapped-resource-info": mapped, "has-dbus-vmstate": 1,
	}
	if check.HAManaged {
		out["dependent-ha-resources"] = []string{}
	}
	return out, nil
}

// orEmpty returns a copy of a list that is shown as [] if the list is empty.
func orEmpty(list []string) []string { return append([]string{}, list...) }
