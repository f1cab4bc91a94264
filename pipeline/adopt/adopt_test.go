package adopt_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/pipeline/adopt"
)

var update = flag.Bool("update", false, "write the golden files anew")

func document(t *testing.T, name string) *terraform.Document {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("testdata", name+".json")))(t)
	return must.Get(terraform.Read(name+".json", text))(t)
}

// answers are what none of the layouts says.
func answers(more func(*adopt.Options)) adopt.Options {
	o := adopt.Options{Name: "recast.yaml", Endpoints: []string{"https://pve1.example:8006"}, VMIDs: "9000-9099"}
	more(&o)
	return o
}

// layouts are those of modules that people use.
var layouts = map[string]struct {
	from string
	o    func(*adopt.Options)
}{
	"bpg-foreach": {"bpg-foreach", func(o *adopt.Options) { o.Cluster = "home" }},
	"bpg-count-clone": {"bpg-count-clone", func(o *adopt.Options) {
		o.Endpoints, o.Schematic, o.Talos, o.Platform, o.ISOStorage = nil, "base.yaml", "v1.13.9", "nocloud", []string{"isos"}
	}},
	"telmate-disks": {"telmate-disks", func(o *adopt.Options) {
		o.Cluster, o.Schematic, o.Talos, o.Platform, o.ISOStorage = "home", "base.yaml", "v1.13.9", "metal", []string{"local"}
	}},
	"bpg-talos":      {"bpg-talos", func(*adopt.Options) {}},
	"nested-cluster": {"nested", func(o *adopt.Options) { o.Cluster = "lab" }},
	"nested-only":    {"nested", func(o *adopt.Options) { o.Only = []string{`module.cluster["prod"]`} }},
}

// TestLayouts adopts each layout, and has config read what was written.
func TestLayouts(t *testing.T) {
	t.Parallel()
	for name, tc := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := answers(tc.o)
			o.Dir = filepath.Join(t.TempDir(), "new")
			if o.Schematic != "" {
				o.Schematic = filepath.Join(filepath.Dir(o.Dir), o.Schematic)
				must.Do(t, os.WriteFile(o.Schematic, []byte("customization: {}\n"), 0o600))
			}
			res := must.Get(adopt.Adopt(document(t, tc.from), o))(t)
			file := filepath.Join(o.Dir, "recast.yaml")
			c := must.Get(config.Load(file, config.Options{}))(t)
			must.Hold(t, len(c.Nodes) == len(res.Nodes) && len(c.Nodes) >= 2,
				"recast.yaml has %d nodes, and %d were found", len(c.Nodes), len(res.Nodes))
			text := must.Get(os.ReadFile(file))(t)
			var blocks strings.Builder
			for _, k := range res.Keep {
				if k.Resets {
					blocks.WriteString("# resets its machine\n")
				}
				blocks.WriteString("# " + strings.Join(k.Nodes, ", ") + "\n" + k.Ignore + k.Removed)
			}
			golden(t, name+".yaml", string(text))
			golden(t, name+".tf", blocks.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must.Do(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	must.Equal(t, name, string(want), got)
}

// TestUnanswered names all that is missing at once, and writes nothing.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	type row struct {
		from string
		o    adopt.Options
		want []string
	}
	must.Each(t, map[string]row{
		"nothing given": {"telmate-disks", adopt.Options{}, []string{
			"what the cluster is called", "which Talos", "which platform", "images of talos-cp-1, talos-wk-1 contain", "where the Proxmox API is", "takes the boot ISOs", "unused VMIDs",
		}},
		"several clusters":     {"nested", adopt.Options{}, []string{"several clusters: lab, prod"}},
		"no such cluster":      {"nested", adopt.Options{Cluster: "other"}, []string{"no VM of bpg/proxmox"}},
		"nothing below":        {"nested", adopt.Options{Only: []string{"module.clus"}}, []string{"no VM of bpg/proxmox"}},
		"a range that is used": {"bpg-foreach", adopt.Options{Cluster: "home", Endpoints: []string{"https://pve1"}, VMIDs: "9200-9299"}, []string{`9201 is the number of proxmox_virtual_environment_vm.data["wk1"]`}},
		"another platform":     {"bpg-talos", adopt.Options{Platform: "aws", Endpoints: []string{"https://pve1"}, VMIDs: "9000-9099"}, []string{"images.platform"}},
		"no range":             {"bpg-foreach", adopt.Options{Cluster: "home", Endpoints: []string{"https://pve1"}, VMIDs: "9"}, []string{"--vmids"}},
	}, func(t *testing.T, tc row) {
		o := tc.o
		o.Dir, o.Name = t.TempDir(), "recast.yaml"
		_, err := adopt.Adopt(document(t, tc.from), o)
		must.Be(t, err != nil && fault.KindOf(err) == fault.Config && len(fault.Hints(err)) != 0,
			"err = %v, hints %q", err, fault.Hints(err))
		must.Fail(t, err, tc.want...)
		there, _ := os.ReadDir(o.Dir)
		must.Equal(t, "files written", 0, len(there))
	})
}

