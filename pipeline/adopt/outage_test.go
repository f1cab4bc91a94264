package adopt_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/pipeline/adopt"
)

// planned is a change of a resource of one node.
type planned struct {
	kind, actions          string
	before, after, unknown object
}

// home is a cluster of two control planes and two workers, as far as its own file and the Talos provider know the roles.
var home = []string{"cp1", "cp2", "wk1", "wk2"}

// homePlan is a plan that changes some of the nodes in the same way.
func homePlan(t *testing.T, nodes []string, change func(i int) planned) *terraform.Document {
	t.Helper()
	var there, changes []any
	for i, name := range home {
		role := map[bool]string{true: "controlplane", false: "worker"}[name[0] == 'c']
		there = append(there,
			object{"address": "vm." + name, "mode": "managed", "type": bpgVM, "values": object{"vm_id": 9001 + i, "name": name, "node_name": "pve1"}},
			object{"address": "apply." + name, "mode": "managed", "type": apply, "values": object{"node": name, "machine_configuration": "machine: {type: " + role + "}"}})
	}
	for i, name := range home {
		if !strings.Contains(strings.Join(nodes, " "), name) {
			continue
		}
		c := change(i)
		changes = append(changes, object{"address": c.kind + "." + name, "mode": "managed", "type": c.kind, "name": name, "change": object{
			"actions": strings.Split(c.actions, ","), "before": c.before, "after": c.after, "after_unknown": c.unknown,
		}})
	}
	text := must.Get(json.Marshal(object{
		"format_version": "1.2", "planned_values": object{}, "resource_changes": changes,
		"prior_state": object{"format_version": "1.0", "values": object{"root_module": object{"resources": there}}},
	}))(t)
	return must.Get(terraform.Read("plan.json", text))(t)
}

func homeConfig(most int) *config.Config {
	c := &config.Config{Cluster: "home"}
	for i, name := range home {
		c.Nodes = append(c.Nodes, config.Node{Name: name, VMID: 9001 + i, Host: "pve1"})
	}
	c.Roll.MaxUnavailable.Workers.Count = most
	return c
}

