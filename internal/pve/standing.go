package pve

import (
	"context"
	"encoding/json"
	"net/url"

	"github.com/recast-sh/recast/cluster"
)

// Standing implements cluster.Access. Reading the user's privileges and the whole
// access control list requires Sys.Audit on /access (pve-access-control,
// API2/AccessControl.pm, permissions; API2/ACL.pm, read_acl).
func (c *Client) Standing(ctx context.Context, paths []string) (map[string]cluster.Standing, error) {
	onAccess, err := c.Permissions(ctx, "/access")
	if err != nil {
		return nil, err
	}
	_, whole := onAccess["Sys.Audit"]
	var acl []struct {
		Path, UGID string
		Propagate  json.RawMessage
	}
	if whole {
		if err := c.get(ctx, "/access/acl", &acl); err != nil {
			return nil, err
		}
	}
	user := userOf(c.tokenID)
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
				at.UserEntry, at.TokenEntry = at.UserEntry || e.UGID == user, at.TokenEntry || e.UGID == c.tokenID
			}
		}
		out[path] = at
	}
	return out, nil
}
