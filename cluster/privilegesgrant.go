package cluster

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Standing is what a token and its user have at a path of the access tree, from
// entries there or above.
type Standing struct {
	Token Privileges // no more than User has, if the token's privileges are separated
	User  Privileges
	// TokenEntry and UserEntry say who has an entry at that very path: another
	// role joins it, where a first one takes the place of all that comes from above.
	TokenEntry, UserEntry bool
	// Whole says that User and the entries could be read.
	Whole bool
}

// Grant gives a role at a path.
type Grant struct {
	Path       string
	Role       string
	Privileges []string // of the role, sorted
	User       bool     // gives it to the token's user
	Token      bool     // and to the token
	Flat       bool     // without propagation
}

// Grants are what a token is to be given, by path.
type Grants []Grant

// Grants gives all that is needed at each path where something is missing, and
// before that what the token and its user have there from above: an entry of
// theirs takes the place of those above it, and of those of the user's groups at
// the same path (pve-access-control, AccessControl.pm, roles).
func (m Missing) Grants() Grants {
	var out Grants
	for _, path := range m.paths() {
		at, needed := m.standing[path], m.needs.privilegesAt(path)
		// A user who has all of it is not given more.
		toUser := !at.Whole || slices.ContainsFunc(needed, func(p string) bool { return !at.User[p] })
		out = append(out, at.kept(m.Token, path, needed, toUser)...)
		out = append(out, Grant{Path: path, Role: roleName(path, needed), Privileges: needed, User: toUser, Token: true})
	}
	return out.distinct()
}

// Grants gives all of the needs to a token, and a user, that have nothing.
func (n Needs) Grants() Grants {
	var out Grants
	for _, path := range n.Paths() {
		privileges := n.privilegesAt(path)
		out = append(out, Grant{Path: path, Role: roleName(path, privileges), Privileges: privileges, User: true, Token: true})
	}
	return out.distinct()
}

// kept are the grants of what would be lost by a first entry at a path.
func (at Standing) kept(token, path string, needed []string, toUser bool) Grants {
	var out Grants
	user := userOf(token)
	if !at.Whole {
		at.User = at.Token // that much at least
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

// beside is what is held at a path apart from what is needed there, sorted.
func beside(held Privileges, path string, needed []string, flat bool) []string {
	var out []string
	for p, propagates := range held {
		if propagates != flat && countsAt(path, p) && !slices.Contains(needed, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// countsAt says whether a privilege that comes from above means anything at a
// path (pve-access-control, RPCEnvironment.pm, compute_api_permission).
func countsAt(path, privilege string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	kind, known := map[string]string{"vms": "VM.", "storage": "Datastore.", "nodes": "Sys.", "sdn": "SDN.", "mapping": "Mapping."}[top]
	return !known || strings.HasPrefix(privilege, kind) || privilege == "Permissions.Modify"
}

var noName = regexp.MustCompile(`[^A-Za-z0-9.]+`) // in roles' names (AccessControl.pm, verify_rolename)

// keepName is a role of that somebody and that path alone: nobody else gets more by it.
func keepName(who, path string, flat bool) string {
	name := "RecastKeep-" + strings.Trim(noName.ReplaceAllString(who+path, "-"), "-")
	if flat {
		name += "-flat"
	}
	return name
}

// distinct gives roles of one name and different privileges names of their own.
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

// roleName is the same for the same work, so that paths share a role. The one
// that deletes ISOs is nobody's who only rolls.
func roleName(path string, privileges []string) string {
	has := func(p string) bool { return slices.Contains(privileges, p) }
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case top == "":
		return "RecastCluster"
	case top != "storage":
		return map[string]string{"vms": "RecastVMs", "nodes": "RecastNodes", "access": "RecastAccess", "sdn": "RecastNetwork", "mapping": "RecastMappings"}[top]
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
	for _, grant := range g {
		who, flat := "", ""
		if grant.User && userOf(token) != "root@pam" { // who may do everything already, and can't be given a role
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

// Caution says what to mind before the grants are given; "" nothing.
func (m Missing) Caution() string {
	user := userOf(m.Token)
	if len(m.Lacks) == 0 || user == "root@pam" || !slices.ContainsFunc(m.paths(), func(p string) bool { return !m.standing[p].Whole }) {
		return ""
	}
	return fmt.Sprintf("What %[1]s may do already can't be seen. If it was granted anything, itself or by a group (pveum user permissions %[1]s), "+
		"the lines could take that away: leave \"--users %[1]s\" out of them and run recast doctor again, which says then what it lacks.", user)
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
