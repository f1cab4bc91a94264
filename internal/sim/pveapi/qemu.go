package pveapi

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
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
	cores := max(1, atoi(vm.Value("cores"))) * max(1, atoi(vm.Value("sockets")))
	memory := cmp.Or(atoi(vm.Value("memory")), 512)
	out := object{
		"vmid": vm.ID, "name": cmp.Or(vm.Value("name"), fmt.Sprintf("VM %d", vm.ID)), "status": "stopped", "cpus": cores, "maxmem": memory << 20, "maxdisk": 0,
		"cpu": 0, "mem": 0, "disk": 0, "netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0, "uptime": 0,
	}
	if vm.Running {
		out["status"], out["uptime"] = "running", uptimeOf(vm)
		out["pid"], out["mem"] = 100000+vm.ID, memory<<19
	}
	if vm.Config["template"] == "1" {
		out["template"] = 1
	}
	return out.with(map[string]string{"tags": vm.Config["tags"], "lock": vm.Config["lock"]})
}

func atoi(s string) int { return world.NumberOr(s, 0) }

func current(c *call) (any, error) {
	vm, err := c.look()
	if err != nil {
		return nil, err
	}
	out := vmEntry(vm)
	out["qmpstatus"], out["ha"] = vm.QMP, object{"managed": bit(vm.HA.Managed)}
	if vm.HA.Managed {
		out["ha"].(object).with(map[string]string{"group": vm.HA.Group, "state": vm.HA.State})
	}
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
	switch storage, vm := c.params["storage"] != "", c.params["target-vmid"] != ""; {
	case storage && vm:
		return nil, badTarget("either set 'storage' or 'target-vmid', but not both")
	case !storage && !vm:
		return nil, badTarget("both 'storage' and 'target-vmid' missing, either needs to be set")
	case storage:
		return nil, unsupported("moving a disk to another storage")
	}
	return c.MoveDisk(c.user, c.node(), world.MoveRequest{
		ID: c.vmid(), Disk: c.params["disk"], Target: c.number("target-vmid", 0), TargetDisk: c.params["target-disk"],
		Digest: c.params["digest"], TargetDigest: c.params["target-digest"],
	})
}

func badTarget(problem string) error {
	return world.BadParams(map[string]string{"storage": problem, "target-vmid": problem})
}

func resize(c *call) (any, error) {
	return c.Resize(c.user, c.node(), world.ResizeRequest{
		ID: c.vmid(), Disk: c.params["disk"], Size: c.params["size"], Digest: c.params["digest"],
	})
}

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

func haRoutes() []route {
	options := []string{"comment", "failback", "group", "max_relocate", "max_restart", "state"}
	see, change := []demand{{"/", []string{"Sys.Audit"}}}, []demand{{"/", []string{"Sys.Console"}}}
	return []route{
		{method: "GET", path: "/cluster/ha/resources", permit: see, params: []string{"type"}, handle: haResources},
		{
			method: "POST", path: "/cluster/ha/resources", permit: change, params: append([]string{"sid", "type"}, options...),
			need: []string{"sid"}, handle: createHA,
		},
		{method: "GET", path: "/cluster/ha/resources/{sid}", permit: see, handle: haResource},
		{method: "PUT", path: "/cluster/ha/resources/{sid}", permit: change, params: append([]string{"delete", "digest"}, options...), handle: changeHA},
		{method: "DELETE", path: "/cluster/ha/resources/{sid}", permit: change, params: []string{"purge"}, handle: deleteHA},
		{method: "GET", path: "/cluster/ha/rules", permit: see, params: []string{"resource", "type"}, handle: haRules},
		{method: "GET", path: "/cluster/ha/status/current", permit: see, handle: haStatus},
		{method: "POST", path: "/cluster/ha/status/disarm-ha", permit: change, params: []string{"resource-mode"}, need: []string{"resource-mode"}, handle: disarmHA},
		{method: "POST", path: "/cluster/ha/status/arm-ha", permit: change, handle: disarmHA},
	}
}

func haResources(c *call) (any, error) {
	digest := c.HADigest()
	return listed(c.HA(), func(r world.HAResource) object {
		if kind, _, _ := strings.Cut(r.SID, ":"); c.params["type"] != "" && c.params["type"] != kind {
			return nil
		}
		return haEntry(r, digest)
	}), nil
}

