package ui

import (
	"bytes"
	"testing"

	"github.com/recast-sh/recast/pipeline/adopt"
)

func TestWriteAdopt(t *testing.T) {
	t.Parallel()
	res := adopt.Result{
		Cluster: "home", Talos: "v1.13.9", Dir: "git", Written: []string{"schematics/default.yaml", "recast.yaml"},
		Nodes: []adopt.Node{
			{Name: "cp1", Role: "control plane", VMID: 101, Host: "pve1", Class: "control-plane", Disks: []string{"scsi0 20G on fast"}},
			{Name: "wk1", VMID: 111, Host: "pve2", Disks: []string{"scsi0 20G on fast", "scsi1 100G on fast"}},
		},
		Left:      []string{"proxmox_vm_qemu.dns (VM 120): nothing says that it runs Talos"},
		Questions: []adopt.Question{{Text: "is wk1 a control plane or a worker?", Command: "talosctl -n 192.0.2.21 get machinetype"}},
		Keep: []adopt.Keep{
			{Resource: "proxmox_vm_qemu.node", Nodes: []string{"cp1", "wk1"}, Ignore: "resource \"proxmox_vm_qemu\" \"node\" {\n}\n", Removed: "removed {\n  from = proxmox_vm_qemu.node\n}\n", Frees: true},
			{Resource: "talos_machine_configuration_apply.this", Nodes: []string{"cp1"}, Removed: "removed {\n  from = talos_machine_configuration_apply.this\n}\n", Resets: true},
		},
	}
	drawn(t, "adopt", func(out *bytes.Buffer) error { return WriteAdopt(out, "text", res) })
}

func TestWriteVerdict(t *testing.T) {
	t.Parallel()
	threat := adopt.Threat{
		Node: "wk1", VMID: 111, Host: "pve1", Address: `proxmox_vm_qemu.node["wk1"]`, What: "replaces", Loses: []string{"VM 111 on pve1", "scsi0 20G"},
		Because: "replace because tainted", Prevents: "resource \"proxmox_vm_qemu\" \"node\" {\n}\n",
	}
	reset := adopt.Threat{Node: "the machine 192.0.2.9", Address: "talos_machine_configuration_apply.this", What: "resets", Loses: []string{"everything"}, Prevents: "removed {\n}\n"}
	for name, v := range map[string]adopt.Verdict{
		"verdict-bad":  {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"wk1"}, Threats: []adopt.Threat{threat, reset}},
		"verdict-good": {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"cp1", "wk1"}},
		"verdict-outage": {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"cp1"}, TooMany: "it would take 2 control planes down in one apply (cp1, cp2): etcd loses its quorum", Outages: []adopt.Outage{
			{Node: "cp1", VMID: 101, Address: "proxmox_virtual_environment_vm.cp1", What: "reboots", Why: []string{"memory"}},
			{Node: "cp2", Address: "talos_machine.cp2", What: "upgrades", Why: []string{"image: a:v1 → a:v2"}},
		}},
		"verdict-warning": {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"cp1"}, Outages: []adopt.Outage{
			{Node: "cp1", Address: "talos_machine_configuration_apply.cp1", What: "may reboot", Why: []string{"config_patches"}},
		}},
		"verdict-none": {Cluster: "home", File: "plan.json", Nodes: 1},
	} {
		drawn(t, name, func(out *bytes.Buffer) error { return WriteVerdict(out, "text", v) })
	}
}
