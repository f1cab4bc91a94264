package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

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
	return out.Distinct()
}

// Grants grants all needs to a token and a user that have nothing.
func (n Needs) Grants() Grants {
	var out Grants
	for _, path := range n.Paths() {
		privileges := n.privilegesAt(path)
		out = append(out, Grant{Path: path, Role: roleName(path, privileges), Privileges: privileges, User: true, Token: true})
	}
	return out.Distinct()
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
