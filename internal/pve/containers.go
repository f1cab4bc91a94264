package pve

import (
	"cmp"
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// Containers lists every container that the token may see, sorted by number. VMs and
// containers share one range of numbers.
func (c *Client) Containers(ctx context.Context) ([]cluster.Container, error) {
	var rows []resource
	if err := c.get(ctx, "/cluster/resources?type=vm", &rows); err != nil {
		return nil, err
	}
	var out []cluster.Container
	for _, r := range rows {
		if r.Type == "lxc" {
			out = append(out, cluster.Container{ID: cluster.VMID(r.VMID), Name: r.Name, Host: r.Node})
		}
	}
	slices.SortFunc(out, func(a, b cluster.Container) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}