func haResource(c *call) (any, error) {
	for _, r := range c.HA() {
		if r.SID == c.vars["sid"] || r.SID == "vm:"+c.vars["sid"] {
			return haEntry(r, c.HADigest()), nil
		}
	}
	return nil, &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("no such resource '%s'", c.vars["sid"])}
}

// haEntry returns a resource as it is configured, without unset properties.
func haEntry(r world.HAResource, digest string) object {
	out := object{"sid": r.SID, "type": "vm", "digest": digest}.with(map[string]string{"state": r.State, "group": r.Group})
	addHAOptions(out, r.Options)
	return out
}

func addHAOptions(out object, options map[string]string) {
	for name, value := range options {
		out[name] = value
		if n, err := strconv.Atoi(value); err == nil && name != "comment" {
			out[name] = n
		}
	}
}

func (c *call) haOptions() map[string]string {
	set := maps.Clone(c.params)
	for _, name := range []string{"sid", "type", "delete", "digest"} {
		delete(set, name)
	}
	return set
}

func createHA(c *call) (any, error) { return nil, c.CreateHA(c.user, c.params["sid"], c.haOptions()) }

func changeHA(c *call) (any, error) {
	return nil, c.ChangeHA(c.user, c.vars["sid"], c.haOptions(), list(c.params["delete"]), c.params["digest"])
}

// deleteHA purges rules unless told otherwise.
func deleteHA(c *call) (any, error) {
	_, given := c.params["purge"]
	return nil, c.DeleteHA(c.user, c.vars["sid"], !given || c.flag("purge"))
}

func haRules(c *call) (any, error) {
	list := []object{}
	for i, r := range c.HARules() {
		wrongType := c.params["type"] != "" && r.Type != c.params["type"]
		wrongResource := c.params["resource"] != "" && !slices.Contains(r.Resources, c.params["resource"])
		if wrongType || wrongResource {
			continue
		}
		entry := object{"rule": r.ID, "type": r.Type, "resources": strings.Join(r.Resources, ","), "order": i + 1}
		addHAOptions(entry, r.Options)
		list = append(list, entry)
	}
	return list, nil
}

// haStatus lists the quorum, the manager, every host's manager and every resource.
func haStatus(c *call) (any, error) {
	quorum := object{"id": "quorum", "type": "quorum", "node": c.host, "status": "OK", "quorate": bit(c.Quorate())}
	if !c.Quorate() {
		quorum["status"] = fmt.Sprintf("No quorum on node '%s'!", c.host)
	}
	services, master, now := c.HAServices(), c.Hosts()[0], c.Clock(c.host)
	fencing := object{"id": "fencing", "type": "fencing", "node": master, "armed-state": "armed", "status": "armed (CRM watchdog active)"}
	if mode := c.HADisarmed(); mode != "" {
		fencing["armed-state"], fencing["resource_mode"] = "disarmed", mode
		fencing["status"] = fmt.Sprintf("disarmed, resource mode: %s (CRM watchdog released)", mode)
	}
	list := []object{quorum, fencing}
	if len(services) == 0 {
		fencing["armed-state"], fencing["status"] = "standby", "standby (CRM watchdog standby)"
		return list, nil // there is no manager yet
	}
	list = append(list, object{
		"id": "master", "type": "master", "node": master, "timestamp": now.Unix(),
		"status": fmt.Sprintf("%s (active, %s)", master, now.Format(time.ANSIC)),
	})
	for _, host := range c.Hosts() {
		state := "active"
		if c.HostDown(host) {
			state = "old timestamp - dead?"
		}
		list = append(list, object{
			"id": "lrm:" + host, "type": "lrm", "node": host, "timestamp": now.Unix(), "status": fmt.Sprintf("%s (%s, %s)", host, state, now.Format(time.ANSIC)),
		})
	}
	for _, r := range services {
		list = append(list, haService(c, r))
	}
	return list, nil
}

// disarmHA disarms HA with a resource mode, and arms it without one.
func disarmHA(c *call) (any, error) { return nil, c.DisarmHA(c.user, c.params["resource-mode"]) }

