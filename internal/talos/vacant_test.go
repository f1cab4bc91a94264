package talos_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/talos"
)

// TestTaken: only an address that stays silent is free.
func TestTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		admin := l.client(role.Admin)
		l.running(admin, cpAddr)
		raw, err := l.cluster.Talosconfig(role.Admin, "127.42.7.99:50000")
		if err != nil {
			t.Fatal(err)
		}
		c := l.clientWith(talos.Options{Talosconfig: raw})
		if _, err := l.net.Listen("127.42.7.12:9999"); err != nil {
			t.Fatal(err)
		}
		for addr, want := range map[string]string{
			cpAddr.String(): "a host that answers at 127.42.7.11:50000", // and asks for a certificate
			"127.42.7.12":   "a host that refuses connections to 127.42.7.12:50000",
			"127.42.7.98":   "",
			"127.42.7.99":   "an endpoint of the talosconfig",
		} {
			if by, err := c.Taken(t.Context(), netip.MustParseAddr(addr)); err != nil || by != want {
				t.Errorf("%s: %q, %v; want %q", addr, by, err, want)
			}
		}
	})
}

// TestTakenByNetworkErrors: the network's word about an address counts only if it is about
// that address.
func TestTakenByNetworkErrors(t *testing.T) {
	t.Parallel()
	const proxy = "127.42.7.200:1080"
	failed := func(op, at string, err error) func(string) error {
		return func(to string) error {
			addr, _ := net.ResolveTCPAddr("tcp", cmp.Or(at, to))
			return &net.OpError{Op: op, Net: "tcp", Addr: addr, Err: err}
		}
	}
	for name, c := range map[string]struct {
		err     func(to string) error // nothing comes back at all
		taken   bool
		unknown bool
	}{
		"silence":                {},
		"timeout":                {err: failed("dial", "", syscall.ETIMEDOUT)},
		"no such host":           {err: failed("dial", "", syscall.EHOSTUNREACH)},
		"refused":                {err: failed("dial", "", syscall.ECONNREFUSED), taken: true},
		"reset":                  {err: failed("dial", "", syscall.ECONNRESET), taken: true},
		"no network":             {err: failed("dial", "", syscall.ENETUNREACH), unknown: true},
		"forbidden":              {err: failed("dial", "", syscall.EACCES), unknown: true},
		"a proxy is not there":   {err: failed("dial", proxy, syscall.EHOSTUNREACH), unknown: true},
		"a proxy is silent":      {err: failed("dial", proxy, syscall.ETIMEDOUT), unknown: true},
		"a proxy finds no host":  {err: failed("socks connect", "", syscall.EHOSTUNREACH), unknown: true},
		"a proxy says something": {err: func(string) error { return errors.New("502 Bad Gateway") }, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				raw, err := l.cluster.Talosconfig(role.Admin, cpAddr.String())
				if err != nil {
					t.Fatal(err)
				}
				way := l.clientWith(talos.Options{Talosconfig: raw, Dial: func(ctx context.Context, _, to string) (net.Conn, error) {
					if c.err != nil {
						return nil, c.err(to)
					}
					<-ctx.Done()
					addr, _ := net.ResolveTCPAddr("tcp", to)
					return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: ctx.Err()}
				}})
				began := time.Now()
				by, err := way.Taken(t.Context(), netip.MustParseAddr("127.42.7.98"))
				if (by != "") != c.taken || (err != nil) != c.unknown || c.unknown && !strings.Contains(err.Error(), "check whether 127.42.7.98") || len(fault.Hints(err)) == 0 && c.unknown {
					t.Errorf("%q, %v, hints %q", by, err, fault.Hints(err))
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}
