package talos

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"go.yaml.in/yaml/v4"
)

// SilentResolvers implements cluster.ConfigReader.
func (c *Client) SilentResolvers(ctx context.Context, addr netip.Addr) ([]string, error) {
	return ask(ctx, c, addr, readSilentResolvers)
}

// readSilentResolvers asks the host DNS cache, whose servers the machine checks with each read
// (dns_upstream.go in machinery). A machine without that cache says nothing of them.
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
		wire, ok := r.(*protobuf.Resource)
		if !ok {
			return nil, fmt.Errorf("list %s: unexpected type %T", kind.Type(), r)
		}
		message, err := wire.Marshal()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Type(), err)
		}
		var server struct {
			Addr    string `yaml:"addr"`
			Healthy string `yaml:"healthy"` // "true" or "false"
		}
		if err := yaml.Unmarshal([]byte(message.GetSpec().GetYamlSpec()), &server); err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Type(), err)
		}
		if server.Healthy == "true" {
			return nil, nil
		}
		silent = append(silent, server.Addr)
	}
	return silent, nil
}
