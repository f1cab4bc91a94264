package talos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	configpb "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"google.golang.org/protobuf/proto"

	"github.com/recast-sh/recast/cluster"
)

// errNoConfig says that a machine has no configuration.
var errNoConfig = errors.New("it has no configuration")

// MachineConfig reads the machine's whole configuration, byte by byte as it is
// stored for the next boot.
func (c *Client) MachineConfig(ctx context.Context, addr netip.Addr) (cluster.Secret, error) {
	return ask(ctx, c, addr, readConfig)
}

// MachineConfigs implements cluster.ConfigReader.
func (c *Client) MachineConfigs(ctx context.Context, addr netip.Addr) (cluster.Configs, error) {
	return ask(ctx, c, addr, readConfigs)
}

// readConfigs reads both with one request. A machine that booted with the configuration on its disk
// shows no stored one until another is applied (controllers/config/acquire.go, Run).
func readConfigs(ctx context.Context, s session) (c cluster.Configs, err error) {
	all := resource.NewMetadata(config.NamespaceName, config.MachineConfigType, "", resource.VersionUndefined)
	rs, err := s.COSI.List(ctx, all, state.WithListUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if err != nil {
		return c, fmt.Errorf("list %s: %w", config.MachineConfigType, answer(err))
	}
	byID := map[resource.ID]cluster.Secret{}
	for _, r := range rs.Items {
		if byID[r.Metadata().ID()], err = configIn(r); err != nil {
			return c, fmt.Errorf("read %s: %w", config.MachineConfigType, err)
		}
	}
	c.Active, c.Stored = byID[config.ActiveID], byID[config.PersistentID]
	if c.Active == nil {
		return c, errNoConfig
	}
	if c.Stored == nil {
		c.Stored, c.Booted = c.Active, true
	}
	return c, nil
}

// InstallImage implements cluster.ConfigReader.
func (c *Client) InstallImage(ctx context.Context, addr netip.Addr) (string, error) {
	m, err := c.ReadParts(ctx, addr, cluster.ConfigPart)
	return m.InstallImage, err
}

// readConfig reads the stored configuration.
func readConfig(ctx context.Context, s session) (cluster.Secret, error) {
	c, err := readConfigs(ctx, s)
	return c.Stored, err
}

// configIn takes the bytes from the message: the client library's own type would parse them,
// refuse what a newer Talos has added, and quote it.
func configIn(r resource.Resource) (cluster.Secret, error) {
	wire, ok := r.(*protobuf.Resource)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", r)
	}
	message, err := wire.Marshal()
	if err != nil {
		return nil, errors.New("the message can't be read")
	}
	var spec configpb.MachineConfigSpec
	if err := proto.Unmarshal(message.GetSpec().GetProtoSpec(), &spec); err != nil {
		return nil, errors.New("the message can't be read")
	}
	if len(spec.GetYamlMarshalled()) == 0 {
		return nil, errors.New("it is empty")
	}
	return spec.GetYamlMarshalled(), nil
}