// TestModulesAreNotMerged: VMs in several modules are one cluster only if something says so.
func TestModulesAreNotMerged(t *testing.T) {
	t.Parallel()
	doc := document(t, "nested")
	doc.Machines, doc.Clusters = nil, nil
	o := answers(func(*adopt.Options) {})
	must.Fail(t, must.Err(adopt.Adopt(doc, o)), "4 modules")
	o.Only, o.Cluster = []string{`module.cluster["lab"]`}, "lab"
	res, err := adopt.Adopt(doc, o)
	must.Hold(t, err == nil && len(res.Nodes) == 2 && res.Nodes[0].Name == "lab-cp1" && res.Nodes[0].Role == "",
		"%v, err = %v", res.Nodes, err)
}

// TestMachinesOfOmniAreRefused: joined by a document of the configuration, or by a kernel argument.
func TestMachinesOfOmniAreRefused(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]func(*terraform.Document){
		"configuration": func(d *terraform.Document) { d.Machines[0].Omni = true },
		"image": func(d *terraform.Document) {
			d.Schematics[0].YAML = "customization: {extraKernelArgs: ['siderolink.api=grpc://x']}"
		},
	}, func(t *testing.T, change func(*terraform.Document)) {
		doc := document(t, "bpg-talos")
		change(doc)
		must.FailAs(t, must.Err(adopt.Adopt(doc, answers(func(*adopt.Options) {}))), fault.Refused, "joins it to Omni")
	})
}

// TestAHolderIsNoNode, whatever its tags say; and a tainted VM is a question.
func TestAHolderIsNoNode(t *testing.T) {
	t.Parallel()
	doc := document(t, "bpg-foreach")
	for i := range doc.VMs {
		doc.VMs[i].Shape.Tags, doc.VMs[i].Tainted = []string{"talos"}, doc.VMs[i].Name == "cp1"
	}
	res := must.Get(adopt.Adopt(doc, answers(func(o *adopt.Options) { o.Cluster, o.Schematic = "home", "base.yaml" })))(t)
	if len(res.Nodes) != 3 || len(res.Left) != 1 || !strings.Contains(res.Left[0], "VM 9201): it owns disks of other VMs") {
		t.Errorf("%v, left %q", res.Nodes, res.Left)
	}
	must.Equal(t, "run", `terraform untaint 'proxmox_virtual_environment_vm.node["cp1"]'`, res.Questions[0].Command)
}

func TestNothingIsReplaced(t *testing.T) {
	t.Parallel()
	o := answers(func(o *adopt.Options) { o.Dir = t.TempDir() })
	mine := filepath.Join(o.Dir, "recast.yaml")
	must.Do(t, os.WriteFile(mine, []byte("mine"), 0o600))
	must.Fail(t, must.Err(adopt.Adopt(document(t, "bpg-talos"), o)), "recast.yaml is there already")
	o.Force = true
	must.Pass(t, must.Err(adopt.Adopt(document(t, "bpg-talos"), o)))
	must.Contain(t, mine, string(must.Get(os.ReadFile(mine))(t)), "vmClasses:")
}

// TestNoSecretIsShown: a state holds machine configurations and keys.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	res := must.Get(adopt.Adopt(document(t, "bpg-talos"), answers(func(*adopt.Options) {})))(t)
	for _, f := range res.Files {
		must.Hold(t, !strings.Contains(string(f.Content), "abc.secret"),
			"%s has the token of the machine configuration:\n%s", f.Name, f.Content)
	}
}

type object = map[string]any

