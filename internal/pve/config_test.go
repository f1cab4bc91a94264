package pve

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNormalise(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		raw, err string
		want     map[string]string
	}{
		"as Proxmox gives it": {
			`{"digest":"d","memory":"2048","cores":2,"cpulimit":1.5,"numa":0,"onboot":true,"sshkeys":"ssh-ed25519%20AAAA%2Bb%0A","description":"a\n","hotplug":null}`, "",
			map[string]string{
				"memory": "2048", "cores": "2", "cpulimit": "1.5", "numa": "0", "onboot": "1", "sshkeys": "ssh-ed25519%20AAAA%2Bb%0A", "description": "a\n",
			},
		},
		"a section of Proxmox 8":   {`{"digest":"d","name":"a","cloudinit":{"ipconfig0":"ip=dhcp","ide2":"x:vm-1-cloudinit"}}`, "", map[string]string{"name": "a"}},
		"sections of Proxmox 9":    {`{"digest":"d","name":"a","special-sections":{"cloudinit":{"name":"b"},"fleecing":{}}}`, "", map[string]string{"name": "a"}},
		"anything else is a fault": {`{"digest":"d","extra":{"a":1}}`, `extra is neither a text nor a number: {"a":1}`, nil},
		"a list is one, too":       {`{"digest":"d","net0":["a"]}`, `net0 is neither a text nor a number: ["a"]`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var raw rawConfig
			must(t, json.Unmarshal([]byte(tc.raw), &raw))
			got, digest, err := raw.normalise()
			if (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err || err == nil && digest != "d" {
				t.Fatalf("digest %q, error %v", digest, err)
			}
			same(t, "configuration", tc.want, got)
		})
	}
}

func TestMergePending(t *testing.T) {
	t.Parallel()
	var rows []pendingRow
	must(t, json.Unmarshal([]byte(`[
		{"key":"name","value":"wk1"}, {"key":"cores","value":2,"pending":4}, {"key":"scsi1","value":"fast:1","delete":1},
		{"key":"onboot","value":0,"delete":1}, {"key":"kvm","value":1,"pending":0,"delete":2}, {"key":"tags","pending":"talos"}, {"key":"gone","delete":1},
		{"key":"memory","value":"4096","delete":0}, {"key":"digest","value":"abc"}]`), &rows))
	config, digest, err := mergePending(rows).normalise()
	want := map[string]string{"name": "wk1", "cores": "4", "onboot": "0", "kvm": "0", "tags": "talos", "memory": "4096"}
	if diff := cmp.Diff(want, config); diff != "" || digest != "abc" || err != nil {
		t.Errorf("digest %q, %v, configuration (-want +got):\n%s", digest, err, diff)
	}
}

func TestSameValue(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		key, want, now string
		same           bool
	}{
		"as written":                 {"memory", "2048", "2048", true},
		"another one":                {"memory", "2048", "4096", false},
		"gone":                       {"memory", "2048", "", false},
		"tags are sorted":            {"tags", "talos;roll", "roll;talos", true},
		"tags, one more":             {"tags", "talos;roll", "other;roll;talos", false},
		"description loses its end":  {"description", "a\nb\n", "a\nb", true},
		"options change places":      {"smbios1", "uuid=u,serial=s", "serial=s,uuid=u", true},
		"options, one more":          {"smbios1", "uuid=u", "serial=s,uuid=u", false},
		"card gets its address":      {"net0", "virtio,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", true},
		"card, address in lower":     {"net0", "virtio=bc:24:11:00:00:01,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", true},
		"card, another address":      {"net0", "virtio=BC:24:11:00:00:02,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", false},
		"card, another model":        {"net0", "e1000,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", false},
		"card, another bridge":       {"net0", "virtio,bridge=vmbr1", "virtio=BC:24:11:00:00:01,bridge=vmbr0", false},
		"drive is allocated":         {"scsi0", "fast:10,serial=a,format=qcow2", "fast:101/vm-101-disk-0.qcow2,serial=a,size=10G", true},
		"drive, block storage":       {"efidisk0", "fast:1,efitype=4m", "fast:vm-101-disk-1,efitype=4m,pre-enrolled-keys=0,size=528K", true},
		"drive elsewhere":            {"scsi0", "fast:10,serial=a", "slow:vm-101-disk-0,serial=a,size=10G", false},
		"drive without its serial":   {"scsi0", "fast:10,serial=a", "fast:vm-101-disk-0,size=10G", false},
		"drive is imported":          {"scsi0", "fast:0,import-from=local:import/a.qcow2,serial=a", "fast:101/vm-101-disk-0.qcow2,serial=a,size=6M", true},
		"imported, another serial":   {"scsi0", "fast:0,import-from=local:import/a.qcow2,serial=a", "fast:101/vm-101-disk-0.qcow2,serial=b,size=6M", false},
		"cloud-init drive":           {"ide0", "fast:cloudinit,format=raw", "fast:101/vm-101-cloudinit.raw,media=cdrom,size=4M", true},
		"cloud-init drive elsewhere": {"ide0", "fast:cloudinit", "slow:vm-101-cloudinit,media=cdrom,size=4M", false},
		"another drive in its place": {"ide0", "fast:cloudinit", "fast:vm-101-disk-0,size=4M", false},
		"existing volume":            {"scsi0", "fast:vm-101-disk-0,discard=on", "fast:vm-101-disk-0,discard=on,size=2G", true},
		"a boolean spelled out":      {"scsi0", "fast:vm-101-disk-0,iothread=on", "fast:vm-101-disk-0,iothread=1,size=2G", true},
		"another boolean":            {"scsi0", "fast:vm-101-disk-0,iothread=on", "fast:vm-101-disk-0,iothread=0,size=2G", false},
		"size is read afresh":        {"scsi0", "fast:vm-101-disk-0,size=2G", "fast:vm-101-disk-0,size=3G", true},
		"another volume":             {"scsi0", "fast:vm-101-disk-0", "fast:vm-101-disk-1,size=2G", false},
		"CD":                         {"ide2", "isos:iso/a.iso,media=cdrom", "isos:iso/a.iso,media=cdrom,size=9M", true},
		"another CD":                 {"ide2", "none,media=cdrom", "isos:iso/a.iso,media=cdrom,size=9M", false},
		"password cannot be read":    {"cipassword", "hunter2", "**********", true},
		"password is not there":      {"cipassword", "hunter2", "", false},
		"nothing is asked for drive": {"scsi0", "fast:10", "fast:vm-101-disk-0,size=10G", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same(t, "result", tc.same, sameValue(tc.key, tc.want, tc.now))
		})
	}
}
