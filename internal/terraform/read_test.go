package terraform_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/terraform"
)

// What is no state and no plan, or only a part of one, is refused.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":          {"", "not JSON, or only a part"},
		"half":             {`{"format_version":"1.0","values":{"root_module":`, "not JSON, or only a part"},
		"text":             {"Terraform will perform the following actions", "not JSON"},
		"two documents":    {`{"format_version":"1.0","values":{}} {}`, "more than one JSON document"},
		"the log":          {`{"@level":"info","type":"version"}` + "\n" + `{"@level":"info"}`, "log that terraform prints"},
		"a stored state":   {`{"version":4,"terraform_version":"1.9.8","serial":1,"lineage":"x","resources":[]}`, "state as Terraform stores it"},
		"another object":   {`{"resources":[]}`, "no format_version"},
		"an empty state":   {`{"format_version":"1.0"}`, "no values, planned_values or resource_changes"},
		"another format":   {`{"format_version":"2.1","values":{}}`, "unsupported state format version"},
		"another plan":     {`{"format_version":"2.1","resource_changes":[]}`, "unsupported plan format version"},
		"a failed plan":    {`{"format_version":"1.2","errored":true,"planned_values":{},"resource_changes":[]}`, "failed half-way"},
		"a deferred plan":  {`{"format_version":"1.2","planned_values":{},"deferred_changes":[{"reason":"provider_config_unknown"}]}`, "deferred changes"},
		"a VM without one": {`{"format_version":"1.0","values":{"root_module":{"resources":[{"address":"proxmox_vm_qemu.a","mode":"managed","type":"proxmox_vm_qemu","values":{"name":"a"}}]}}}`, "proxmox_vm_qemu.a has no VMID"},
		"another type":     {`{"format_version":"1.0","values":{"root_module":{"resources":"secret"}}}`, "another type than Terraform documents"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := terraform.Read("show.json", []byte(tc.text))
			must.Contain(t, "error", fmt.Sprint(err), "show.json: ", tc.want)
			if fault.KindOf(err) != fault.Config || len(fault.Hints(err)) == 0 || strings.Contains(err.Error(), "secret") {
				t.Errorf("kind %v, hints %q: %v", fault.KindOf(err), fault.Hints(err), err)
			}
		})
	}
}

func state(resources string) []byte {
	return []byte(`{"format_version":"1.0","values":{"root_module":{"resources":[` + resources + `]}}}`)
}

// Telmate's provider has had three forms of disks.
func TestDisksOfTelmate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values string
		want   []terraform.Disk
	}{
		"disks": {
			`"disks":[{"ide":[{"ide2":[{"cdrom":[{"iso":"local:iso/talos.iso"}]}],"ide0":[{"ignore":true}]}],"scsi":[{"scsi0":[{"disk":[{"size":"32G","storage":"fast"}]}],"scsi1":[{"passthrough":[{"file":"/dev/sdb","size":"1T"}]}]}]}]`,
			[]terraform.Disk{{Slot: "scsi0", Storage: "fast", KiB: 32 << 20}, {Slot: "scsi1", KiB: 1 << 30, Volume: "/dev/sdb"}},
		},
		"disk with a slot": {
			`"disk":[{"slot":"virtio0","type":"disk","size":"1536M","storage":"fast"},{"slot":"ide2","type":"cdrom","iso":"local:iso/talos.iso"},{"slot":"ide1","type":"cloudinit","storage":"fast"},{"slot":"scsi3","type":"ignore"}]`,
			[]terraform.Disk{{Slot: "virtio0", Storage: "fast", KiB: 1536 << 10}},
		},
		"disk with a number": {
			`"disk":[{"slot":1,"type":"scsi","size":"20","storage":"fast","file":"vm-101-disk-1"}]`,
			[]terraform.Disk{{Slot: "scsi1", Storage: "fast", KiB: 20 << 20, Volume: "vm-101-disk-1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc := must.Get(terraform.Read("x", state(`{"address":"proxmox_vm_qemu.a","mode":"managed","type":"proxmox_vm_qemu","values":{"id":"pve2/qemu/101","name":"a",`+tc.values+`}}`)))(t)
			vm := doc.VMs[0]
			must.Hold(t, vm.VMID == 101 && vm.Host == "pve2", "VM %d on %q, by the ID", vm.VMID, vm.Host)
			must.Equal(t, "value", tc.want, vm.Disks)
		})
	}
}

