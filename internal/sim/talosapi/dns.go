package talosapi

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// silentNets are the networks for documentation (RFC 5737): no DNS server answers there. At every
// other address one does.
var silentNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")}

// publishResolvers publishes the DNS servers of a configuration, and what the host DNS cache
// knows about them (controllers/network/resolver_config.go, dns_upstream.go).
func (b *boot) publishResolvers(ctx context.Context, cfg config.Provider) error {
	servers := []netip.Addr{netip.MustParseAddr(constants.DefaultPrimaryResolver), netip.MustParseAddr(constants.DefaultSecondaryResolver)}
	if r := cfg.NetworkResolverConfig(); r != nil && len(r.Resolvers()) > 0 {
		servers = nil
		for _, s := range r.Resolvers() {
			servers = append(servers, s.Addr)
		}
	}
	status := network.NewResolverStatus(network.NamespaceName, network.ResolverID)
	//lint:ignore SA1019 machines have it still
	status.TypedSpec().DNSServers = servers
	var upstreams []resource.Resource
	for i, addr := range servers {
		s := network.NameServerSpec{Addr: addr}
		status.TypedSpec().NameServers = append(status.TypedSpec().NameServers, s)
		if h := cfg.NetworkHostDNSConfig(); h == nil || !h.HostDNSEnabled() {
			continue
		}
		u := network.NewDNSUpstream(fmt.Sprintf("#%03d %s %s", i, s.Protocol, addr))
		u.TypedSpec().Value.Conn = network.NewDNSConn(nameServer{addr})
		upstreams = append(upstreams, u)
	}
	if err := b.store.set(ctx, status); err != nil {
		return err
	}
	return b.store.replace(ctx, network.NamespaceName, network.DNSUpstreamType, upstreams)
}

// nameServer is a connection to a DNS server.
type nameServer struct{ addr netip.Addr }

func (s nameServer) Addr() string { return net.JoinHostPort(s.addr.String(), "53") }

func (s nameServer) Fails() uint32 {
	if slices.ContainsFunc(silentNets, func(n netip.Prefix) bool { return n.Contains(s.addr) }) {
		return 1
	}
	return 0
}

func (nameServer) Healthcheck()        {}
func (nameServer) Close()              {}
func (nameServer) Start(time.Duration) {}