// outages are what one change does to a node; "": it stays up.
var outages = map[string]struct {
	kind          string
	before, after object
	unknown       object
	actions       string
	want          string
}{
	"memory":                       {kind: bpgVM, before: object{"memory": []any{object{"dedicated": 4}}}, after: object{"memory": []any{object{"dedicated": 8}}}, want: "reboots memory"},
	"memory that is plugged":       {kind: bpgVM, before: object{"hotplug": "disk,memory", "memory": []any{object{"dedicated": 4}}}, after: object{"hotplug": "disk,memory", "memory": []any{object{"dedicated": 8}}}},
	"memory that is unplugged":     {kind: bpgVM, before: object{"hotplug": "disk,memory", "memory": []any{object{"dedicated": 8}}}, after: object{"hotplug": "disk,memory", "memory": []any{object{"dedicated": 4}}}, want: "reboots memory"},
	"huge pages":                   {kind: bpgVM, before: object{"hotplug": "1", "memory": []any{object{"dedicated": 4}}}, after: object{"hotplug": "1", "memory": []any{object{"dedicated": 8, "hugepages": "2"}}}, want: "reboots memory"},
	"cores":                        {kind: bpgVM, before: object{"cpu": []any{object{"cores": 2}}}, after: object{"cpu": []any{object{"cores": 4}}}, want: "reboots cpu"},
	"cores of a VM with hotplug":   {kind: bpgVM, before: object{"hotplug": "cpu", "cpu": []any{object{"cores": 2}}}, after: object{"hotplug": "cpu", "cpu": []any{object{"cores": 4}}}, want: "reboots cpu"},
	"plugged CPUs":                 {kind: bpgVM, before: object{"hotplug": "cpu", "cpu": []any{object{"cores": 2, "hotplugged": 1}}}, after: object{"hotplug": "cpu", "cpu": []any{object{"cores": 2, "hotplugged": 2}}}},
	"NUMA":                         {kind: bpgVM, before: object{"numa": []any{}}, after: object{"numa": []any{object{"device": "numa0"}}}, want: "reboots numa"},
	"firmware":                     {kind: bpgVM, before: object{"bios": "seabios"}, after: object{"bios": "ovmf"}, want: "reboots bios: seabios → ovmf"},
	"cloud-init":                   {kind: bpgVM, before: object{}, after: object{"initialization": []any{object{"datastore_id": "fast"}}}, want: "reboots initialization"},
	"an attribute of the future":   {kind: bpgVM, before: object{"quantum": 1}, after: object{"quantum": 2}, want: "reboots quantum: 1 → 2"},
	"none instead of zero":         {kind: bpgVM, before: object{"acpi": nil, "usb": nil}, after: object{"acpi": false, "usb": []any{}}},
	"notes and tags":               {kind: bpgVM, before: object{"description": "a", "tags": []any{"a"}}, after: object{"description": "b", "tags": []any{"b"}}},
	"addresses not known":          {kind: bpgVM, unknown: object{"ipv4_addresses": true}},
	"a processor not known":        {kind: bpgVM, before: object{"cpu": []any{object{"cores": 2}}}, unknown: object{"cpu": []any{object{"cores": true}}}, want: "reboots cpu: known after apply only"},
	"without a reboot":             {kind: bpgVM, before: object{"reboot_after_update": true, "machine": "q35"}, after: object{"reboot_after_update": false, "machine": "pc"}},
	"a reboot that is not known":   {kind: bpgVM, before: object{"machine": "q35"}, after: object{"machine": "pc"}, unknown: object{"reboot_after_update": true}, want: "reboots machine: q35 → pc"},
	"off before and after":         {kind: bpgVM, before: object{"started": false, "machine": "q35"}, after: object{"started": false, "machine": "pc"}},
	"started":                      {kind: bpgVM, before: object{"started": false}, after: object{"started": true}},
	"stopped":                      {kind: bpgVM, before: object{"started": true}, after: object{"started": false}, want: "stops started: true → false"},
	"stopped, or not":              {kind: bpgVM, before: object{"started": true}, unknown: object{"started": true}, want: "stops started: known after apply only"},
	"made a template":              {kind: bpgVM, before: object{"started": true}, after: object{"started": true, "template": true}, want: "stops template: none → true"},
	"a disk's queues":              {kind: bpgVM, before: object{"disk": []any{object{"interface": "scsi1", "queues": 1}}}, after: object{"disk": []any{object{"interface": "scsi1", "queues": 4}}}, want: "reboots disk"},
	"a disk's speed":               {kind: bpgVM, before: object{"disk": []any{object{"interface": "scsi1", "speed": []any{}}}}, after: object{"disk": []any{object{"interface": "scsi1", "speed": []any{object{"read": 5}}}}}},
	"a disk grows without hotplug": {kind: bpgVM, before: object{"hotplug": "network", "disk": []any{object{"interface": "scsi1", "size": 1}}}, after: object{"hotplug": "network", "disk": []any{object{"interface": "scsi1", "size": 2}}}, want: "reboots disk"},
	"a cloned VM stops":            {kind: "proxmox_cloned_vm", before: object{"started": true}, after: object{"started": false}, want: "stops started: true → false"},
	"a cloned VM's cores":          {kind: "proxmox_cloned_vm", before: object{"cpu": object{"cores": 2}}, after: object{"cpu": object{"cores": 4}}},
	"Telmate's cores":              {kind: telmateVM, before: object{"cpu": []any{object{"cores": 2}}}, after: object{"cpu": []any{object{"cores": 4}}}, want: "reboots cpu"},
	"Telmate's memory":             {kind: telmateVM, before: object{"memory": 4, "automatic_reboot": true}, after: object{"memory": 8, "automatic_reboot": true}, want: "reboots memory: 4 → 8"},
	"Telmate's without a reboot":   {kind: telmateVM, before: object{"memory": 4}, after: object{"memory": 8, "automatic_reboot": false}},
	"Telmate's notes":              {kind: telmateVM, before: object{"desc": "a"}, after: object{"desc": "b"}, unknown: object{"reboot_required": true, "default_ipv4_address": true}},
	"Telmate's stops":              {kind: telmateVM, before: object{"vm_state": "running"}, after: object{"vm_state": "stopped"}, want: "stops vm_state: running → stopped"},
	"Telmate's stops anew":         {kind: telmateVM, before: object{"power_state": "running"}, after: object{"power_state": "stopped"}, want: "stops power_state"},
	"Telmate's stays off":          {kind: telmateVM, before: object{"power_state": "stopped", "memory": 4}, after: object{"power_state": "stopped", "memory": 8}},
	"HA stops it":                  {kind: "proxmox_virtual_environment_haresource", before: object{"state": "started"}, after: object{"state": "stopped"}, want: "stops state: started → stopped"},
	"HA stops it from the start":   {kind: "proxmox_haresource", actions: "create", after: object{"state": "disabled"}, want: "stops state: none → disabled"},
	"HA starts it":                 {kind: "proxmox_haresource", before: object{"state": "stopped"}, after: object{"state": "started"}},
	"another image":                {kind: "talos_machine", before: object{"image": "a:v1"}, after: object{"image": "a:v2"}, want: "upgrades image: a:v1 → a:v2"},
	"an image not known":           {kind: "talos_machine", before: object{"image": "a:v1"}, unknown: object{"image": true}, want: "upgrades image: known after apply only"},
	"a machine is taken over":      {kind: "talos_machine", actions: "create", after: object{"image": "a:v2"}, want: "upgrades image: none → a:v2"},
	"an image is not managed":      {kind: "talos_machine", before: object{"image": "a:v1"}, after: object{"image": nil}},
	"a configuration":              {kind: "talos_machine", before: object{"machine_configuration": "a"}, after: object{"machine_configuration": "b"}, want: "may reboot machine_configuration"},
	"a configuration, applied":     {kind: apply, before: object{"apply_mode": "auto"}, after: object{"apply_mode": "auto", "config_patches": []any{"a"}}, want: "may reboot config_patches"},
	"with a reboot":                {kind: apply, before: object{"config_patches": []any{}}, after: object{"apply_mode": "reboot", "config_patches": []any{"a"}}, want: "reboots config_patches"},
	"only the mode":                {kind: apply, before: object{"apply_mode": "auto"}, after: object{"apply_mode": "reboot"}, want: "reboots apply_mode: auto → reboot"},
	"with a reboot, replaced":      {kind: apply, actions: "delete,create", before: object{"apply_mode": "reboot"}, after: object{"apply_mode": "reboot", "config_patches": []any{"a"}}, want: "reboots config_patches"},
	"tried first, not possible":    {kind: apply, before: object{"config_patches": []any{}}, after: object{"apply_mode": "staged_if_needing_reboot", "resolved_apply_mode": "auto", "config_patches": []any{"a"}}, want: "may reboot config_patches"},
	"tried first":                  {kind: apply, before: object{"config_patches": []any{}}, after: object{"apply_mode": "staged_if_needing_reboot", "resolved_apply_mode": "staged", "config_patches": []any{"a"}}},
	"a machine is replaced":        {kind: "talos_machine", actions: "delete,create", before: object{"image": "a:v1"}, after: object{"image": "a:v2"}, want: "upgrades image: a:v1 → a:v2"},
	"HA is replaced, and stops it": {kind: "proxmox_haresource", actions: "create,delete", before: object{"state": "started"}, after: object{"state": "stopped"}, want: "stops state: started → stopped"},
	"staged":                       {kind: apply, before: object{"config_patches": []any{}}, after: object{"apply_mode": "staged", "config_patches": []any{"a"}}},
}

