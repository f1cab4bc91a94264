package ui

import (
	"bytes"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/pipeline/setup"
)

func TestWriteInit(t *testing.T) {
	t.Parallel()
	build := strings.Repeat("3f", 32)
	found := setup.InitResult{
		Cluster: "homelab", Talos: "v1.13.9", Kubernetes: "v1.35.4", Platform: "nocloud", Arch: "amd64", Dir: ".",
		Nodes: []setup.InitNode{
			{Name: "cp1", ControlPlane: true, VMID: 101, Host: "pve1", Firmware: "UEFI", Schematic: "control-plane", SystemDisk: "scsi0 32G"},
			{Name: "wk1", VMID: 111, Host: "pve2", Firmware: "BIOS", Schematic: "worker", SystemDisk: "scsi0 32G", Persistent: []string{"scsi1 100G of VM 9201"}, Holder: 9201},
		},
		Schematics: []setup.InitSchematic{
			{Name: "control-plane", File: "schematics/control-plane.yaml", Extensions: []string{}, Nodes: []string{"cp1"}},
			{Name: "worker", File: "schematics/worker.yaml", Extensions: []string{"iscsi-tools", "qemu-guest-agent"}, Nodes: []string{"wk1"}},
		},
		Files: []string{"recast.yaml", "recast.lock", "schematics/worker.yaml", "schematics/control-plane.yaml"},
	}
	unknown := cluster.Reason{Code: "unknown-build", Text: "its schematic was not locked by recast: extension digests unknown"}
	inSync, foreign := found, found
	inSync.Drift = []observe.Drift{{Node: "cp1", Build: build}, {Node: "wk1", Build: build}}
	foreign.Drift = []observe.Drift{
		{Node: "cp1", Build: build, Stale: true, Reasons: []cluster.Reason{unknown}}, {Node: "wk1", Build: build, Stale: true, Reasons: []cluster.Reason{unknown}},
	}
	foreign.Left, foreign.Warnings = []string{"metal1"}, []string{"schematics/worker.yaml: the image of wk1 carries no schematic"}
	half := found
	half.Dir = "../found/"
	half.Drift = []observe.Drift{
		{Node: "cp1", Build: build},
		{Node: "wk1", Build: build, Stale: true, Reasons: []cluster.Reason{{Code: "lock", Text: "extensions of another lock: sha256-aa → sha256-bb"}}},
	}
	secret := inSync
	secret.Secret, secret.Warnings = []string{"recast.lock", "schematics/worker.yaml"}, []string{"schematics/worker.yaml and recast.lock hold secrets"}
	fresh := setup.InitResult{
		New: true, Cluster: "homelab", Talos: "v1.13.9", Kubernetes: "v1.35.4", Platform: "nocloud", Arch: "amd64", Dir: "home", Endpoint: "https://10.0.0.11:6443",
		Nodes: []setup.InitNode{
			{Name: "cp1", ControlPlane: true, Host: "pve1", Address: "10.0.0.11", Firmware: "UEFI", Schematic: "default", SystemDisk: "scsi0 20G"},
			{Name: "wk1", Host: "pve2", Address: "10.0.0.12", Firmware: "UEFI", Schematic: "default", SystemDisk: "scsi0 20G", Persistent: []string{"scsi1 100G"}},
		},
		Schematics: []setup.InitSchematic{{Name: "default", File: "schematics/default.yaml", Extensions: []string{"qemu-guest-agent"}, Nodes: []string{"cp1", "wk1"}}},
		Warnings:   []string{"secrets.yaml is not encrypted: keep it out of git"}, Secret: []string{"secrets.yaml"},
		Files: []string{"recast.yaml", "recast.lock", "secrets.yaml", "schematics/default.yaml"},
	}
	encrypted := fresh
	encrypted.Dir, encrypted.Encrypted, encrypted.Secret, encrypted.Warnings = ".", "age", nil, nil
	for name, res := range map[string]setup.InitResult{"init-in-sync": inSync, "init-foreign": foreign, "init-half": half, "init-secret": secret, "init-new": fresh, "init-new-encrypted": encrypted} {
		drawn(t, name, func(out *bytes.Buffer) error { return WriteInit(out, "text", res) })
	}
}
