package terraform

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// Outage is a change in a plan that takes a machine down and removes no data.
type Outage struct {
	VM    VM     // for a machine of the Talos provider only Address and Type
	Node  string // address or name of the machine, for a resource of the Talos provider; "": known after apply only
	New   bool   // the resource is new, and the plan also makes VMs: see Document.Makes
	How   Down
	Why   []string // the attributes, with their changes
	paths []string // the attributes
}

// Down is how a machine goes down.
type Down string

// The ways in which a plan takes machines down.
const (
	Stops      Down = "stops"
	Reboots    Down = "reboots"
	Upgrades   Down = "upgrades"
	MayReboot  Down = "may reboot"
	unknownYet      = "known after apply only"
)

// Prevents returns the block that keeps Terraform from making the change.
func (o Outage) Prevents() string { return o.VM.Lifecycle(o.paths...) }

// power describes how a provider's update of a VM in place takes the VM down.
type power struct {
	// stops are the attributes that say whether the VM runs. Each has the values at which the VM does not run.
	stops map[string][]any
	// reboots is the attribute that keeps the provider from rebooting if it is false; a missing attribute counts as true.
	// "": this resource never reboots a VM.
	reboots string
	// live are the attributes whose change does not reboot the VM. A change of any other attribute does, even if
	// recast does not know the attribute.
	live []string
	// judge says for some attributes whether this change of the attribute reboots the VM.
	judge map[string]func(c change) bool
}

type change struct {
	kind          string
	before, after values
	unknown       map[string]any
}

// powers has a row for each resource that is a VM. The rows follow the Update functions of the providers:
// proxmoxtf/resource/vm/vm.go and fwprovider/nodes of bpg/proxmox, proxmox/resource_vm_qemu.go of Telmate/proxmox.
var powers = map[string]power{
	"proxmox_virtual_environment_vm": {
		stops:   map[string][]any{"started": {false}, "template": {true}},
		reboots: "reboot_after_update",
		live: []string{
			"id", "vm_id", "node_name", "name", "description", "on_boot", "tags", "hotplug", "protection", "network_device", "smbios", "startup",
			"hook_script_file_id", "pool_id", "cdrom", "migrate", "reboot", "reboot_after_update", "stop_on_destroy", "purge_on_destroy",
			"delete_unreferenced_disks_on_destroy", "timeout_clone", "timeout_create", "timeout_migrate", "timeout_reboot", "timeout_shutdown_vm",
			"timeout_start_vm", "timeout_stop_vm", "timeout_move_disk", "ipv4_addresses", "ipv6_addresses", "mac_addresses", "network_interface_names",
		},
		judge: map[string]func(change) bool{"disk": change.disksReboot, "memory": change.memoryReboots, "cpu": change.cpuReboots},
	},
	"proxmox_virtual_environment_vm2":        {stops: map[string][]any{"template": {true}}},
	"proxmox_vm":                             {stops: map[string][]any{"template": {true}}},
	"proxmox_virtual_environment_cloned_vm":  {stops: map[string][]any{"started": {false}}},
	"proxmox_cloned_vm":                      {stops: map[string][]any{"started": {false}}},
	"proxmox_virtual_environment_haresource": {stops: map[string][]any{"state": {"stopped", "disabled"}}},
	"proxmox_haresource":                     {stops: map[string][]any{"state": {"stopped", "disabled"}}},
	"proxmox_vm_qemu": {
		stops:   map[string][]any{"power_state": {"stopped"}, "vm_state": {"stopped"}, "hastate": {"stopped", "disabled"}},
		reboots: "automatic_reboot",
		live: []string{
			"id", "vmid", "target_node", "target_nodes", "current_node", "name", "desc", "description", "tags", "onboot", "start_at_node_boot", "startup",
			"startup_shutdown", "pool", "protection", "hagroup", "automatic_reboot", "automatic_reboot_severity", "reboot_required", "agent_timeout",
			"skip_ipv4", "skip_ipv6", "define_connection_info", "default_ipv4_address", "default_ipv6_address", "ssh_host", "ssh_port", "ssh_user",
			"ssh_private_key", "ssh_forward_ip", "linked_vmid", "unused_disk", "clone_wait", "additional_wait", "full_clone", "oncreate",
			"force_create", "force_recreate_on_change_of", "timeouts", "hotplug",
		},
	},
}