// TestOutages: what a plan does to one node is a warning, unless it stops the VM. To two control planes, or more nodes
// than may be out, it is a refusal.
func TestOutages(t *testing.T) {
	t.Parallel()
	for name, tc := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := func(most int, nodes ...string) adopt.Verdict {
				v := must.Get(adopt.Check(homeConfig(most), homePlan(t, nodes, func(i int) planned {
					own := func(o object) object {
						if o == nil && tc.actions == "create" {
							return nil
						}
						o = maps.Clone(o)
						if o == nil {
							o = object{}
						}
						maps.Copy(o, object{"vm_id": 9001 + i, "vmid": 9001 + i, "id": fmt.Sprint(9001 + i), "name": home[i], "node": home[i], "resource_id": fmt.Sprintf("vm:%d", 9001+i)})
						return o
					}
					before := own(tc.before)
					if tc.actions == "create" {
						before = nil
					}
					action := tc.actions
					if action == "" {
						action = "update"
					}
					return planned{tc.kind, action, before, own(tc.after), tc.unknown}
				}), nil))(t)
				return v
			}
			one := check(1, "wk1")
			var all []string
			for _, threat := range one.Threats {
				all = append(all, threat.What+" "+threat.Because)
			}
			for _, o := range one.Outages {
				all = append(all, o.What+" "+strings.Join(o.Why, ", "))
			}
			if got := strings.Join(all, ""); (tc.want == "") != (got == "") || !strings.HasPrefix(got, tc.want) {
				t.Fatalf("%q, want %q", got, tc.want)
			}
			stops, counts := strings.HasPrefix(tc.want, "stops"), tc.want != "" && !strings.HasPrefix(tc.want, "may")
			for _, c := range []struct {
				most    int
				nodes   []string
				refused bool
			}{
				{1, []string{"wk1"}, stops},
				{1, []string{"cp1"}, stops},
				{1, []string{"wk1", "wk2"}, counts},
				{2, []string{"wk1", "wk2"}, stops},
				{4, []string{"cp1", "cp2"}, counts},
				{4, home, counts},
			} {
				err := check(c.most, c.nodes...).Err()
				if (err != nil) != c.refused || err != nil && fault.KindOf(err) != fault.Refused {
					t.Errorf("%v, and %d may be out: %v", c.nodes, c.most, err)
				}
			}
		})
	}
}

