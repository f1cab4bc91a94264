package terraform

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// Threat is a change of a plan that takes a VM, a disk, or what is on them away.
type Threat struct {
	VM      VM     // as it is; only Address for a machine that is reset
	Node    string // address of the machine that is reset
	What    string // "destroys", "replaces", "changes disks of", "resets"
	Loses   []string
	Because string // "": Terraform does not say
	paths   []string
}

// Threats are those of a plan, in its order.
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

// threatTo is what a change takes from a VM; without What if nothing.
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

// losesTo is what an update in place takes from the disks.
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

// against is what a disk loses by becoming another one.
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

// Block is the address without keys of count and for_each: what a block of configuration is called.
func Block(address string) string { return instance.ReplaceAllString(address, "") }

// name splits the address of a block into type and name of its resource.
func name(block string) (kind, label string) {
	parts := strings.Split(block, ".")
	if len(parts) < 2 {
		return block, ""
	}
	return parts[len(parts)-2], parts[len(parts)-1]
}

// Lifecycle is the block that keeps Terraform from changing or destroying what a roll changes. more are
// attributes besides those.
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

// Removed is the block with which Terraform forgets a resource, and leaves what it stands for alone.
func Removed(address string) string {
	return fmt.Sprintf("removed {\n  from = %s\n  lifecycle {\n    destroy = false\n  }\n}\n", Block(address))
}

// Prevents is the block, or the command, that prevents the change.
func (t Threat) Prevents() string {
	gone := strings.Contains(t.Because, "delete because")
	switch {
	case t.What == "resets" || gone && Block(t.VM.Address) == t.VM.Address:
		return Removed(t.VM.Address)
	case gone: // removed is for all instances of a block, and the others stay
		return fmt.Sprintf("terraform state rm '%s'\n", t.VM.Address)
	case strings.HasSuffix(t.Because, "tainted"):
		return fmt.Sprintf("terraform untaint '%s'\n", t.VM.Address)
	}
	return t.VM.Lifecycle(t.paths...)
}
