package simtest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"google.golang.org/grpc"

	"github.com/recast-sh/recast/internal/sim"
)

// Talosctl is a person's call to a node with Talos' own client and the credentials of the
// working directory.
func (l *Lab) Talosctl(ctx context.Context, name string, call func(context.Context, *client.Client) error) error {
	if err := l.TalosctlAt(ctx, l.node(name).Addr, call); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// TalosctlAt is Talosctl to the machine at an address.
func (l *Lab) TalosctlAt(ctx context.Context, addr netip.Addr, call func(context.Context, *client.Client) error) error {
	conf, err := clientconfig.Open(filepath.Join(l.Dir, "talosconfig"))
	if err != nil {
		return err
	}
	dialer := l.Lab.Client()
	c, err := client.New(ctx, client.WithConfig(conf), client.WithEndpoints(addr.String()), client.WithGRPCDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) })))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return call(ctx, c)
}

// ResetNode is talosctl reset --graceful=false --reboot --system-labels-to-wipe; without
// labels it wipes the whole system disk.
func (l *Lab) ResetNode(ctx context.Context, name string, labels ...string) error {
	req := &machineapi.ResetRequest{Reboot: true}
	for _, label := range labels {
		req.SystemPartitionsToWipe = append(req.SystemPartitionsToWipe, &machineapi.ResetPartitionSpec{Label: label, Wipe: true})
	}
	return l.Talosctl(ctx, name, func(ctx context.Context, c *client.Client) error { return c.ResetGeneric(ctx, req) })
}

// node finds a node of the lab by its name.
func (l *Lab) node(name string) sim.Node {
	l.t.Helper()
	i := slices.IndexFunc(l.Nodes, func(n sim.Node) bool { return n.Name == name })
	if i < 0 {
		l.t.Fatalf("the lab has no node %s", name)
	}
	return l.Nodes[i]
}