// TestOutagesOfUnknownRoles: who is not known to be a worker may be a control plane, and a machine that no node is told by
// may be any.
func TestOutagesOfUnknownRoles(t *testing.T) {
	t.Parallel()
	text, _ := json.Marshal(object{"format_version": "1.2", "planned_values": object{}, "resource_changes": []any{
		object{"address": "talos_machine.a", "mode": "managed", "type": "talos_machine", "change": object{"actions": []string{"update"}, "before": object{"node": "192.0.2.1", "image": "a"}, "after": object{"node": "192.0.2.1", "image": "b"}}},
		object{"address": "talos_machine.b", "mode": "managed", "type": "talos_machine", "change": object{"actions": []string{"update"}, "before": object{"image": "a"}, "after": object{"image": "b"}, "after_unknown": object{"node": true}}},
	}})
	doc := must.Get(terraform.Read("plan.json", text))(t)
	v, err := adopt.Check(homeConfig(4), doc, nil)
	if err != nil || fault.KindOf(v.Err()) != fault.Refused || !strings.Contains(v.TooMany, "the machine 192.0.2.1, the machine of talos_machine.b") {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestOutagesBesideANewVM: a machine that Terraform takes over runs already, though the plan makes another VM; one whose VM
// the plan makes does not.
func TestOutagesBesideANewVM(t *testing.T) {
	t.Parallel()
	type row struct {
		made    object // the VM that the plan makes
		refused bool
	}
	must.Each(t, map[string]row{
		"a VM of no node":   {object{"vm_id": 9100, "name": "wk9", "node_name": "pve1"}, true},
		"one of them":       {object{"vm_id": 9001, "name": "cp1", "node_name": "pve1"}, false},
		"known after apply": {object{"node_name": "pve1"}, false},
	}, func(t *testing.T, tc row) {
		taken := func(node string) object {
			return object{"address": "talos_machine." + node, "mode": "managed", "type": "talos_machine", "change": object{"actions": []string{"create"}, "after": object{"node": "192.0.2." + node[2:], "image": "b"}}}
		}
		text, _ := json.Marshal(object{"format_version": "1.2", "planned_values": object{}, "resource_changes": []any{
			object{"address": "vm.new", "mode": "managed", "type": bpgVM, "change": object{"actions": []string{"create"}, "after": tc.made}}, taken("cp1"), taken("cp2"),
		}})
		doc := must.Get(terraform.Read("plan.json", text))(t)
		c := homeConfig(4)
		c.Nodes[0].Address, c.Nodes[1].Address = "192.0.2.1", "192.0.2.2"
		v := must.Get(adopt.Check(c, doc, nil))(t)
		must.Equal(t, fmt.Sprintf("%+v: refused", v), tc.refused, v.Err() != nil)
	})
}

// TestOutagesByFiles: the nodes' own configurations say who is a worker where Terraform does not.
func TestOutagesByFiles(t *testing.T) {
	t.Parallel()
	upgrade := func(node string) object {
		return object{"address": "talos_machine." + node, "mode": "managed", "type": "talos_machine", "change": object{"actions": []string{"update"}, "before": object{"node": node, "image": "a"}, "after": object{"node": node, "image": "b"}}}
	}
	text, _ := json.Marshal(object{"format_version": "1.2", "planned_values": object{}, "resource_changes": []any{upgrade("wk1"), upgrade("wk2")}})
	doc := must.Get(terraform.Read("plan.json", text))(t)
	for _, tc := range []struct {
		roles   map[string]string
		refused bool
	}{{nil, true}, {map[string]string{"wk1": "worker", "wk2": "worker"}, false}, {map[string]string{"wk1": "worker", "wk2": "control-plane"}, false}, {map[string]string{"wk1": "control-plane", "wk2": "control-plane"}, true}} {
		v := must.Get(adopt.Check(homeConfig(2), doc, tc.roles))(t)
		must.Equal(t, fmt.Sprintf("%v, %+v: refused", tc.roles, v), tc.refused, v.Err() != nil)
	}
}
