package cluster

import (
	"testing"
)

func TestPauseReads(t *testing.T) {
	t.Parallel()
	for want, annotations := range map[string]map[string]string{
		"": {"recast.dev/roll": "x"}, "why, then": {PauseMark: " why,\n\tthen"}, "no reason given": {PauseMark: ""},
	} {
		if got := Pause(annotations); got != want {
			t.Errorf("%v: %q, want %q", annotations, got, want)
		}
	}
}

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
		"without a PersistentVolume": {AttachedVolume{Attachment: "csi-1a", Driver: "csi.example.com"}, "VolumeAttachment csi-1a (driver csi.example.com)"},
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
