package pveapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// authenticate does the work of auth_handler of HTTPServer.pm: it accepts a ticket in the cookie, with a CSRF
// prevention token for changes, or else an API token. The permission to upload is checked before the file is read.
func (s *Server) authenticate(r *http.Request, q request) (user string, err error) {
	if q.open() {
		return "", nil
	}
	ticket := credential(r, "PVEAuthCookie")
	token := credential(r, "PVEAPIToken")
	switch {
	case ticket != "":
		if user, err = s.world.VerifyTicket(ticket); err != nil {
			return "", err
		}
	case token != "":
		i := strings.LastIndex(token, "=")
		if i < 0 {
			return "", unauthorized("no tokenid specified")
		}
		user = token[:i]
		if err := s.world.VerifyToken(user, token[i+1:]); err != nil {
			return "", err
		}
	default:
		return "", unauthorized("No ticket")
	}
	if q.isUpload() {
		return user, s.world.Check(user, "/storage/"+q.path[3], "Datastore.AllocateTemplate")
	}
	if ticket != "" && q.method != http.MethodGet {
		return user, s.world.VerifyCSRF(user, r.Header.Get("CSRFPreventionToken"))
	}
	return user, nil
}

// open reports whether a request needs no authentication.
func (q *request) open() bool {
	path := "/" + strings.Join(q.path, "/")
	return path == "/access/ticket" && (q.method == http.MethodGet || q.method == http.MethodPost)
}

func unauthorized(message string) error {
	return &world.Error{Status: http.StatusUnauthorized, Message: message}
}

// credential reads "name=value" or "name:value" from the cookie, or else from the Authorization header.
func credential(r *http.Request, name string) string {
	for _, header := range []string{"Cookie", "Authorization"} {
		if header == "Cookie" && name == "PVEAPIToken" {
			continue
		}
		for part := range strings.SplitSeq(r.Header.Get(header), ";") {
			part = strings.TrimSpace(part)
			value, ok := strings.CutPrefix(part, name)
			if !ok || value == "" || value[0] != '=' && value[0] != ':' {
				continue
			}
			if plain, err := url.PathUnescape(value[1:]); err == nil {
				return plain
			}
		}
	}
	return ""
}

func sessionRoutes() []route {
	return []route{
		{
			method: "POST", path: "/access/ticket", params: []string{"username", "password", "realm", "otp", "path", "privs", "tfa-challenge", "new-format"},
			need: []string{"username", "password"}, handle: login,
		},
		{method: "GET", path: "/access/ticket", handle: func(*call) (any, error) { return nil, nil }},
		{
			method: "PUT", path: "/access/password", params: []string{"userid", "password", "confirmation-password"},
			need: []string{"userid", "password"}, noToken: true, handle: changePassword,
		},
	}
}

func login(c *call) (any, error) {
	user := c.params["username"]
	if c.params["realm"] != "" {
		user += "@" + c.params["realm"]
	}
	t, err := c.Login(user, c.params["password"])
	if err != nil {
		return nil, err
	}
	out := object{"username": user, "ticket": t.Ticket, "CSRFPreventionToken": t.CSRF, "cap": c.capabilities(user)}
	if name := c.Cluster(); name != "" && c.Check(user, "/", "Sys.Audit") == nil {
		out["clustername"] = name
	}
	return out, nil
}

// capabilities does the work of compute_api_permission of RPCEnvironment.pm, for the web interface.
func (c *call) capabilities(user string) object {
	out := object{}
	for kind, path := range map[string]string{
		"vms": "/vms", "storage": "/storage", "access": "/access", "nodes": "/nodes", "dc": "/", "sdn": "/sdn", "mapping": "/mapping",
	} {
		held := object{}
		for privilege := range c.Permissions(user, path) {
			held[privilege] = 1
		}
		out[kind] = held
	}
	return out
}

// changePassword lets every user change their own password.
func changePassword(c *call) (any, error) {
	user := c.params["userid"]
	if user != c.user && c.user != "root@pam" {
		if err := c.Check(c.user, "/access", "User.Modify"); err != nil {
			return nil, err
		}
	}
	c.SetPassword(user, c.params["password"])
	return nil, nil
}

// refuseToken refuses API tokens.
func (c *call) refuseToken(r route) error {
	if !r.noToken || !strings.Contains(c.user, "!") {
		return nil
	}
	return &world.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("Permission check failed (URI '%s' not available with API token, need proper ticket.\n)", r.path)}
}

// late returns an error of auth_handler, which is answered after three seconds, with an empty body.
func late(err error) *earlyError {
	e, ok := errors.AsType[*world.Error](err)
	if !ok || !slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden}, e.Status) {
		return bare(http.StatusUnauthorized, err.Error())
	}
	return bare(e.Status, e.Message)
}

func accessRoutes() []route {
	return []route{
		{method: "GET", path: "/access/permissions", params: []string{"path", "userid"}, handle: permissions},
		{method: "GET", path: "/access/acl", handle: acl},
		{method: "GET", path: "/cluster/options", handle: options},
	}
}

// permissions maps each path to the caller's privileges; the values say whether a privilege propagates. With a path in
// the request, permissions returns only that path, even without privileges (pve-access-control, API2/AccessControl.pm).
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
	return listed(c.ACLs(), func(a world.ACL) object {
		if !all && !c.may(a.Path, "Permissions.Modify") {
			return nil
		}
		kind := "user"
		if strings.Contains(a.Who, "!") {
			kind = "token"
		}
		return object{"path": a.Path, "ugid": a.Who, "roleid": a.Role, "propagate": bit(a.Propagate), "type": kind}
	}), nil
}

// options returns the datacenter's options. The tags that the caller may set are shown to everybody (pve-manager,
// API2/Cluster.pm, get_options).
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