func TestOwnersOfVolumes(t *testing.T) {
	t.Parallel()
	for volume, want := range map[string]int{
		"": 0, "vm-101-disk-0": 101, "101/vm-101-disk-0.qcow2": 101, "base-9000-disk-0/vm-102-disk-0": 102, "local-lvm:vm-103-disk-1": 103,
		"/dev/disk/by-id/x": 0, "base-9000-disk-0": 0, "local:101/vm-101-disk-0.raw": 101,
	} {
		must.Equal(t, volume+" is of VM", want, (terraform.Disk{Volume: volume}).Owner())
	}
}

func TestBuilds(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 32)
	for text, want := range map[string]terraform.Build{
		"https://factory.talos.dev/image/" + id + "/v1.13.9/nocloud-amd64.raw.xz":           {Factory: "https://factory.talos.dev", Schematic: id, Talos: "v1.13.9", Platform: "nocloud", Arch: "amd64"},
		"https://f.example:8080/image/" + id + "/v1.14.0-beta.1/metal-arm64-secureboot.iso": {Factory: "https://f.example:8080", Schematic: id, Talos: "v1.14.0-beta.1", Platform: "metal", Arch: "arm64", SecureBoot: true},
		"factory.talos.dev/nocloud-installer-secureboot/" + id + ":v1.13.9":                 {Factory: "https://factory.talos.dev", Schematic: id, Talos: "v1.13.9", Platform: "nocloud", SecureBoot: true},
		"factory.talos.dev/installer/" + id + ":v1.13.9":                                    {Factory: "https://factory.talos.dev", Schematic: id, Talos: "v1.13.9"},
		"ghcr.io/siderolabs/installer:v1.13.9":                                              {},
	} {
		got, _ := terraform.BuildOf(text)
		must.Equal(t, text, want, got)
	}
}

// A configuration joins a machine to Omni by a document of its own.
func TestMachines(t *testing.T) {
	t.Parallel()
	config := `machine: {type: worker, network: {hostname: wk1}, install: {image: x}}\ncluster: {clusterName: home}\n---\nkind: SideroLinkConfig\napiUrl: grpc://x\n`
	doc := must.Get(terraform.Read("x", state(`{"address":"talos_machine_configuration_apply.a","mode":"managed","type":"talos_machine_configuration_apply","values":{"node":"192.0.2.1","machine_configuration":"`+config+`","on_destroy":{"reset":true}}}`)))(t)
	want := []terraform.Machine{{Address: "talos_machine_configuration_apply.a", Node: "192.0.2.1", Role: "worker", Hostname: "wk1", Cluster: "home", Image: "x", Omni: true, Resets: true}}
	must.Equal(t, "value", want, doc.Machines)
}

// FuzzRead: whatever is in a file, it is read or refused.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("../../pipeline/adopt/testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(f)
		f.Add(text)
	}
	f.Add([]byte(`{"format_version":"1.2","resource_changes":[{"address":"a","mode":"managed","type":"proxmox_vm_qemu","change":{"actions":["update"],"before":{"id":"p/qemu/1"},"after":{"disk":[{"slot":-1,"size":"T"}]},"after_unknown":{"disks":[true]},"replace_paths":[[],[1],"x"]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := terraform.Read("x.json", text)
		if err != nil {
			return
		}
		threats, err := d.Threats()
		if err != nil {
			return
		}
		for _, threat := range threats {
			must.Hold(t, threat.Prevents() != "" && len(threat.Loses) != 0,
				"%+v: nothing is lost, or nothing prevents it", threat)
		}
	})
}
