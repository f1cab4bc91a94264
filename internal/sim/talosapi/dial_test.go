package talosapi_test

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
)

// client is a client of a machine with that role.
func (l *lab) client(addr string, r role.Role) *client.Client {
	l.t.Helper()
	raw, err := l.cluster.Talosconfig(r, addr)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.clientWith(addr, raw)
}

func (l *lab) clientWith(addr string, talosconfig []byte) *client.Client {
	l.t.Helper()
	conf, err := clientconfig.FromBytes(talosconfig)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.dial(client.WithConfig(conf), client.WithEndpoints(addr))
}

// insecure is a client of a machine in maintenance mode.
func (l *lab) insecure(addr string) *client.Client {
	l.t.Helper()
	return l.dial(client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(addr))
}

func (l *lab) dial(opts ...client.OptionFunc) *client.Client {
	l.t.Helper()
	d := l.net.Dialer()
	c, err := client.New(l.t.Context(), append(opts, client.WithGRPCDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }),
	))...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// running waits until the machine at addr is a ready node.
func (l *lab) running(addr string) {
	l.t.Helper()
	l.awaitStage(l.client(addr, role.Reader), runtime.MachineStageRunning)
}

func (l *lab) awaitStage(c *client.Client, want runtime.MachineStage) {
	l.t.Helper()
	for last, end := "", time.Now().Add(10*time.Minute); last != want.String()+" ready=true"; time.Sleep(time.Second) {
		if time.Now().After(end) {
			l.t.Fatalf("the machine never was %s; last seen: %s; screen: %q", want, last, l.lines(&l.screen))
		}
		now, err := l.status(c)
		if last = now; err != nil {
			last = err.Error()
		}
	}
}

func get[T resource.Resource](ctx context.Context, c *client.Client, ptr resource.Pointer) (T, error) {
	return safe.StateGet[T](ctx, c.COSI, ptr)
}
