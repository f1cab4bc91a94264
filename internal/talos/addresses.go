package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// networkFacts are the resources in which Talos describes a machine's network.
type networkFacts struct {
	statuses  []*network.AddressStatus
	specs     []*network.AddressSpec
	links     []*network.LinkStatus
	operators []*network.OperatorSpec
	routes    []*network.RouteStatus
}

// readAddresses reads the machine's addresses, each with its source. The layer belongs to the address in force: a
// lower layer may have the same address (controllers/network/address_merge.go).
func readAddresses(ctx context.Context, s session, m *cluster.Machine) error {
	var f networkFacts
	err := inParallel(
		listing(ctx, s, network.NewAddressStatus(network.NamespaceName, "").Metadata(), &f.statuses),
		listing(ctx, s, network.NewAddressSpec(network.NamespaceName, "").Metadata(), &f.specs),
		listing(ctx, s, network.NewLinkStatus(network.NamespaceName, "").Metadata(), &f.links),
		listing(ctx, s, network.NewOperatorSpec(network.NamespaceName, "").Metadata(), &f.operators),
		listing(ctx, s, network.NewRouteStatus(network.NamespaceName, "").Metadata(), &f.routes),
	)
	if err == nil {
		m.Addresses = f.addresses()
	}
	return err
}

func (f networkFacts) addresses() []cluster.MachineAddress {
	var all []cluster.MachineAddress
	for _, status := range f.statuses {
		spec := status.TypedSpec()
		a := cluster.MachineAddress{Prefix: spec.Address, Link: spec.LinkName, Layer: f.layer(spec.Address)}
		f.describeLink(&a)
		if a.Layer == cluster.LayerOperator {
			a.Lease = f.lease(a)
		}
		for _, route := range f.routes {
			r := route.TypedSpec()
			if r.OutLinkName == a.Link && r.Destination.Bits() <= 0 && r.Gateway.IsValid() && r.Gateway.Is6() == a.Prefix.Addr().Is6() && r.Table == nethelpers.TableMain {
				a.Gateway = r.Gateway
			}
		}
		all = append(all, a)
	}
	return all
}

// layer returns the layer of the configuration that requested an address; cluster.LayerKernel if Talos did not
// request the address.
func (f networkFacts) layer(address netip.Prefix) cluster.AddressLayer {
	for _, spec := range f.specs {
		if spec.TypedSpec().Address == address {
			return cluster.AddressLayer(spec.TypedSpec().ConfigLayer.String())
		}
	}
	return cluster.LayerKernel
}

// describeLink fills in the address's link.
func (f networkFacts) describeLink(a *cluster.MachineAddress) {
	a.Kind = "unknown"
	for _, link := range f.links {
		l := link.TypedSpec()
		if link.Metadata().ID() != a.Link {
			continue
		}
		mac := l.PermanentAddr
		if len(mac) == 0 {
			mac = l.HardwareAddr
		}
		a.MAC, a.Kind = net.HardwareAddr(mac).String(), l.Kind
		if !l.Physical() && l.Kind == "" {
			a.Kind = l.Type.String()
		}
	}
}

// lease returns the operator that obtained an address of a link.
func (f networkFacts) lease(a cluster.MachineAddress) (lease cluster.AddressLease) {
	for _, operator := range f.operators {
		o := operator.TypedSpec()
		switch {
		case o.LinkName != a.Link:
		case o.Operator == network.OperatorVIP && o.VIP.IP == a.Prefix.Addr():
			return cluster.AddressLease{Operator: "vip"}
		case o.Operator == network.OperatorDHCP4 && a.Prefix.Addr().Is4():
			lease = cluster.AddressLease{Operator: "dhcp4", DUID: o.DHCP4.ClientIdentifier.ClientIdentifier == nethelpers.ClientIdentifierDUID}
		case o.Operator == network.OperatorDHCP6 && a.Prefix.Addr().Is6():
			lease = cluster.AddressLease{Operator: "dhcp6"}
		}
	}
	return lease
}