func haService(c *call, r world.HAResource) object {
	out := object{"id": "service:" + r.SID, "type": "service", "sid": r.SID}.with(map[string]string{"crm_state": r.Manager})
	requested := cmp.Or(r.State, "started")
	if !r.Leaving {
		out["request_state"], out["max_restart"], out["max_relocate"] = requested, 1, 1
		addHAOptions(out, r.Options)
	}
	running := false
	for _, vm := range c.VMs() {
		if "vm:"+strconv.Itoa(vm.ID) == r.SID {
			out["node"], running = vm.Host, vm.Running
		}
	}
	state := verboseHA(requested, r.Manager, running)
	if r.Leaving {
		state = "deleting"
	}
	if c.HADisarmed() == "ignore" {
		state = "ignore"
	}
	out["state"], out["status"] = state, fmt.Sprintf("%s (%v, %s)", r.SID, out["node"], state)
	return out
}

// verboseHA does the work of get_verbose_service_state of pve-ha-manager's Tools.pm.
func verboseHA(requested, manager string, running bool) string {
	switch {
	case requested == "ignored":
		return "ignored"
	case manager == "":
		return "queued"
	case manager == "stopped" && requested == "started", manager == "started" && !running:
		return "starting"
	case manager == "stopped" && requested == "disabled":
		return "disabled"
	case manager == "started" && requested != "started":
		return "stopping"
	case manager == "error" && requested == "disabled":
		return "clearing error flag"
	}
	return manager
}

// The properties of a rule and of the options (pve-firewall, PVE/Firewall.pm,
// rule_properties and vm_option_properties).
var (
	ruleFields      = []string{"action", "comment", "dest", "dport", "enable", "icmp-type", "iface", "log", "macro", "proto", "source", "sport", "type"}
	firewallOptions = []string{"dhcp", "enable", "ipfilter", "log_level_in", "log_level_out", "macfilter", "ndp", "policy_in", "policy_out", "radv"}
)

func firewallRoutes() []route {
	const at = "/nodes/{node}/qemu/{vmid}/firewall"
	see, change := []demand{{"/vms/{vmid}", []string{"VM.Audit"}}}, []demand{{"/vms/{vmid}", []string{"VM.Config.Network"}}}
	return []route{
		{method: "GET", path: at + "/rules", permit: see, handle: seeFirewall(rulesOf)},
		{method: "POST", path: at + "/rules", permit: change, params: append([]string{"digest", "pos"}, ruleFields...), need: []string{"action", "type"}, handle: changeFirewall(addRule)},
		{method: "DELETE", path: at + "/rules/{pos}", permit: change, params: []string{"digest"}, handle: changeFirewall(deleteRule)},
		{method: "GET", path: at + "/options", permit: see, handle: seeFirewall(optionsOf)},
		{method: "PUT", path: at + "/options", permit: change, params: append([]string{"delete", "digest"}, firewallOptions...), handle: changeFirewall(setFirewallOptions)},
		{method: "GET", path: at + "/aliases", permit: see, handle: seeFirewall(aliasesOf)},
		{method: "POST", path: at + "/aliases", permit: change, params: []string{"cidr", "comment", "name"}, need: []string{"cidr", "name"}, handle: changeFirewall(addAlias)},
		{method: "DELETE", path: at + "/aliases/{name}", permit: change, params: []string{"digest"}, handle: changeFirewall(deleteAlias)},
		{method: "GET", path: at + "/ipset", permit: see, handle: seeFirewall(setsOf)},
		{method: "POST", path: at + "/ipset", permit: change, params: []string{"comment", "digest", "name"}, need: []string{"name"}, handle: changeFirewall(addSet)},
		{method: "GET", path: at + "/ipset/{name}", permit: see, handle: seeFirewall(membersOf)},
		{method: "POST", path: at + "/ipset/{name}", permit: change, params: []string{"cidr", "comment", "nomatch"}, need: []string{"cidr"}, handle: changeFirewall(addMember)},
		{method: "DELETE", path: at + "/ipset/{name}", permit: change, params: []string{"force"}, handle: changeFirewall(deleteSet)},
	}
}

func seeFirewall(show func(*call, world.Firewall) any) func(*call) (any, error) {
	return func(c *call) (any, error) { return show(c, c.FirewallOf(c.vmid())), nil }
}

