package kube_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// TestAPIServer: each server is asked at its own address, for which its certificate
// need not be, whether it serves; a mere answer does not count.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.client(t, "system:masters")
	serve := func(addr string, unready bool) netip.AddrPort {
		who := l.who
		who.Version, who.Unready = "v1.36.1", unready
		listener, err := l.net.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- l.Serve(t.Context(), listener, who) }()
		t.Cleanup(func() {
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		})
		return netip.MustParseAddrPort(addr)
	}
	ready := serve("127.42.7.11:6443", false)
	unready := serve("127.42.7.12:7443", true)
	if version, err := c.APIServer(t.Context(), ready); version != "v1.36.1" || err != nil {
		t.Errorf("%q, %v", version, err)
	}
	if _, err := c.APIServer(t.Context(), unready); err == nil || err.Error() != "127.42.7.12:7443 is not ready: poststarthook/rbac/bootstrap-roles" {
		t.Errorf("err = %v", err)
	}
	_, err := c.APIServer(t.Context(), netip.MustParseAddrPort("127.42.7.13:6443"))
	if err == nil || !strings.Contains(strings.Join(fault.Hints(err), " "), "recast has to reach the API server of every control plane") {
		t.Errorf("err = %v, hints %q", err, fault.Hints(err))
	}
}

// TestForeignAPIServer is not trusted.
func TestForeignAPIServer(t *testing.T) {
	t.Parallel()
	l, other := newLab(t), newLab(t)
	c := connect(t, other.net, l.ca.cert, l.ca.issue(t, "admin", []string{"system:masters"}))
	if _, err := c.APIServer(t.Context(), netip.MustParseAddrPort(apiAddr)); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("err = %v", err)
	}
}
