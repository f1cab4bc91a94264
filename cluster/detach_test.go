package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAttachedVolumeString(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		volume AttachedVolume
		want   string
	}{
		"bound": {
			AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Claim: "shop/data", Driver: "csi.proxmox.sinextra.dev"},
			"PersistentVolume pv-1 (claim shop/data, driver csi.proxmox.sinextra.dev)",
		},
		"in trouble": {
			AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Driver: "csi.example.com", Trouble: "can't be detached: disk is busy"},
			"PersistentVolume pv-1 (driver csi.example.com) can't be detached: disk is busy",
		},
		"of its pod alone": {AttachedVolume{Attachment: "csi-1a", Driver: "csi.example.com"}, "VolumeAttachment csi-1a (driver csi.example.com)"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.volume.String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestForeignDisks(t *testing.T) {
	t.Parallel()
	before := map[string]string{"scsi0": "fast:vm-9031-disk-0,size=10G", "ide2": "none,media=cdrom", "name": "wk1"}
	cases := map[string]struct {
		now  map[string]string
		want string
	}{
		"as before":               {before, ""},
		"a pod's, by its name":    {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-pvc-0b5f"}, "scsi7 (fast:vm-9999-pvc-0b5f)"},
		"named otherwise":         {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-data-1"}, "scsi7 (fast:vm-9999-data-1)"},
		"under the VM's own name": {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9031-disk-9"}, "scsi7 (fast:vm-9031-disk-9)"},
		"a CD":                    {map[string]string{"scsi0": before["scsi0"], "ide0": "isos:iso/talos.iso,media=cdrom"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := foreignDisks(VM{ID: 9031, Config: c.now}, memory{VM: VM{ID: 9031, Config: before}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, diskNames(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLostMetadata(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		remembered, now string
		want            bool
	}{
		"the same Node":                  {"u1", "u1", false},
		"another one":                    {"u1", "u2", true},
		"remembered by an older release": {"", "u2", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (memory{NodeUID: c.remembered}).lostMetadata(KubeNode{UID: c.now}); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