func changeFirewall(change func(*call, *world.Firewall) error) func(*call) (any, error) {
	return func(c *call) (any, error) {
		return nil, c.ChangeFirewall(c.vmid(), func(f *world.Firewall) error { return change(c, f) })
	}
}

// withDigest adds to each entry the checksum of the list (PVE/Firewall.pm, copy_list_with_digest).
func withDigest(list []object) []object {
	h := sha1.New()
	for _, entry := range list {
		for _, key := range slices.Sorted(maps.Keys(entry)) {
			fmt.Fprintf(h, "%s:%v\n", key, entry[key])
		}
	}
	for _, entry := range list {
		entry["digest"] = hex.EncodeToString(h.Sum(nil))
	}
	return list
}

// unchanged does the work of assert_if_modified (pve-common, PVE/Tools.pm): without a checksum in the request it
// succeeds.
func (c *call) unchanged(list []object) error {
	if want := c.params["digest"]; want != "" && (len(list) == 0 || list[0]["digest"] != want) {
		return &world.Error{Status: http.StatusInternalServerError, Message: "detected modified configuration - file changed by other user? Try again."}
	}
	return nil
}

// rules returns the rules with their checksum. The checksum does not depend on the positions of the rules.
func rules(f world.Firewall) []object {
	return withDigest(listed(f.Rules, func(r world.FirewallRule) object {
		entry := object{"enable": 0}
		for name, value := range r {
			if entry[name] = value; name == "enable" {
				entry[name] = atoi(value)
			}
		}
		return entry
	}))
}

// rulesOf returns the rules, each with its position; an invalid rule also has its errors (parse_fw_rule).
func rulesOf(_ *call, f world.Firewall) any {
	list := rules(f)
	for i, entry := range list {
		entry["pos"] = i
		if wrong, is := errors.AsType[*world.Error](verifyRule(f.Rules[i], f)); is {
			entry["errors"] = wrong.Params
		}
	}
	return list
}

// addRule inserts a rule before all others, whatever the position in the request
// (PVE/API2/Firewall/Rules.pm, create_rule).
func addRule(c *call, f *world.Firewall) error {
	r := world.FirewallRule{"enable": "0"}
	for _, name := range ruleFields {
		if value := c.params[name]; value != "" && value != "-" {
			r[name] = value
		}
	}
	if err := verifyRule(r, *f); err != nil {
		return err
	}
	f.Rules = slices.Insert(f.Rules, 0, r)
	return nil
}

func deleteRule(c *call, f *world.Firewall) error {
	if err := c.unchanged(rules(*f)); err != nil {
		return err
	}
	at, err := strconv.Atoi(c.vars["pos"])
	if err != nil || at >= len(f.Rules) {
		return &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("no rule at position %s", c.vars["pos"])}
	}
	f.Rules = slices.Delete(f.Rules, at, at+1)
	return nil
}

func optionsOf(_ *call, f world.Firewall) any {
	out := object{}
	for name, value := range f.Options {
		switch out[name] = value; value {
		case "0", "1":
			out[name] = atoi(value)
		}
	}
	return withDigest([]object{out})[0]
}

func setFirewallOptions(c *call, f *world.Firewall) error {
	if err := c.unchanged([]object{optionsOf(c, *f).(object)}); err != nil {
		return err
	}
	if f.Options == nil {
		f.Options = map[string]string{}
	}
	for _, name := range list(c.params["delete"]) {
		if !slices.Contains(firewallOptions, name) {
			return world.BadParam("delete", "no such option '%s'", name)
		}
		delete(f.Options, name)
	}
	for _, name := range firewallOptions {
		if value, is := c.params[name]; is {
			f.Options[name] = value
		}
	}
	return nil
}

func aliasesOf(_ *call, f world.Firewall) any {
	return withDigest(listed(f.Aliases, func(a world.FirewallAlias) object {
		return object{"name": a.Name, "cidr": a.CIDR}.with(map[string]string{"comment": a.Comment})
	}))
}

