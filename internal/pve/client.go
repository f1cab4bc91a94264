// Package pve implements the domain's interfaces to Proxmox VE with one [Client]. The Client waits for the tasks of
// Proxmox, finds out the outcome of changes whose answer was lost, and translates what Proxmox shows into the
// domain's terms.
package pve

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Client talks to one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	conn  *api.Conn
	tasks *tasks
	slots slots
	seen  lastSeen
}

var (
	_ cluster.Proxmox = (*Client)(nil)
	_ images.Store    = (*Client)(nil)
	_ images.Shelf    = (*Client)(nil)

	_ images.Importer = (*Client)(nil)
)

// New returns a client without connecting. The caller closes it.
func New(o api.Options) (*Client, error) {
	to, err := api.Connect(o)
	if err != nil {
		return nil, err
	}
	return &Client{
		conn: to, tasks: &tasks{Conn: to}, seen: lastSeen{hosts: map[cluster.VMID]sighting{}, gone: map[cluster.VMID]bool{}},
	}, nil
}

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Client) Close() { c.conn.Close() }

// String names the client without its secret.
func (c *Client) String() string { return c.conn.String() }

// GoString keeps %#v from showing the secret.
func (c *Client) GoString() string { return c.conn.String() }

// Remember makes the client read the token's privileges, the hosts and the storages' contents only once, for a command
// that changes nothing. VMs and tasks are still read each time. Call it before the client is used.
func (c *Client) Remember() { c.conn.Remember() }

// TokenID implements cluster.Access.
func (c *Client) TokenID() string { return c.conn.TokenID }

// Permissions implements cluster.Access. It asks for this path only: Proxmox's list of all paths omits those where an
// entry removes every privilege (pve-access-control, RPCEnvironment.pm, get_effective_permissions).
func (c *Client) Permissions(ctx context.Context, path string) (cluster.Privileges, error) {
	return c.permissions(ctx, path, "")
}

func (c *Client) permissions(ctx context.Context, path, of string) (cluster.Privileges, error) {
	var paths map[string]map[string]json.RawMessage
	if err := c.conn.Get(ctx, "/access/permissions?path="+url.QueryEscape(path)+of, &paths); err != nil {
		return nil, err
	}
	held := make(cluster.Privileges, len(paths[path]))
	for privilege, propagates := range paths[path] {
		held[privilege] = toBool(propagates) // a listed privilege is granted, whether it propagates or not
	}
	return held, nil
}

// Standing implements cluster.Access. Reading the user's privileges and the whole access control list requires
// Sys.Audit on /access (pve-access-control, API2/AccessControl.pm, permissions; API2/ACL.pm, read_acl).
func (c *Client) Standing(ctx context.Context, paths []string) (map[string]cluster.Standing, error) {
	onAccess, err := c.Permissions(ctx, "/access")
	if err != nil {
		return nil, err
	}
	_, whole := onAccess["Sys.Audit"]
	var acl []aclEntry
	if whole {
		if err := c.conn.Get(ctx, "/access/acl", &acl); err != nil {
			return nil, err
		}
	}
	user := c.conn.User()
	out := make(map[string]cluster.Standing, len(paths))
	for _, path := range paths {
		at := cluster.Standing{Whole: whole}
		if at.Token, err = c.Permissions(ctx, path); err != nil {
			return nil, err
		}
		if whole {
			if at.User, err = c.permissions(ctx, path, "&userid="+url.QueryEscape(user)); err != nil {
				return nil, err
			}
		}
		for _, e := range acl {
			// An entry that does not propagate leaves the entries above it in force below.
			if e.Path == path && toBool(e.Propagate) {
				at.UserEntry, at.TokenEntry = at.UserEntry || e.UGID == user, at.TokenEntry || e.UGID == c.conn.TokenID
			}
		}
		out[path] = at
	}
	return out, nil
}

// seesEveryVM refuses unless the token provably sees every VM; otherwise lists are incomplete without an error. The
// token's privileges alone prove nothing: /access/permissions omits paths on which the token has none
// (RPCEnvironment.pm, get_effective_permissions). A gap below /vms therefore shows only in comparison with the access
// control list, which must itself be complete.
func (c *Client) seesEveryVM(ctx context.Context) error {
	var held map[string]map[string]json.RawMessage
	if err := c.conn.Get(ctx, "/access/permissions", &held); err != nil {
		return err
	}
	if !toBool(held["/vms"][seeVM]) {
		return c.refuseUnseen("/vms", seeVM, " that propagates")
	}
	if held["/access"]["Sys.Audit"] == nil {
		return c.refuseUnseen("/access", "Sys.Audit", ", without which gaps in VM.Audit do not show")
	}
	var acl []aclEntry
	if err := c.conn.Get(ctx, "/access/acl", &acl); err != nil {
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

type aclEntry struct {
	Path, UGID, RoleID, Type string
	Propagate                json.RawMessage
}

// hidesPool reports whether an ACL entry takes away our privileges on the VMs of a pool: NoAccess there is the only
// role that overrides entries elsewhere (RPCEnvironment.pm, compile_acl_path). The members of a group are unknown, so
// an entry for any group counts.
func (c *Client) hidesPool(e aclEntry) bool {
	switch {
	case e.RoleID != "NoAccess":
		return false
	case e.UGID == c.conn.TokenID, e.UGID == c.conn.User():
		return e.Path == "/" || e.Path == "/pool" || strings.HasPrefix(e.Path, "/pool/")
	}
	return e.Type == "group" && (e.Path == "/pool" || strings.HasPrefix(e.Path, "/pool/"))
}

// refuseUnseen returns a refusal, because recast would take what an unseen VM uses for unused.
func (c *Client) refuseUnseen(path, privilege, note string) error {
	err := fault.TokenPrivileges.Refusedf("the token %s does not provably see every VM of the Proxmox cluster: it has no %s on %s%s", c.conn.TokenID, privilege, path, note)
	return fault.WithHint(err, "recast would take what an unseen VM uses for unused. The token needs VM.Audit on /vms and Sys.Audit on /, "+
		"both propagated, and no entry below that removes them: pveum acl list; recast doctor says what else is missing")
}

const seeVM = "VM.Audit"
