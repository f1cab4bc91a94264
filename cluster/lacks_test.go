package cluster

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

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
		if err := RequireAPIServer(t.Context(), tc.c, tc.c, "cp1", netip.MustParseAddr("10.0.0.11")); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
