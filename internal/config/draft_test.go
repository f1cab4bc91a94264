package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

func draft() config.Draft {
	return config.Draft{
		Cluster: "homelab", Talos: "v1.13.9", Kubernetes: "v1.35.4", Factory: "https://factory.talos.dev", Extensions: "ghcr.io/siderolabs",
		Platform: "nocloud", Arch: "amd64", ISOStorage: []string{"isos"}, VMIDs: config.VMIDRange{First: 9000, Last: 9099},
		Endpoints: []string{"https://pve1.example:8006"},
		Schematics: []config.DraftSchematic{
			{Name: "control-plane", File: "schematics/control-plane.yaml", Nodes: []string{"cp1"}},
			{Name: "worker", File: "schematics/worker.yaml", Nodes: []string{"wk1", "wk10"}},
		},
		Nodes: []config.DraftNode{
			{Name: "cp1", Schematic: "control-plane", VMID: 101, Note: "control plane on pve1, UEFI, system disk scsi0 32G"},
			{Name: "wk1", Schematic: "worker", VMID: 111, Holder: 9201, Note: "worker on pve1, UEFI, system disk scsi0 32G, persistent scsi1 100G of VM 9201"},
			{Name: "wk10", Schematic: "worker", VMID: 120, Note: "worker on pve2, BIOS, system disk not proven"},
		},
	}
}

// everything is a draft with every field set.
func everything() config.Draft {
	d := draft()
	d.Cluster, d.Others, d.TalosConfig, d.Kubernetes = "2024", "v1.12.1", "./talosconfig", ""
	d.Mirror, d.SecureBoot, d.Fingerprint = "ghcr.io/acme/talos", true, strings.Repeat("AA:", 31)+"AA"
	d.ISOStorage, d.Hosts, d.Left = []string{"on", "local"}, []string{"pve2", "pve3"}, []string{"metal1"}
	d.Schematics[1].Unknown = []string{"extension frr 1.7.15 is not in the schematic"}
	d.Nodes[0].Note = "a note\nwith\r\nlines: {and: more}"
	return d
}

// drafted is a draft of a cluster that is not there yet.
func drafted() config.Draft {
	d := draft()
	d.TalosConfig, d.Schematics = "./talosconfig", []config.DraftSchematic{{Name: "default", File: "schematics/default.yaml", Nodes: []string{"cp1", "wk1"}}}
	d.Nodes = []config.DraftNode{
		{Name: "cp1", Schematic: "default", Class: "control-plane", Host: "pve1", IPConfig: "ip=10.0.0.11/24,gw=10.0.0.1"},
		{Name: "wk1", Schematic: "default", Class: "worker", Host: "pve2", IPConfig: "ip=10.0.0.12/24,gw=10.0.0.1"},
	}
	data := config.DiskSize{GiB: 100}
	d.New = &config.DraftNew{
		Secrets: "secrets.yaml", Endpoint: "https://10.0.0.10:6443", Release: "v1.13", ControlPlanes: []string{"cp1"}, Patches: []string{"patches/control-plane.yaml"},
		Classes: []config.DraftClass{
			{Name: "control-plane", Cores: 2, MemoryMiB: 4096, Storage: "fast", Bridge: "vmbr0", System: config.DiskSize{GiB: 20}},
			{Name: "worker", Cores: 2, MemoryMiB: 4096, Storage: "fast", Bridge: "vmbr0", System: config.DiskSize{GiB: 20}, Data: &data},
		},
	}
	return d
}

var updateDrafts = flag.Bool("update-drafts", false, "write the golden files of drafts anew")

func TestDraft(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]config.Draft{"draft": draft(), "draft-everything": everything(), "draft-new": drafted()} {
		got, err := d.Render()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, got)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *updateDrafts {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestDraftIsRead checks that the rendered file is parsed to the same values.
func TestDraftIsRead(t *testing.T) {
	t.Parallel()
	text, err := everything().Render()
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("recast.yaml", text, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Node{Name: "wk1", Schematic: "worker", VMID: 111, Holder: 9201, Strategy: "auto"}
	if diff := cmp.Diff(want, c.Nodes[1]); diff != "" {
		t.Errorf("wk1 (-want +got):\n%s", diff)
	}
	if c.Cluster != "2024" || c.Images.ISO.Storage[0] != "on" || !c.Images.SecureBoot || c.Proxmox.Fingerprint == "" || c.Images.Mirror != "" {
		t.Errorf("it is read otherwise than it was meant: %+v", c)
	}
}

func TestInvalidDraft(t *testing.T) {
	t.Parallel()
	d := draft()
	d.Nodes = nil
	if text, err := d.Render(); err == nil || !strings.Contains(err.Error(), "the result of the search is not a valid recast.yaml") {
		t.Errorf("err = %v\n%s", err, text)
	}
}
