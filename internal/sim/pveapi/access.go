package pveapi

import "strings"

func accessRoutes() []route {
	return []route{
		{method: "GET", path: "/access/permissions", params: []string{"path", "userid"}, handle: permissions},
		{method: "GET", path: "/access/acl", handle: acl},
	}
}

// permissions maps each path to the privileges held there; 1 says that they propagate.
func permissions(c *call) (any, error) {
	user := c.user
	if asked := c.params["userid"]; asked != "" && asked != user {
		if err := c.Check(c.user, "/access", "Sys.Audit"); err != nil {
			return nil, err
		}
		user = asked
	}
	var extra []string
	if c.params["path"] != "" {
		extra = append(extra, c.params["path"])
	}
	out := object{}
	for path, privileges := range c.Permissions(user, extra...) {
		if len(extra) > 0 && path != extra[0] {
			continue
		}
		held := object{}
		for _, p := range privileges {
			held[p] = 1
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
