package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestPauseReads(t *testing.T) {
	t.Parallel()
	for want, annotations := range map[string]map[string]string{
		"": {"recast.dev/roll": "x"}, "why, then": {PauseMark: " why,\n\tthen"}, "no reason given": {PauseMark: ""},
	} {
		must.Equal(t, fmt.Sprint(annotations), want, Pause(annotations))
	}
}

func TestAttachedVolumeString(t *testing.T) {
	t.Parallel()
	type testCase struct {
		volume AttachedVolume
		want   string
	}
	must.Each(t, map[string]testCase{
		"bound": {
			AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Claim: "shop/data", Driver: "csi.proxmox.sinextra.dev"},
			"PersistentVolume pv-1 (claim shop/data, driver csi.proxmox.sinextra.dev)",
		},
		"in trouble": {
			AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Driver: "csi.example.com", Trouble: "can't be detached: disk is busy"},
			"PersistentVolume pv-1 (driver csi.example.com) can't be detached: disk is busy",
		},
		"without a PersistentVolume": {AttachedVolume{Attachment: "csi-1a", Driver: "csi.example.com"}, "VolumeAttachment csi-1a (driver csi.example.com)"},
	}, func(t *testing.T, c testCase) {
		must.Equal(t, "volume", c.want, c.volume.String())
	})
}

type oneControlPlane struct {
	ComponentReader
	KubernetesReader
	silent, dead error // Talos, and its API server
}

func (c oneControlPlane) Kubernetes(context.Context, netip.Addr) (MachineKubernetes, error) {
	return MachineKubernetes{APIPort: 7443}, c.silent
}

func (c oneControlPlane) APIServer(_ context.Context, at netip.AddrPort) (string, error) {
	if at.Port() != 7443 {
		return "", errors.New("another port")
	}
	return "v1.35.4", c.dead
}

func TestRequireAPIServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		c  oneControlPlane
		ok bool
	}{
		"it answers":          {ok: true},
		"Talos does not":      {c: oneControlPlane{silent: ErrNotNow}},
		"the server does not": {c: oneControlPlane{dead: ErrNotNow}},
	} {
		err := RequireAPIServer(t.Context(), tc.c, tc.c, "cp1", netip.MustParseAddr("10.0.0.11"))
		must.Equal(t, fmt.Sprintf("%s: %v", name, err), tc.ok, err == nil)
	}
}