// node is a VM of bpg/proxmox with two disks.
func node(change func(object)) object {
	disk := func(slot string, size int) object {
		return object{"interface": slot, "datastore_id": "fast", "size": size, "path_in_datastore": "vm-111-" + slot}
	}
	vm := object{"vm_id": 111, "node_name": "pve1", "name": "wk1", "disk": []any{disk("scsi0", 20), disk("scsi1", 100)}, "boot_order": nil, "delete_unreferenced_disks_on_destroy": true}
	if change != nil {
		change(vm)
	}
	return vm
}

func disks(change func([]any) []any) func(object) {
	return func(vm object) { vm["disk"] = change(vm["disk"].([]any)) }
}

func tpm(storage string) func(object) {
	return func(vm object) { vm["tpm_state"] = []any{object{"datastore_id": storage}} }
}

func second(key string, value any) func(object) {
	return disks(func(list []any) []any { list[1].(object)[key] = value; return list })
}

// one is a VM of Telmate/proxmox with one disk.
func one(size string, with object) object {
	vm := object{"vmid": 111, "target_node": "pve1", "name": "wk1", "disks": []any{object{"scsi": []any{object{"scsi0": []any{object{"disk": []any{object{"size": size, "storage": "fast"}}}}}}}}}
	maps.Copy(vm, with)
	return vm
}

func reset(node string) object { return object{"node": node, "on_destroy": object{"reset": true}} }

const bpgVM, telmateVM, apply = "proxmox_virtual_environment_vm", "proxmox_vm_qemu", "talos_machine_configuration_apply"