// Outages returns the outages of a plan, in its order: of VMs that the plan changes in place, and of machines that
// the Talos provider upgrades or configures.
func (d *Document) Outages() ([]Outage, error) {
	var out []Outage
	for _, c := range d.changes {
		if c.Mode != tfjson.ManagedResourceMode || c.Change == nil {
			continue
		}
		created, replaced := c.Change.Actions.Create(), c.Change.Actions.Replace()
		if (created || replaced) && isVM(c.Type) || !created && !replaced && !c.Change.Actions.Update() {
			continue // a replaced VM is a threat, not an outage
		}
		ch := change{kind: c.Type}
		before, _ := c.Change.Before.(map[string]any)
		after, _ := c.Change.After.(map[string]any)
		ch.before, ch.after = before, after
		ch.unknown, _ = c.Change.AfterUnknown.(map[string]any)
		var o Outage
		row, known := powers[c.Type]
		switch {
		case strings.HasPrefix(c.Type, "talos_machine"):
			o = ch.ofMachine()
			o.VM, o.New = VM{Address: c.Address, Type: c.Type}, created && d.unknown(o.Node)
		case !known:
			continue
		default:
			o = ch.ofVM(row)
			vm, err := ch.vm(c.Address)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.File, err)
			}
			o.VM = vm
		}
		if o.How != "" {
			out = append(out, o)
		}
	}
	return out, nil
}

// unknown says whether Terraform does not have the machine yet, and the plan makes a VM that may be the machine's.
func (d *Document) unknown(node string) bool {
	return !slices.ContainsFunc(d.VMs, Machine{Node: node}.Of) &&
		!slices.ContainsFunc(d.Machines, func(m Machine) bool { return node != "" && m.Node == node }) && d.Makes(0, "")
}

// Makes says whether the plan makes the VM with that number, or, if the number is known after apply only, with that
// name. Nothing runs on such a VM yet. vmid 0 stands for any VM.
func (d *Document) Makes(vmid int, name string) bool {
	return slices.ContainsFunc(d.changes, func(c *tfjson.ResourceChange) bool {
		if !isVM(c.Type) || c.Change == nil || !c.Change.Actions.Create() {
			return false
		}
		after, _ := c.Change.After.(map[string]any)
		vm := VM{Type: c.Type}
		vm.fill(after)
		made := values(after).text("name")
		return vmid == 0 || vm.VMID == vmid || vm.VMID == 0 && (made == "" || made == name)
	})
}

func (c change) vm(address string) (VM, error) {
	if isVM(c.kind) {
		return vmOf(address, c.kind, c.before)
	}
	vm := VM{Address: address, Type: c.kind}
	id := cmp.Or(c.after.text("resource_id"), c.before.text("resource_id"))
	vm.VMID = values{"": strings.TrimPrefix(id, "vm:")}.number("") // 0: the ID of a container, or known after apply only
	return vm, nil
}

// changed says whether the attribute gets another value, or a value that is not known yet. The providers' SDKs do not
// distinguish a missing value from zero.
func (c change) changed(key string) bool {
	return anywhere(c.unknown[key]) || !reflect.DeepEqual(c.before[key], c.after[key]) && !(zero(c.before[key]) && zero(c.after[key]))
}

func (c change) keys() []string {
	keys := slices.Concat(slices.Collect(maps.Keys(c.before)), slices.Collect(maps.Keys(c.after)), slices.Collect(maps.Keys(c.unknown)))
	slices.Sort(keys)
	return slices.Compact(keys)
}

