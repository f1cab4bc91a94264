package pveapi

import (
	"cmp"
	"slices"
	"strings"
)

func accessRoutes() []route {
	return []route{
		{method: "GET", path: "/access/permissions", params: []string{"path", "userid"}, handle: permissions},
		{method: "GET", path: "/access/acl", handle: acl},
		{method: "GET", path: "/cluster/options", handle: options},
	}
}

// permissions maps each path to the caller's privileges; the values say whether they
// propagate. With a path it returns only that one, even without privileges
// (pve-access-control, API2/AccessControl.pm).
func permissions(c *call) (any, error) {
	user := cmp.Or(c.params["userid"], c.user)
	owner, _, _ := strings.Cut(user, "!")
	if user != c.user && owner != c.user {
		if err := c.Check(c.user, "/access", "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	effective := map[string]map[string]bool{}
	if path := c.params["path"]; path != "" {
		effective[path] = c.Permissions(user, path)
	} else {
		effective = c.EffectivePermissions(user)
	}
	out := object{}
	for path, privileges := range effective {
		held := object{}
		for p, propagates := range privileges {
			held[p] = bit(propagates)
		}
		out[path] = held
	}
	return out, nil
}

func acl(c *call) (any, error) {
	all := c.may("/access", "Sys.Audit", "Permissions.Modify")
	list := []object{}
	for _, a := range c.ACLs() {
		if !all && !c.may(a.Path, "Permissions.Modify") {
			continue
		}
		kind := "user"
		if strings.Contains(a.Who, "!") {
			kind = "token"
		}
		list = append(list, object{"path": a.Path, "ugid": a.Who, "roleid": a.Role, "propagate": bit(a.Propagate), "type": kind})
	}
	return list, nil
}

// options are the datacenter's; what the caller may use is shown to everybody
// (pve-manager, API2/Cluster.pm, get_options).
func options(c *call) (any, error) {
	out := object{"allowed-tags": c.AllowedTags(c.user)}
	if registered := c.RegisteredTags(); len(registered) > 0 && c.may("/", "Sys.Audit") {
		out["registered-tags"] = registered
	}
	if a := c.TagAccess(); a.Allow != "" && c.may("/", "Sys.Audit") {
		out["user-tag-access"] = object{"user-allow": a.Allow, "user-allow-list": slices.AppendSeq([]string{}, slices.Values(a.List))}
	}
	return out, nil
}
