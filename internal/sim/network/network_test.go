package network_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/network"
)

// listening is a network in memory with a listener on 127.42.7.1:80.
func listening(t *testing.T, latency time.Duration) (*network.Network, net.Listener) {
	t.Helper()
	n := network.Memory()
	n.Latency = latency
	l, err := n.Listen("127.42.7.1:80")
	if err != nil {
		t.Fatal(err)
	}
	return n, l
}

// TestAddressWithoutAListener: a machine refuses connections to ports without a listener, and an
// unassigned address is unreachable.
func TestAddressWithoutAListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, l := listening(t, 0)
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
