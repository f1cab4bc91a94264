package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Uses implements images.Users: it returns every VM of the whole Proxmox cluster,
// with its pending changes, and every snapshot. Containers have no ISOs.
func (c *Client) Uses(ctx context.Context) ([]images.Use, error) {
	if err := c.seesEveryVM(ctx); err != nil {
		return nil, err
	}
	rows, err := c.resources(ctx)
	if err != nil {
		return nil, err
	}
	away, err := c.offline(ctx)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if away.has(row.Node) {
			away.addVM(fromResource(row))
		}
	}
	if err := away.err(); err != nil {
		return nil, err
	}
	found := make([][]images.Use, len(rows))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(api.ReadsAtOnce)
	for i, row := range rows {
		g.Go(func() error {
			vm := fromResource(row)
			var err error
			found[i], err = c.usesOf(ctx, vm)
			if isNoConfig(err) {
				// Deleted or moved since the list was read: look up this VM alone.
				if vm, err = c.VM(ctx, vm.ID); errors.Is(err, cluster.ErrNotFound) {
					return nil
				}
				if err == nil {
					found[i], err = c.usesOf(ctx, vm)
				}
			}
			if err != nil {
				return fmt.Errorf("read what VM %d refers to: %w", vm.ID, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(found...), nil
}

// usesOf reads one VM. GET config merges pending changes, and so omits what a
// running VM still has in a drive that is to be removed; the list of pending changes
// has both.
func (c *Client) usesOf(ctx context.Context, vm cluster.VM) ([]images.Use, error) {
	var rows []pendingRow
	if err := c.conn.Get(ctx, vmPath(vm, "pending"), &rows); err != nil {
		return nil, err
	}
	var own images.Use
	for _, r := range rows {
		switch r.Key {
		case "description":
			continue
		case "name": // the cluster's list may not have it yet
			vm.Name = cmp.Or(scalar(r.Value), vm.Name)
		}
		for _, value := range []json.RawMessage{r.Value, r.Pending} {
			if len(value) > 0 {
				own.Values = append(own.Values, scalar(value))
			}
		}
	}
	own.By = vm.String()
	uses := []images.Use{own}
	snapshots, err := c.snapshots(ctx, vm)
	if err != nil {
		return nil, err
	}
	for _, name := range snapshots {
		var config rawConfig
		if err := c.conn.Get(ctx, vmPath(vm, "snapshot/"+url.PathEscape(name)+"/config"), &config); err != nil {
			return nil, err
		}
		use := images.Use{By: fmt.Sprintf("snapshot %s of %s", name, vm)}
		for key, value := range config {
			if key != "description" {
				use.Values = append(use.Values, scalar(value))
			}
		}
		slices.Sort(use.Values)
		uses = append(uses, use)
	}
	return uses, nil
}
