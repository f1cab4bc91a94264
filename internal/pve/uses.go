package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
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
	g.SetLimit(readsAtOnce)
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
	var rows []struct {
		Key            string
		Value, Pending json.RawMessage
	}
	if err := c.get(ctx, vmPath(vm, "pending"), &rows); err != nil {
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
		if err := c.get(ctx, vmPath(vm, "snapshot/"+url.PathEscape(name)+"/config"), &config); err != nil {
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

const seeVM = "VM.Audit"

// seesEveryVM refuses unless the token provably sees every VM; otherwise lists are
// incomplete without an error. The token's privileges alone prove nothing:
// /access/permissions omits paths without any (RPCEnvironment.pm,
// get_effective_permissions), so that a gap below /vms shows only in comparison with
// the access control list, which must be complete itself.
func (c *Client) seesEveryVM(ctx context.Context) error {
	var held map[string]map[string]json.RawMessage
	if err := c.get(ctx, "/access/permissions", &held); err != nil {
		return err
	}
	if !toBool(held["/vms"][seeVM]) {
		return c.refuseUnseen("/vms", seeVM, " that propagates")
	}
	if held["/access"]["Sys.Audit"] == nil {
		return c.refuseUnseen("/access", "Sys.Audit", ", without which gaps in VM.Audit do not show")
	}
	var acl []aclEntry
	if err := c.get(ctx, "/access/acl", &acl); err != nil {
		return err
	}
	paths := map[string]bool{}
	for path := range held {
		paths[path] = true
	}
	for _, entry := range acl {
		paths[entry.Path] = true
		if c.hidesPool(entry) {
			return c.refuseUnseen(entry.Path, seeVM, ": the role NoAccess is given there")
		}
	}
	for path := range paths {
		if strings.HasPrefix(path, "/vms/") && held[path][seeVM] == nil {
			return c.refuseUnseen(path, seeVM, "")
		}
	}
	return nil
}

// aclEntry is one entry of Proxmox's access control list.
type aclEntry struct{ Path, UGID, RoleID, Type string }

// hidesPool reports whether an entry takes away our privileges on the VMs of a pool:
// NoAccess there is the only role that overrides entries elsewhere
// (RPCEnvironment.pm, compile_acl_path). Members are unknown: any group counts.
func (c *Client) hidesPool(e aclEntry) bool {
	switch {
	case e.RoleID != "NoAccess":
		return false
	case e.UGID == c.tokenID, e.UGID == userOf(c.tokenID):
		return e.Path == "/" || e.Path == "/pool" || strings.HasPrefix(e.Path, "/pool/")
	}
	return e.Type == "group" && (e.Path == "/pool" || strings.HasPrefix(e.Path, "/pool/"))
}

// refuseUnseen refuses: VMs that the token does not see may use anything.
func (c *Client) refuseUnseen(path, privilege, note string) error {
	err := fault.TokenPrivileges.Refusedf("the token %s does not provably see every VM of the Proxmox cluster: it has no %s on %s%s", c.tokenID, privilege, path, note)
	return fault.WithHint(err, "recast would take what an unseen VM uses for unused. The token needs VM.Audit on /vms and Sys.Audit on /, "+
		"both propagated, and no entry below that removes them: pveum acl list; recast doctor says what else is missing")
}