// changes are what a plan does to one resource, and what doctor says of it; "": nothing.
var changes = map[string]struct {
	kind          string
	actions       string
	before, after object
	more          object // of the change
	want          string
	prevents      string
}{
	"no change":          {bpgVM, "no-op", node(nil), node(nil), nil, "", ""},
	"more memory":        {bpgVM, "update", node(nil), node(func(vm object) { vm["memory"] = []any{object{"dedicated": 4}} }), nil, "", ""},
	"forgotten":          {bpgVM, "forget", node(nil), nil, nil, "", ""},
	"made":               {bpgVM, "create", nil, node(nil), nil, "", ""},
	"a grown disk":       {bpgVM, "update", node(nil), node(second("size", 200)), nil, "", ""},
	"a new disk":         {bpgVM, "update", node(nil), node(disks(func(l []any) []any { return append(l, object{"interface": "scsi2", "size": 5}) })), nil, "", ""},
	"destroyed":          {bpgVM, "delete", node(nil), nil, nil, "destroys VM 111 on pve1; scsi0 20G on fast; scsi1 100G on fast; every other volume of the number 111", "prevent_destroy = true"},
	"replaced":           {bpgVM, "delete,create", node(nil), node(nil), object{"replace_paths": []any{[]any{"clone", 0, "vm_id"}}}, "replaces VM 111", "boot_order, clone]"},
	"made, then gone":    {bpgVM, "create,delete", node(nil), node(nil), nil, "replaces VM 111", "ignore_changes"},
	"a removed disk":     {bpgVM, "update", node(nil), node(disks(func(l []any) []any { return l[:1] })), nil, "changes disks of scsi1 100G on fast is removed", "ignore_changes  = [disk"},
	"a disk shrinks":     {bpgVM, "update", node(nil), node(second("size", 50)), nil, "scsi1 100G on fast shrinks to 50G", "ignore_changes"},
	"a disk moves":       {bpgVM, "update", node(nil), node(second("datastore_id", "slow")), nil, "scsi1 100G on fast is moved to slow", "ignore_changes"},
	"another slot":       {bpgVM, "update", node(nil), node(second("interface", "scsi5")), nil, "scsi1 100G on fast is removed", "ignore_changes"},
	"another volume":     {bpgVM, "update", node(nil), node(second("path_in_datastore", "vm-9-disk-0")), nil, "gives way to the volume vm-9-disk-0", "ignore_changes"},
	"a size not known":   {bpgVM, "update", node(nil), node(second("size", nil)), object{"after_unknown": object{"disk": []any{object{}, object{"size": true}}}}, "known after apply only", "ignore_changes"},
	"disks not known":    {bpgVM, "update", node(nil), node(func(vm object) { delete(vm, "disk") }), object{"after_unknown": object{"disk": true}}, "known after apply only", "ignore_changes"},
	"no TPM state":       {bpgVM, "update", node(tpm("fast")), node(nil), nil, "tpmstate0 on fast is removed", "ignore_changes"},
	"TPM state moves":    {bpgVM, "update", node(tpm("fast")), node(tpm("slow")), nil, "tpmstate0 on fast is moved to slow", "ignore_changes"},
	"migrated by it":     {bpgVM, "update", node(nil), node(func(vm object) { vm["node_name"] = "pve2" }), nil, "the VM is migrated from pve1 to pve2", "node_name]"},
	"Telmate's moves":    {telmateVM, "update", one("32G", nil), one("32G", object{"target_node": "pve2"}), nil, "the VM is migrated from pve1 to pve2", "target_node]"},
	"a cloned VM gone":   {"proxmox_cloned_vm", "delete", object{"id": 111, "node_name": "pve1", "name": "wk1"}, nil, nil, "destroys VM 111", "prevent_destroy"},
	"a cloned VM's disk": {"proxmox_cloned_vm", "update", object{"id": 111, "disk": object{"scsi1": object{"size_gb": 9}}}, object{"id": 111, "delete": object{"disk": []any{"scsi1"}}}, nil, "scsi1 9G is deleted", "ignore"},
	"a disk unnamed":     {"proxmox_cloned_vm", "update", object{"id": 111, "disk": object{"scsi1": object{"size_gb": 9}}}, object{"id": 111}, nil, "", ""},
	"Telmate's is gone":  {telmateVM, "delete", one("32G", nil), nil, nil, "destroys VM 111 on pve1; scsi0 32G on fast", "prevent_destroy"},
	"Telmate's shrinks":  {telmateVM, "update", one("32G", nil), one("16G", nil), nil, "scsi0 32G on fast shrinks to 16G", "ignore_changes  = [disks"},
	"Telmate's ignored":  {telmateVM, "update", one("32G", nil), one("", object{"disks": []any{object{"scsi": []any{object{"scsi0": []any{object{"ignore": true}}}}}}}), nil, "", ""},
	"another VM":         {bpgVM, "delete", node(func(vm object) { vm["vm_id"] = 112 }), nil, nil, "", ""},
	"migrated":           {bpgVM, "delete", node(func(vm object) { vm["node_name"] = "pve2" }), nil, nil, "destroys VM 111 on pve2", "prevent_destroy"},
	"another Proxmox":    {bpgVM, "delete", node(func(vm object) { vm["node_name"], vm["name"] = "other1", "db" }), nil, nil, "", ""},
	"its holder":         {bpgVM, "delete", node(func(vm object) { vm["vm_id"], vm["name"] = 9201, "data" }), nil, nil, "wk1 (its holder) destroys VM 9201", "prevent_destroy"},
	"a reset":            {apply, "delete", reset("192.0.2.21"), nil, nil, "wk1 resets the Talos system", "removed {"},
	"a reset of another": {apply, "delete", reset("192.0.2.99"), nil, nil, "the machine 192.0.2.99 resets", "removed {"},
	"a reset of a known": {apply, "delete", reset("192.0.2.50"), nil, nil, "", ""},
	"no reset":           {apply, "delete", object{"node": "192.0.2.21"}, nil, nil, "", ""},
	"a container":        {"proxmox_virtual_environment_container", "delete", object{"vm_id": 111}, nil, nil, "", ""},
}

func planOf(t *testing.T, kind, actions string, before, after, more object) *terraform.Document {
	t.Helper()
	change := object{"actions": strings.Split(actions, ","), "before": before, "after": after}
	maps.Copy(change, more)
	there := func(id int, name, address string) object {
		return object{"address": bpgVM + "." + name, "mode": "managed", "type": bpgVM, "values": object{"vm_id": id, "name": name, "node_name": "pve1", "ipv4_addresses": []any{[]any{address}}}}
	}
	text := must.Get(json.Marshal(object{
		"format_version": "1.2", "planned_values": object{},
		"resource_changes": []any{object{"address": `module.a["x"].` + kind + `.this["wk1"]`, "mode": "managed", "type": kind, "name": "this", "change": change}},
		"prior_state": object{"format_version": "1.0", "values": object{"root_module": object{"resources": []any{
			there(111, "wk1", "192.0.2.21"), there(500, "other", "192.0.2.50"),
		}}}},
	}))(t)
	return must.Get(terraform.Read("plan.json", text))(t)
}

