package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"

	"github.com/recast-sh/recast/cluster"
)

// Members asks the talosconfig's endpoints, one after the other until one answers.
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

// readMembers takes a machine's node name from the resource's ID: the hostname in it
// includes a domain if the machine knows one, even from DHCP alone
// (controllers/cluster/member.go, local_affiliate.go).
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