func zero(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

func (c change) says(key string) string {
	short := func(x any) string {
		switch x.(type) {
		case string, float64, bool:
			return fmt.Sprint(x)
		case nil:
			return "none"
		}
		return ""
	}
	was, is := short(c.before[key]), short(c.after[key])
	switch {
	case anywhere(c.unknown[key]):
		return key + ": " + unknownYet
	case was == "" || is == "" || len(was)+len(is) > 200:
		return key
	}
	return fmt.Sprintf("%s: %s → %s", key, was, is)
}

// ofVM returns the outage if an update takes a VM down. A VM that is already off does not go down.
func (c change) ofVM(row power) Outage {
	var o Outage
	add := func(how Down, key string) {
		o.How, o.Why, o.paths = how, append(o.Why, c.says(key)), append(o.paths, key)
	}
	off := false
	for _, key := range slices.Sorted(maps.Keys(row.stops)) {
		down := func(x any) bool { return slices.Contains(row.stops[key], x) }
		switch {
		case down(c.before[key]):
			off = true
		case anywhere(c.unknown[key]), down(c.after[key]):
			add(Stops, key)
		}
	}
	if off || o.How != "" || row.reboots == "" {
		return o
	}
	if on, told := c.after[row.reboots].(bool); told && !on && !anywhere(c.unknown[row.reboots]) {
		return o // the provider leaves the change pending, or refuses it
	}
	for _, key := range c.keys() {
		judge := row.judge[key]
		_, power := row.stops[key]
		switch {
		case !c.changed(key), power, slices.Contains(row.live, key), judge != nil && !judge(c):
		default:
			add(Reboots, key)
		}
	}
	return o
}

// ofMachine returns the outage if a resource of the Talos provider takes its machine down. talos_machine upgrades the
// machine if its image changes, also if the resource is new to Terraform (pkg/talos/talos_machine_resource.go).
func (c change) ofMachine() Outage {
	o := Outage{Node: cmp.Or(c.after.text("node"), c.before.text("node"))}
	add := func(how Down, key string) {
		o.How, o.Why, o.paths = how, append(o.Why, c.says(key)), append(o.paths, key)
	}
	configured := func(keys ...string) {
		for _, key := range keys {
			if o.How == "" && c.changed(key) {
				add(MayReboot, key)
			}
		}
	}
	switch c.kind {
	case "talos_machine":
		if c.changed("image") && (anywhere(c.unknown["image"]) || c.after.text("image") != "") {
			add(Upgrades, "image")
		}
		configured("machine_configuration", "machine_configuration_hash")
	case "talos_machine_configuration_apply":
		mode, told := c.after["apply_mode"].(string)
		unknown := !told && anywhere(c.unknown["apply_mode"])
		if mode == "staged_if_needing_reboot" { // auto, if the provider can't try the change first
			mode = c.after.text("resolved_apply_mode")
		}
		if slices.Contains([]string{"staged", "no_reboot"}, mode) {
			return o
		}
		configured("machine_configuration_input", "config_patches", "machine_configuration", "machine_configuration_hash")
		if mode == "reboot" || unknown { // every update applies the configuration again
			configured(c.keys()...)
			o.How = Reboots
		}
	}
	return o
}

// hotplugs says whether Proxmox can change a feature of the running VM. Without the attribute hotplug, Proxmox'
// default counts.
func (c change) hotplugs(feature string) bool {
	text, told := c.after["hotplug"].(string)
	if !told || text == "" {
		text = "network,disk,usb"
	}
	return !anywhere(c.unknown["hotplug"]) && (text == "1" || slices.Contains(strings.Split(strings.ReplaceAll(text, " ", ""), ","), feature))
}

// disksReboot says whether a change of disks reboots the VM: how a disk is read, or a size that Proxmox can't grow
// while the VM runs. Proxmox makes other known changes while the VM runs.
func (c change) disksReboot() bool {
	if anywhere(c.unknown["disk"]) && !c.onlyUnknown("disk", "path_in_datastore", "file_format") {
		return true
	}
	next := c.after.blocks("disk")
	for _, d := range c.before.blocks("disk") {
		at := slices.IndexFunc(next, func(n values) bool { return n.text("interface") == d.text("interface") })
		if at < 0 {
			continue // the disk is removed, which is a threat
		}
		n := next[at]
		if !reflect.DeepEqual(d["aio"], n["aio"]) || !reflect.DeepEqual(d["queues"], n["queues"]) || d.number("size") != n.number("size") && !c.hotplugs("disk") {
			return true
		}
	}
	return false
}

// onlyUnknown says whether no attribute of a block is unknown except for those.
func (c change) onlyUnknown(key string, those ...string) bool {
	for _, block := range (values{key: c.unknown[key]}).blocks(key) {
		for name, x := range block {
			if anywhere(x) && !slices.Contains(those, name) {
				return false
			}
		}
	}
	_, all := c.unknown[key].(bool)
	return !all
}

// memoryReboots says whether a change of memory reboots the VM. More memory does not, if the VM allows memory to be
// plugged in.
func (c change) memoryReboots() bool {
	was, is := c.before.block("memory"), c.after.block("memory")
	differs := func(key string) bool { return !reflect.DeepEqual(was[key], is[key]) }
	return differs("hugepages") || differs("keep_hugepages") ||
		anywhere(c.unknown["memory"]) || !c.hotplugs("memory") || is.number("dedicated") < was.number("dedicated") ||
		is.number("floating") < was.number("floating") || is.number("shared") < was.number("shared")
}

// cpuReboots says whether a change of the CPU reboots the VM. Another number of plugged CPUs does not, if the VM
// allows CPUs to be plugged in.
func (c change) cpuReboots() bool {
	was, is := maps.Clone(c.before.block("cpu")), maps.Clone(c.after.block("cpu"))
	delete(was, "hotplugged")
	delete(is, "hotplugged")
	return anywhere(c.unknown["cpu"]) || !c.hotplugs("cpu") || !reflect.DeepEqual(was, is)
}

// Threat is a change in a plan that takes away a VM, a disk, or data on them.
type Threat struct {
	VM      VM     // as it is now; only Address and Type for a machine that is reset
	Node    string // address of the machine that is reset
	What    string // "destroys", "replaces", "changes disks of", "resets"
	Loses   []string
	Because string // "": Terraform does not say
	paths   []string
}

// Threats returns the threats of a plan, in its order.
func (d *Document) Threats() ([]Threat, error) {
	var out []Threat
	for _, c := range d.changes {
		if c.Mode != tfjson.ManagedResourceMode {
			continue
		}
		resets := c.Type == "talos_machine_configuration_apply" || c.Type == "talos_machine"
		if !resets && !isVM(c.Type) {
			continue
		}
		if c.Change == nil || len(c.Change.Actions) == 0 {
			return nil, fmt.Errorf("%s: %s has no actions, so the plan does not say what becomes of it", d.File, c.Address)
		}
		before, _ := c.Change.Before.(map[string]any)
		actions := c.Change.Actions
		switch {
		case slices.Contains(actions, tfjson.ActionForget), actions.Create(), actions.NoOp(), actions.Read():
		case before == nil:
			return nil, fmt.Errorf("%s: %s has no values from before the change (%v)", d.File, c.Address, actions)
		case resets:
			if slices.Contains(actions, tfjson.ActionDelete) && values(before).block("on_destroy").is("reset") {
				out = append(out, Threat{
					VM: VM{Address: c.Address, Type: c.Type}, Node: values(before).text("node"), What: "resets", Because: because(c),
					Loses: []string{"the Talos system and everything that is in its partitions: on_destroy.reset wipes them"},
				})
			}
		default:
			t, err := threatTo(c, before)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.File, err)
			}
			if t.What != "" {
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// threatTo returns what a change takes from a VM. If it takes nothing, What is "".
func threatTo(c *tfjson.ResourceChange, before values) (Threat, error) {
	vm, err := vmOf(c.Address, c.Type, before)
	if err != nil {
		return Threat{}, err
	}
	t := Threat{VM: vm, Because: because(c)}
	for _, path := range c.Change.ReplacePaths {
		if steps, is := path.([]any); is && len(steps) > 0 {
			t.paths = append(t.paths, fmt.Sprint(steps[0]))
		}
	}
	switch actions := c.Change.Actions; {
	case actions.Replace():
		t.What = "replaces"
	case slices.Contains(actions, tfjson.ActionDelete):
		t.What = "destroys"
	case actions.Update():
		after, _ := c.Change.After.(map[string]any)
		unknown, _ := c.Change.AfterUnknown.(map[string]any)
		next := VM{Type: vm.Type}
		next.fill(after)
		t.Loses = vm.losesTo(next, unknown)
		if next.placed != vm.placed && next.placed != "" {
			t.Loses = append(t.Loses, fmt.Sprintf("the VM is migrated from %s to %s: of disks on storages that only one of them has, a copy is made, and the disk is deleted", vm.placed, next.placed))
			t.paths = append(t.paths, map[bool]string{true: "target_node", false: "node_name"}[vm.Type == "proxmox_vm_qemu"])
		}
		if len(t.Loses) > 0 {
			t.What = "changes disks of"
		}
		return t, nil
	default:
		return Threat{}, fmt.Errorf("%s: recast does not know the actions %v", c.Address, actions)
	}
	t.Loses = []string{fmt.Sprintf("VM %d on %s", vm.VMID, vm.Host)}
	for _, d := range slices.Concat(vm.Disks, vm.Firmware) {
		if owner := d.Owner(); owner == 0 || owner == vm.VMID {
			t.Loses = append(t.Loses, d.String())
		}
	}
	if vm.Frees {
		t.Loses = append(t.Loses, fmt.Sprintf("every other volume of the number %d, on all storages (delete_unreferenced_disks_on_destroy)", vm.VMID))
	}
	return t, nil
}

func (vm VM) losesTo(next VM, unknown values) []string {
	untold := slices.ContainsFunc([]string{"disk", "disks", "efi_disk", "efidisk", "tpm_state"}, func(key string) bool { return anywhere(unknown[key]) })
	var out []string
	left := slices.Concat(next.Disks, next.Firmware)
	for _, d := range slices.Concat(vm.Disks, vm.Firmware) {
		at := slices.IndexFunc(left, func(n Disk) bool { return n.Slot == d.Slot })
		switch {
		case slices.Contains(next.deletes, d.Slot):
			out = append(out, d.String()+" is deleted")
		case slices.Contains(next.unmanaged, d.Slot), at < 0 && strings.HasSuffix(vm.Type, "cloned_vm"):
		case at < 0 && untold:
			out = append(out, d.String()+": what becomes of it is known after apply only")
		case at < 0:
			out = append(out, d.String()+" is removed")
		default:
			if text := d.against(left[at], untold); text != "" {
				out = append(out, d.String()+text)
			}
		}
	}
	return out
}

// against returns what a disk loses by becoming the disk n.
func (d Disk) against(n Disk, untold bool) string {
	switch {
	case untold && (n.Storage == "" && d.Storage != "" || n.KiB == 0 && d.KiB != 0):
		return ": its storage or size is known after apply only"
	case n.Storage != d.Storage:
		return fmt.Sprintf(" is moved to %s, and the copy here is deleted", n.Storage)
	case n.KiB < d.KiB:
		return " shrinks to " + n.size()
	case n.Volume != d.Volume && n.Volume != "":
		return fmt.Sprintf(" gives way to the volume %s", n.Volume)
	}
	return ""
}

func because(c *tfjson.ResourceChange) string {
	return strings.ReplaceAll(strings.TrimSpace(string(c.ActionReason)), "_", " ")
}

var instance = regexp.MustCompile(`\[(?:\d+|"(?:[^"\\]|\\.)*")\]`)

// Block returns an address without the keys of count and for_each: the name of a block in the configuration.
func Block(address string) string { return instance.ReplaceAllString(address, "") }

// name splits the address of a block into the type and the name of its resource.
func name(block string) (kind, label string) {
	parts := strings.Split(block, ".")
	if len(parts) < 2 {
		return block, ""
	}
	return parts[len(parts)-2], parts[len(parts)-1]
}

// Lifecycle returns the block that keeps Terraform from undoing a roll's changes and from destroying the VM. more are
// further attributes to ignore.
func (v VM) Lifecycle(more ...string) string {
	block := Block(v.Address)
	kind, label := name(block)
	where := ""
	if module, _, in := strings.Cut(block, "."+kind+"."); in {
		where = "  # in the source of " + module
	}
	ignore := slices.Clone(v.Ignore)
	for _, key := range more {
		if !slices.Contains(ignore, key) {
			ignore = append(ignore, key)
		}
	}
	return fmt.Sprintf("resource %q %q {%s\n  lifecycle {\n    prevent_destroy = true\n    ignore_changes  = [%s]\n  }\n}\n", kind, label, where, strings.Join(ignore, ", "))
}

// Removed returns the block with which Terraform forgets a resource and leaves the real object alone.
func Removed(address string) string {
	return fmt.Sprintf("removed {\n  from = %s\n  lifecycle {\n    destroy = false\n  }\n}\n", Block(address))
}

// Prevents returns the block, or the command, that prevents the change.
func (t Threat) Prevents() string {
	gone := strings.Contains(t.Because, "delete because")
	switch {
	case t.What == "resets" || gone && Block(t.VM.Address) == t.VM.Address:
		return Removed(t.VM.Address)
	case gone: // a removed block would affect all instances, and the others stay
		return fmt.Sprintf("terraform state rm '%s'\n", t.VM.Address)
	case strings.HasSuffix(t.Because, "tainted"):
		return fmt.Sprintf("terraform untaint '%s'\n", t.VM.Address)
	}
	return t.VM.Lifecycle(t.paths...)
}