func addAlias(c *call, f *world.Firewall) error {
	name := c.params["name"]
	if f.Alias(name) >= 0 {
		return world.BadParam("name", "alias '%s' already exists", name)
	}
	f.Aliases = append(f.Aliases, world.FirewallAlias{Name: name, CIDR: c.params["cidr"], Comment: c.params["comment"]})
	slices.SortFunc(f.Aliases, func(a, b world.FirewallAlias) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func deleteAlias(c *call, f *world.Firewall) error {
	if err := c.unchanged(aliasesOf(c, *f).([]object)); err != nil {
		return err
	}
	if i := f.Alias(c.vars["name"]); i >= 0 {
		f.Aliases = slices.Delete(f.Aliases, i, i+1)
	}
	return nil
}

func setsOf(_ *call, f world.Firewall) any {
	return withDigest(listed(f.IPSets, func(s world.FirewallSet) object {
		return object{"name": s.Name}.with(map[string]string{"comment": s.Comment})
	}))
}

func addSet(c *call, f *world.Firewall) error {
	name := c.params["name"]
	if f.Set(name) >= 0 {
		return world.BadParam("name", "IPSet '%s' already exists", name)
	}
	f.IPSets = append(f.IPSets, world.FirewallSet{Name: name, Comment: c.params["comment"]})
	slices.SortFunc(f.IPSets, func(a, b world.FirewallSet) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// deleteSet deletes a set; as in save_ipset, the set need not exist.
func deleteSet(c *call, f *world.Firewall) error {
	i := f.Set(c.vars["name"])
	switch {
	case i < 0:
		return nil
	case len(f.IPSets[i].Members) > 0 && !c.flag("force"):
		return &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("IPSet '%s' is not empty", c.vars["name"])}
	}
	f.IPSets = slices.Delete(f.IPSets, i, i+1)
	return nil
}

func membersOf(c *call, f world.Firewall) any {
	i := f.Set(c.vars["name"])
	if i < 0 {
		return []object{}
	}
	return withDigest(listed(f.IPSets[i].Members, func(m world.FirewallMember) object {
		entry := object{"cidr": m.CIDR}.with(map[string]string{"comment": m.Comment})
		if m.NoMatch {
			entry["nomatch"] = 1
		}
		return entry
	}))
}

// addMember adds a member to a set, and creates a missing set (PVE/API2/Firewall/IPSet.pm, save_ipset). Members are
// sorted by address.
func addMember(c *call, f *world.Firewall) error {
	m := world.FirewallMember{CIDR: c.params["cidr"], Comment: c.params["comment"], NoMatch: c.flag("nomatch")}
	if err := f.Resolves("cidr", m.CIDR); err != nil {
		return err
	}
	i := f.Set(c.vars["name"])
	if i < 0 {
		f.IPSets, i = append(f.IPSets, world.FirewallSet{Name: c.vars["name"]}), len(f.IPSets)
	}
	for _, other := range f.IPSets[i].Members {
		if other.CIDR == m.CIDR {
			return world.BadParam("cidr", "address '%s' already exists", m.CIDR)
		}
	}
	f.IPSets[i].Members = append(f.IPSets[i].Members, m)
	slices.SortFunc(f.IPSets[i].Members, func(a, b world.FirewallMember) int { return cmp.Compare(a.CIDR, b.CIDR) })
	return nil
}

var (
	firewallGroup = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9\-_]+$`)
	firewallIface = regexp.MustCompile(`^net\d+$`)
)

// verifyRule does the work of verify_rule of PVE/Firewall.pm for a VM's rule, without macros and the formats of
// addresses and ports.
func verifyRule(r world.FirewallRule, f world.Firewall) error {
	kind, action, proto := r["type"], r["action"], r["proto"]
	switch {
	case kind == "in" || kind == "out":
		if !slices.Contains([]string{"ACCEPT", "DROP", "REJECT"}, action) {
			return world.BadParam("action", "unknown action '%s'", action)
		}
	case kind != "group":
		return world.BadParam("type", "invalid rule type '%s' for rule_env 'vm'", kind)
	case !firewallGroup.MatchString(action):
		return world.BadParam("action", "invalid characters in security group name")
	}
	if iface := r["iface"]; iface != "" && !firewallIface.MatchString(iface) {
		return world.BadParam("iface", `value does not match the regex pattern 'net\d+'`)
	}
	for _, port := range []string{"dport", "sport"} {
		if r[port] != "" && proto == "" {
			return world.BadParam("proto", "missing property - '%s' requires this property", port)
		}
	}
	for _, end := range []string{"source", "dest"} {
		if err := f.Resolves(end, r[end]); err != nil {
			return err
		}
	}
	return nil
}
