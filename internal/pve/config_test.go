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