// Members asks the talosconfig's endpoints for the members, one endpoint after the other until one answers.
func (c *Client) Members(ctx context.Context) ([]cluster.Member, error) {
	var problems []error
	for _, endpoint := range c.endpoints {
		var members []cluster.Member
		err := c.call(ctx, endpoint, func(ctx context.Context, s session) (err error) {
			members, err = readMembers(ctx, s)
			return err
		})
		if err == nil {
			return members, nil
		}
		problems = append(problems, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("no endpoint of the talosconfig answers: %w", errors.Join(problems...))
}

// readMembers reads the cluster's members. It takes a machine's node name from the resource's ID: the hostname in the
// resource includes a domain if the machine knows a domain, even from DHCP alone (controllers/cluster/member.go,
// local_affiliate.go).
func readMembers(ctx context.Context, s session) ([]cluster.Member, error) {
	all, err := list[*clusterres.Member](ctx, s, clusterres.NewMember(clusterres.NamespaceName, "").Metadata())
	if err != nil {
		return nil, err
	}
	var out []cluster.Member
	for _, m := range all {
		spec := m.TypedSpec()
		out = append(out, cluster.Member{
			Nodename: m.Metadata().ID(), NodeID: spec.NodeID, Addresses: spec.Addresses, ControlPlane: spec.MachineType.IsControlPlane(),
		})
	}
	slices.SortFunc(out, func(a, b cluster.Member) int {
		return cmp.Or(cmp.Compare(a.Nodename, b.Nodename), cmp.Compare(a.NodeID, b.NodeID))
	})
	return out, nil
}

// SilentResolvers implements cluster.ConfigReader.
func (c *Client) SilentResolvers(ctx context.Context, addr netip.Addr) ([]string, error) {
	return ask(ctx, c, addr, readSilentResolvers)
}

// readSilentResolvers asks the host DNS cache, whose servers the machine checks with each read (dns_upstream.go in
// machinery). A machine without that cache reports nothing about its servers.
func readSilentResolvers(ctx context.Context, s session) ([]string, error) {
	kind := resource.NewMetadata(network.NamespaceName, network.DNSUpstreamType, "", resource.VersionUndefined)
	// The spec is YAML only: the library's own type is a connection, which can't be read.
	rs, err := s.COSI.List(ctx, kind, state.WithListUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	switch {
	case unknownKind(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", kind.Type(), answer(err))
	}
	var silent []string
	for _, r := range rs.Items {
		wire, err := wireSpec(r)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Type(), err)
		}
		var server struct {
			Addr    string `yaml:"addr"`
			Healthy string `yaml:"healthy"` // "true" or "false"
		}
		if err := yaml.Unmarshal([]byte(wire.GetYamlSpec()), &server); err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Type(), err)
		}
		if server.Healthy == "true" {
			return nil, nil
		}
		silent = append(silent, server.Addr)
	}
	return silent, nil
}

// probePorts are the ports that recast tries to see whether an address is in use: those of Talos, Kubernetes,
// Proxmox, SSH and HTTPS. A machine that drops packets to other ports may serve one of these.
var probePorts = []string{"50000", "6443", "8006", "22", "443"}

// probeTimeout is how long an address must stay silent: longer than ARP's 3 s.
const probeTimeout = 5 * time.Second

// Taken implements cluster.Maintenance. An address counts as free only if it stays silent or the network reports it
// unreachable; the report of a proxy does not count.
func (c *Client) Taken(ctx context.Context, addr netip.Addr) (by string, err error) {
	if slices.ContainsFunc(c.endpoints, func(e string) bool { return hostOf(e) == addr.String() }) {
		return "an endpoint of the talosconfig", nil
	}
	answers, errs := make([]string, len(probePorts)), make([]error, len(probePorts))
	var probes sync.WaitGroup
	for i, port := range probePorts {
		probes.Go(func() { answers[i], errs[i] = c.answers(ctx, net.JoinHostPort(addr.String(), port)) })
	}
	probes.Wait()
	if i := slices.IndexFunc(answers, func(s string) bool { return s != "" }); i >= 0 {
		return answers[i], nil
	}
	if err := errors.Join(errs...); err != nil {
		return "", fault.WithHint(fmt.Errorf("check whether %s is in use: %w", addr, err), "recast has to reach that network itself, without a proxy, to see that an address of it is free")
	}
	return "", nil
}

// answers describes what answers at host:port; "" if nothing does.
func (c *Client) answers(ctx context.Context, at string) (string, error) {
	short, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := c.dial(short, "tcp", at)
	if err == nil {
		_ = conn.Close() // nothing was sent
		return "a host that answers at " + at, nil
	}
	failed, ok := errors.AsType[*net.OpError](err)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case !ok || failed.Op != "dial" || failed.Addr == nil || failed.Addr.String() != at: // perhaps the error of a proxy
		return "", err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return "a host that refuses connections to " + at, nil
	case failed.Timeout(), errors.Is(err, syscall.EHOSTUNREACH):
		return "", nil
	}
	return "", err
}

// hostOf returns the host of an endpoint, which may have a port.
func hostOf(endpoint string) string {
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		return host
	}
	return strings.Trim(endpoint, "[]")
}