func wanted() *config.Config {
	return &config.Config{Cluster: "home", Nodes: []config.Node{{Name: "wk1", VMID: 111, Host: "pve1", Holder: 9201}, {Name: "wk2", VMID: 113}}}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tc := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := must.Get(adopt.Check(wanted(), planOf(t, tc.kind, tc.actions, tc.before, tc.after, tc.more), nil))(t)
			if tc.want == "" {
				must.Be(t, len(v.Threats) == 0 && v.Err() == nil && len(v.Managed) == 1, "%+v", v)
				return
			}
			if len(v.Threats) != 1 || fault.KindOf(v.Err()) != fault.Refused {
				t.Fatalf("%+v: %v", v.Threats, v.Err())
			}
			got := v.Threats[0]
			text := got.Node + " " + got.What + " " + strings.Join(got.Loses, "; ")
			must.Contain(t, "text", text, tc.want)
			must.Contain(t, "what prevents it", got.Prevents, tc.prevents)
		})
	}
}

// TestWhatPreventsARemoval: a block removed forgets all instances, so one alone is taken out of the state.
func TestWhatPreventsARemoval(t *testing.T) {
	t.Parallel()
	text, _ := json.Marshal(object{
		"format_version": "1.2", "planned_values": object{},
		"resource_changes": []any{
			object{"address": bpgVM + `.this["wk1"]`, "mode": "managed", "type": bpgVM, "action_reason": "delete_because_each_key", "change": object{"actions": []string{"delete"}, "before": node(nil)}},
			object{"address": bpgVM + ".tainted", "mode": "managed", "type": bpgVM, "action_reason": "replace_because_tainted", "change": object{"actions": []string{"delete", "create"}, "before": node(nil)}},
			object{"address": bpgVM + ".wk1", "mode": "managed", "type": bpgVM, "action_reason": "delete_because_no_resource_config", "change": object{"actions": []string{"delete"}, "before": node(nil)}},
		},
	})
	doc := must.Get(terraform.Read("plan.json", text))(t)
	v, err := adopt.Check(wanted(), doc, nil)
	must.Be(t, err == nil && len(v.Threats) == 3, "%+v, %v", v, err)
	if got := v.Threats[0]; got.Prevents != "terraform state rm 'proxmox_virtual_environment_vm.this[\"wk1\"]'\n" || got.Because != "delete because each key" {
		t.Errorf("%+v", got)
	}
	must.Equal(t, "prevents", "terraform untaint 'proxmox_virtual_environment_vm.tainted'\n", v.Threats[1].Prevents)
	must.Contain(t, "text", v.Threats[2].Prevents, "from = proxmox_virtual_environment_vm.wk1\n")
}

// TestCheckRefuses: what can't be held against the nodes is no verdict.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	must.Fail(t, must.Err(adopt.Check(wanted(), document(t, "bpg-talos"), nil)), "is a state, not a plan")
	c := wanted()
	c.Nodes[1].VMID = 0
	must.Fail(t, must.Err(adopt.Check(c, document(t, "bpg-count-clone"), nil)), "nodes without vmid: wk2")
	must.Each(t, map[string]*terraform.Document{
		"no actions":      planOf(t, bpgVM, "", node(nil), nil, object{"actions": nil}),
		"unknown actions": planOf(t, bpgVM, "recycle", node(nil), nil, nil),
		"no before":       planOf(t, bpgVM, "delete", nil, nil, nil),
		"no VMID":         planOf(t, bpgVM, "delete", object{"name": "wk1"}, nil, nil),
	}, func(t *testing.T, doc *terraform.Document) {
		must.FailAs(t, must.Err(adopt.Check(wanted(), doc, nil)), fault.Config)
	})
	v, err := adopt.Check(&config.Config{Nodes: []config.Node{{Name: "x", VMID: 4711}}}, document(t, "bpg-count-clone"), nil)
	must.Hold(t, err == nil && v.Err() == nil && len(v.Managed) == 0, "a plan without nodes: %+v, %v", v, err)
}

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
			got := strings.Join(all, "")
			must.Be(t, (tc.want == "") == (got == "") && strings.HasPrefix(got, tc.want), "%q, want %q", got, tc.want)
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
				must.Hold(t, (err != nil) == c.refused && (err == nil || fault.KindOf(err) == fault.Refused),
					"%v, and %d may be out: %v", c.nodes, c.most, err)
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
