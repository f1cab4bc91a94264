package network_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim/network"
)

// TestAddressWithoutAListener: a machine refuses connections to ports without a listener, and an
// unassigned address is unreachable.
func TestAddressWithoutAListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := network.Memory()
		l, err := n.Listen("127.42.7.1:80")
		if err != nil {
			t.Fatal(err)
		}
		dial := func(addr string, want error) {
			t.Helper()
			if _, err := n.Dialer().DialContext(t.Context(), "tcp", addr); !errors.Is(err, want) {
				t.Errorf("dial %s: %v, want %v", addr, err, want)
			}
		}
		dial("127.42.7.1:443", syscall.ECONNREFUSED)
		dial("127.42.7.11:80", syscall.EHOSTUNREACH)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		dial("127.42.7.1:80", syscall.EHOSTUNREACH)
	})
}
