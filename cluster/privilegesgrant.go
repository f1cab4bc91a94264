package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Grant gives a token a role at a path.
type Grant struct {
	Path       string   `json:"path"`
	Role       string   `json:"role"`
	Privileges []string `json:"privileges"` // of the role, sorted
}

// Grants are what a token is to be given, by path.
type Grants []Grant

// Grants gives all that is needed at each path where something is missing. It
// is never only what is missing: an entry at a path takes the place of those
// above it (pve-access-control, AccessControl.pm, roles).
func (m Missing) Grants() Grants {
	var paths []string
	for _, l := range m.Lacks {
		if !slices.Contains(paths, l.At) {
			paths = append(paths, l.At)
		}
	}
	return m.needs.grants(paths)
}

// Grants gives all of the needs.
func (n Needs) Grants() Grants {
	return n.grants(n.Paths())
}

func (n Needs) grants(paths []string) Grants {
	var out Grants
	for _, path := range paths {
		privileges := n.privilegesAt(path)
		out = append(out, Grant{Path: path, Role: roleName(path, privileges), Privileges: privileges})
	}
	return out
}

// privilegesAt is what an entry at path must hold: what is granted there, and
// what comes from above for that path or one below.
func (n Needs) privilegesAt(path string) []string {
	set := map[string]bool{}
	for _, need := range n {
		wanted := need.Path == path
		if isBelow(path, need.Path) {
			wanted = slices.ContainsFunc(need.spots, func(s spot) bool { return s.path == path || isBelow(s.path, path) })
		}
		if wanted {
			set[need.Privilege] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func isBelow(path, above string) bool {
	return path != above && strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
}

// roleName is the same for the same privileges, so that paths share a role.
func roleName(path string, privileges []string) string {
	has := func(p string) bool { return slices.Contains(privileges, p) }
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case top == "":
		return "RecastCluster"
	case top != "storage":
		return map[string]string{"vms": "RecastVMs", "nodes": "RecastNodes", "access": "RecastAccess", "sdn": "RecastNetwork", "mapping": "RecastMappings"}[top]
	case has("Datastore.AllocateTemplate") && has("Datastore.AllocateSpace"):
		return "RecastStorage"
	case has("Datastore.AllocateTemplate"):
		return "RecastISOs"
	case has("Datastore.AllocateSpace"):
		return "RecastDisks"
	}
	return "RecastMedia"
}

// Lines are the commands that make the roles and give them, as root on any
// Proxmox node; Proxmox VE 8 and 9 take the same. A token with privilege
// separation has what both it and its user were granted
// (RPCEnvironment.pm, $compile_acl_path), so both get the role.
func (g Grants) Lines(token string) []string {
	var lines, roles []string
	for _, grant := range g {
		if !slices.Contains(roles, grant.Role) {
			roles = append(roles, grant.Role)
			lines = append(lines,
				fmt.Sprintf("pveum role add %s", grant.Role), // an error where it exists, and no harm
				fmt.Sprintf("pveum role modify %s --append 1 --privs %s", grant.Role, strings.Join(grant.Privileges, ",")))
		}
	}
	user, _, _ := strings.Cut(token, "!")
	users := " --users " + user
	if user == "root@pam" { // may do everything already, and can't be given a role
		users = ""
	}
	for _, grant := range g {
		lines = append(lines, fmt.Sprintf("pveum acl modify %s%s --tokens '%s' --roles %s", grant.Path, users, token, grant.Role))
	}
	return lines
}

// NewToken are the commands that make a user and its token, before any Lines.
func NewToken(token string) []string {
	user, name, _ := strings.Cut(token, "!")
	lines := []string{fmt.Sprintf("pveum user add %s", user), fmt.Sprintf("pveum user token add %s %s --privsep 1", user, name)}
	if strings.HasSuffix(user, "@pam") {
		return lines[1:] // a user of the system, root perhaps
	}
	return lines
}
