package survey

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Grant gives a role at a path.
type Grant struct {
	Path       string
	Role       string
	Privileges []string // of the role, sorted
	User       bool     // gives it to the token's user
	Token      bool     // and to the token
	Flat       bool     // without propagation
}

// Grants are what a token needs to be granted, by path.
type Grants []Grant

// kept grants again what a first entry at a path would take away.
func kept(at cluster.Standing, token, path string, needed []string, toUser bool) Grants {
	var out Grants
	user := userOf(token)
	if !at.Whole {
		at.User = at.Token // at least that
	}
	for _, flat := range []bool{false, true} {
		var ofUser, ofToken []string
		if toUser && !at.UserEntry {
			ofUser = beside(at.User, path, needed, flat)
		}
		if !at.TokenEntry {
			ofToken = beside(at.Token, path, needed, flat)
		}
		if slices.Equal(ofUser, ofToken) && len(ofUser) > 0 {
			out = append(out, Grant{Path: path, Role: keepName(user, path, flat), Privileges: ofUser, User: true, Token: true, Flat: flat})
			continue
		}
		if len(ofUser) > 0 {
			out = append(out, Grant{Path: path, Role: keepName(user, path, flat), Privileges: ofUser, User: true, Flat: flat})
		}
		if len(ofToken) > 0 {
			out = append(out, Grant{Path: path, Role: keepName(token, path, flat), Privileges: ofToken, Token: true, Flat: flat})
		}
	}
	return out
}

func userOf(token string) string {
	user, _, _ := strings.Cut(token, "!")
	return user
}

// beside is what is held at a path but not needed there, sorted.
func beside(held cluster.Privileges, path string, needed []string, flat bool) []string {
	var out []string
	for p, propagates := range held {
		if propagates != flat && countsAt(path, p) && !slices.Contains(needed, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// countsAt says whether a privilege from above has any effect at a path (pve-access-control,
// RPCEnvironment.pm, compute_api_permission).
func countsAt(path, privilege string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	kind, known := map[string]string{"vms": "VM.", "storage": "Datastore.", "nodes": "Sys.", "sdn": "SDN.", "mapping": "Mapping."}[top]
	return !known || strings.HasPrefix(privilege, kind) || privilege == "Permissions.Modify"
}

var noName = regexp.MustCompile(`[^A-Za-z0-9.]+`) // in role names (AccessControl.pm, verify_rolename)

// keepName is a role for that user or token and that path only, so that no other gets more by it.
func keepName(who, path string, flat bool) string {
	name := "RecastKeep-" + strings.Trim(noName.ReplaceAllString(who+path, "-"), "-")
	if flat {
		name += "-flat"
	}
	return name
}

// distinct renames roles that have the same name but different privileges.
func (g Grants) distinct() Grants {
	first := map[string][]string{}
	for i, grant := range g {
		if same, taken := first[grant.Role]; taken && !slices.Equal(same, grant.Privileges) {
			g[i].Role += "-" + grant.Path[strings.LastIndex(grant.Path, "/")+1:]
			continue
		}
		first[grant.Role] = grant.Privileges
	}
	return g
}

// Lines are the commands that create the roles and grant them, as root on any Proxmox node;
// Proxmox VE 8 and 9 accept the same. A token with privilege separation has only what both it
// and its user were granted (RPCEnvironment.pm, $compile_acl_path), so both get the role.
func (g Grants) Lines(token string) []string {
	var lines, roles []string
	for _, grant := range g {
		if !slices.Contains(roles, grant.Role) {
			roles = append(roles, grant.Role)
			lines = append(lines,
				fmt.Sprintf("pveum role add %s", grant.Role), // a harmless error if it exists
				fmt.Sprintf("pveum role modify %s --append 1 --privs %s", grant.Role, strings.Join(grant.Privileges, ",")))
		}
	}
	for _, grant := range g {
		who, flat := "", ""
		if grant.User && userOf(token) != "root@pam" { // root@pam may do everything, and can't be given a role
			who += " --users " + userOf(token)
		}
		if grant.Token {
			who += " --tokens '" + token + "'"
		}
		if grant.Flat {
			flat = " --propagate 0"
		}
		if who != "" {
			lines = append(lines, fmt.Sprintf("pveum acl modify %s%s --roles %s%s", grant.Path, who, grant.Role, flat))
		}
	}
	return lines
}

// Caution warns about a danger of the grants; "" if there is none.
func (m Missing) Caution() string {
	user := userOf(m.Token)
	if len(m.Lacks) == 0 || user == "root@pam" || !slices.ContainsFunc(m.paths(), func(p string) bool { return !m.standing[p].Whole }) {
		return ""
	}
	return fmt.Sprintf("What %[1]s may do already can't be seen. If it was granted anything, itself or by a group (pveum user permissions %[1]s), "+
		"the lines could take that away: leave \"--users %[1]s\" out of them and run recast doctor again, which says then what it lacks.", user)
}

// Grants grants all that is needed at each path where something is missing, and first what the
// token and its user have there from above: an entry of their own overrides those above it, and
// those of the user's groups at the same path (pve-access-control, AccessControl.pm, roles).
func (m Missing) Grants() Grants {
	var out Grants
	for _, path := range m.paths() {
		at, needed := m.standing[path], m.needs.privilegesAt(path)
		// A user who has all of it gets no more.
		toUser := !at.Whole || slices.ContainsFunc(needed, func(p string) bool { return !at.User[p] })
		out = append(out, kept(at, m.Token, path, needed, toUser)...)
		out = append(out, Grant{Path: path, Role: roleName(path, needed), Privileges: needed, User: toUser, Token: true})
	}
	return out.distinct()
}

// Grants grants all needs to a token and a user that have nothing.
func (n Needs) Grants() Grants {
	var out Grants
	for _, path := range n.Paths() {
		privileges := n.privilegesAt(path)
		out = append(out, Grant{Path: path, Role: roleName(path, privileges), Privileges: privileges, User: true, Token: true})
	}
	return out.distinct()
}

// privilegesAt is what an entry at path must hold: what is granted there, and what comes from
// above for that path or one below.
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

// roleName is the same for the same work, so that paths share a role. A token that only rolls
// does not get the role that deletes ISOs.
func roleName(path string, privileges []string) string {
	has := func(p string) bool { return slices.Contains(privileges, p) }
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case top == "":
		return "RecastCluster"
	case top != "storage":
		return map[string]string{"vms": "RecastVMs", "nodes": "RecastNodes", "access": "RecastAccess", "sdn": "RecastNetwork", "mapping": "RecastMappings", "pool": "RecastPools"}[top]
	case has("Datastore.Allocate"):
		return "RecastPrune"
	case has("Datastore.AllocateTemplate") && has("Datastore.AllocateSpace"):
		return "RecastStorage"
	case has("Datastore.AllocateTemplate"):
		return "RecastISOs"
	case has("Datastore.AllocateSpace"):
		return "RecastDisks"
	}
	return "RecastMedia"
}
