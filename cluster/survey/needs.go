package survey

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Lack is a privilege that is missing at a path.
type Lack struct {
	Need
	At string // where it is missing: the need's path, or a path below, whose own entry overrides the one above
	// Overridden says that the need's path has the privilege, but At does not.
	Overridden bool
	// Flat says that the privilege was granted at the need's path without propagation.
	Flat bool
}

// Remedy says what else there is to do; "" if granting the privilege is enough.
func (l Lack) Remedy() string {
	switch {
	case l.Overridden:
		return fmt.Sprintf("%s has it, but an entry at %s takes the place of that: remove that one, or give it all that is needed", l.Path, l.At)
	case l.Flat:
		return fmt.Sprintf("it was granted at %s without propagation, so it does not hold below", l.Path)
	}
	return ""
}

// Missing is what a token lacks.
type Missing struct {
	Token string
	Lacks []Lack // by path and privilege

	needs    Needs
	standing map[string]cluster.Standing // at the paths of Lacks
}

// Held lists the needed privileges at a path that the token has.
func (m Missing) Held(path string) []string {
	var out []string
	for _, n := range m.needs {
		if _, lacks := m.Lack(n); n.Path == path && !lacks {
			out = append(out, n.Privilege)
		}
	}
	return out
}

// Lack finds a need among the missing ones.
func (m Missing) Lack(n Need) (Lack, bool) {
	return cluster.Find(m.Lacks, func(l Lack) bool { return compareNeeds(l.Need, n) == 0 })
}

// String lists what is missing by path: "VM.Audit, VM.Allocate on /vms; …".
func (m Missing) String() string {
	by := map[string][]string{}
	for _, l := range m.Lacks {
		if !slices.Contains(by[l.At], l.Privilege) {
			by[l.At] = append(by[l.At], l.Privilege)
		}
	}
	parts := cluster.Each(m.paths(), func(path string) string { return strings.Join(by[path], ", ") + " on " + path })
	return strings.Join(parts, "; ")
}

// paths are the paths where something is missing, in the order of Lacks.
func (m Missing) paths() []string {
	return slices.Compact(cluster.Each(m.Lacks, func(l Lack) string { return l.At })) // Lacks is sorted by At
}

// Need is one privilege that a piece of work needs, and why.
type Need struct {
	Path      string   `json:"path"` // where to grant it; Proxmox hands it down to the paths below
	Privilege string   `json:"privilege"`
	Why       []string `json:"why"`

	spots []spot
}

// Needs are all privileges that a piece of work needs, by path and privilege.
type Needs []Need

// Check refuses unless the token has every needed privilege. The refusal's hint has the commands that grant the
// missing ones.
func (n Needs) Check(ctx context.Context, access cluster.Access) error {
	m, err := n.Missing(ctx, access)
	if err != nil || len(m.Lacks) == 0 {
		return err
	}
	err = fault.TokenPrivileges.Refusedf("the Proxmox token lacks privileges: %s", m)
	lines := append(m.Grants().Lines(m.Token), m.Caution())
	return fault.WithHint(err, "as root on a Proxmox node, where a role that exists already is no problem:\n  %s\nrecast doctor says what each is for", strings.TrimSpace(strings.Join(lines, "\n  ")))
}

// Missing reads the token's privileges and lists the needs that it lacks.
func (n Needs) Missing(ctx context.Context, access cluster.Access) (Missing, error) {
	paths := n.paths()
	held := make([]cluster.Privileges, len(paths))
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for i, path := range paths {
		g.Go(func() (err error) {
			held[i], err = access.Permissions(asking, path)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Missing{}, fmt.Errorf("read the token's permissions: %w", err)
	}
	granted := make(map[string]cluster.Privileges, len(paths))
	for i, path := range paths {
		granted[path] = held[i]
	}
	m := n.compare(granted, access.TokenID())
	if len(m.Lacks) == 0 {
		return m, nil
	}
	standing, err := access.Standing(ctx, m.paths())
	if err != nil {
		return Missing{}, fmt.Errorf("read what the token and its user have already: %w", err)
	}
	m.standing = standing
	return m, nil
}

// Paths are the paths where the needs must be granted, sorted.
func (n Needs) Paths() []string {
	return slices.Compact(cluster.Each(n, func(need Need) string { return need.Path })) // Needs are sorted by Path
}

// add adds a privilege that is granted at path and checked at the spots, or at path itself if there are none.
func (n *Needs) add(path, why string, spots []spot, privileges ...string) {
	if len(spots) == 0 {
		spots = []spot{{path: path}}
	}
	for _, privilege := range privileges {
		i, found := slices.BinarySearchFunc(*n, Need{Path: path, Privilege: privilege}, compareNeeds)
		if !found {
			*n = slices.Insert(*n, i, Need{Path: path, Privilege: privilege})
		}
		need := &(*n)[i]
		if !slices.Contains(need.Why, why) {
			need.Why = append(need.Why, why)
		}
		for _, s := range spots {
			if !slices.Contains(need.spots, s) {
				need.spots = append(need.spots, s)
			}
		}
	}
}

func (n *Needs) on(storages []string, why, privilege string) {
	for _, storage := range storages {
		n.add("/storage/"+storage, why, nil, privilege)
	}
}

func (n Needs) compare(granted map[string]cluster.Privileges, token string) Missing {
	m := Missing{Token: token, needs: n}
	for _, need := range n {
		failing := cluster.Where(need.spots, func(s spot) bool { return !s.held(need.Privilege, granted) })
		propagates, has := granted[need.Path][need.Privilege]
		switch {
		case len(failing) == 0:
		case !propagates:
			m.Lacks = append(m.Lacks, Lack{Need: need, At: need.Path, Flat: has})
		default:
			for _, s := range failing {
				m.Lacks = append(m.Lacks, Lack{Need: need, At: s.path, Overridden: s.path != need.Path})
			}
		}
	}
	slices.SortStableFunc(m.Lacks, func(a, b Lack) int {
		return cmp.Or(strings.Compare(a.At, b.At), strings.Compare(a.Privilege, b.Privilege))
	})
	return m
}

// paths are the paths whose permissions must be known, sorted.
func (n Needs) paths() []string {
	set := map[string]bool{}
	for _, need := range n {
		set[need.Path] = true
		for _, s := range need.spots {
			set[s.path] = true
			if s.or != "" {
				set[s.or] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func compareNeeds(a, b Need) int {
	return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Privilege, b.Privilege))
}

// readsAtOnce limits how many paths are read at a time.
const readsAtOnce = 8

// spot is where Proxmox checks a privilege.
type spot struct {
	path  string
	below bool   // for an object below path that does not exist yet: the privilege must propagate
	or    string // a pool, whose privileges also count
}

func (s spot) held(privilege string, granted map[string]cluster.Privileges) bool {
	if propagates, has := granted[s.path][privilege]; has && (propagates || !s.below) {
		return true
	}
	_, byPool := granted[s.or][privilege]
	return s.or != "" && byPool
}

// DownloadURL is the option that hosts download ISOs themselves. Sys.Audit and Sys.Modify on /
// are also enough (pve-storage, API2/Storage/Status.pm).
const DownloadURL = "download-url"

// Option is an ability that a roll can do without, and its needs.
type Option struct {
	Name    string
	Without string // what happens if it is not granted
	Needs   Needs  // beyond those of a roll
}

// OptionalPrivileges lists the abilities for which a token may have more privileges than a roll needs.
func OptionalPrivileges(isoStorages, diskStorages, hosts []string) []Option {
	var download, prune Needs
	for _, host := range hosts {
		// Since pve-access-control 8.1.2; a role with an unknown privilege can't be created.
		download.add("/nodes/"+host, "have the host download boot ISOs itself", nil, "Sys.AccessNetwork")
	}
	// API2/Storage/Content.pm requires no less to delete an ISO.
	prune.on(isoStorages, "delete boot ISOs that nothing uses", "Datastore.Allocate")
	prune.on(diskStorages, "delete disk images that nothing uses", "Datastore.Allocate")
	return []Option{
		{DownloadURL, "boot ISOs are uploaded from here", download},
		{"prune", "recast prune refuses, and prints the commands that grant it; a roll does not need it. It also lets the token delete any volume there", prune},
		{"claim in Proxmox", "the claim of a run is a Lease in Kubernetes, which serves where all nodes are upgraded in place", NeedsToClaim()},
	}
}

// With returns the needs of n and of others together.
func (n Needs) With(others Needs) Needs {
	out := slices.Clone(n)
	for _, o := range others {
		for _, why := range o.Why {
			out.add(o.Path, why, o.spots, o.Privilege)
		}
	}
	return out
}

// Of returns the part of m that is among the given needs.
func (m Missing) Of(some Needs) Missing {
	m.Lacks = slices.DeleteFunc(slices.Clone(m.Lacks), func(l Lack) bool {
		_, found := slices.BinarySearchFunc(some, l.Need, compareNeeds)
		return !found
	})
	return m
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

// Grants are what a token needs to be granted, by path.
type Grants []Grant

// kept returns the grants that give back what a first entry at a path would take away.
func kept(at cluster.Standing, token, path string, needed []string, toUser bool) Grants {
	var out Grants
	user := userOf(token)
	if !at.Whole {
		at.User = at.Token // the user has at least the token's privileges
	}
	for _, flat := range []bool{false, true} {
		var ofUser, ofToken []string
		if toUser && !at.UserEntry {
			ofUser = beside(at.User, path, needed, flat)
		}
		if !at.TokenEntry {
			ofToken = beside(at.Token, path, needed, flat)
		}
		same := slices.Equal(ofUser, ofToken)
		if len(ofUser) > 0 {
			out = append(out, Grant{Path: path, Role: keepName(user, path, flat), Privileges: ofUser, User: true, Token: same, Flat: flat})
		}
		if len(ofToken) > 0 && !same {
			out = append(out, Grant{Path: path, Role: keepName(token, path, flat), Privileges: ofToken, Token: true, Flat: flat})
		}
	}
	return out
}

func userOf(token string) string {
	user, _, _ := strings.Cut(token, "!")
	return user
}

// beside lists the privileges that are held at a path but not needed there, sorted.
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

// keepName names a role that only this user or token gets, and only at this path, so that nobody else gains
// privileges by it.
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

// Lines returns the commands that create the roles and grant them, as root on any Proxmox node; Proxmox VE 8 and 9
// accept the same. A token with privilege separation has only the privileges that both the token and its user were
// granted (RPCEnvironment.pm, $compile_acl_path), so both get the role.
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

// Grants returns, for each path where something is missing, grants of what the token and its user have there from
// above, and then of all that is needed: an entry of their own overrides the entries above it, and those of the
// user's groups at the same path (pve-access-control, AccessControl.pm, roles).
func (m Missing) Grants() Grants {
	var out Grants
	for _, path := range m.paths() {
		at, needed := m.standing[path], m.needs.privilegesAt(path)
		// A user who has all needed privileges gets no more.
		toUser := !at.Whole || slices.ContainsFunc(needed, func(p string) bool { return !at.User[p] })
		out = append(out, kept(at, m.Token, path, needed, toUser)...)
		out = append(out, Grant{Path: path, Role: roleName(path, needed), Privileges: needed, User: toUser, Token: true})
	}
	return out.distinct()
}

// Grants returns the grants of all needs for a token and a user that have nothing.
func (n Needs) Grants() Grants {
	var out Grants
	for _, path := range n.Paths() {
		privileges := n.privilegesAt(path)
		out = append(out, Grant{Path: path, Role: roleName(path, privileges), Privileges: privileges, User: true, Token: true})
	}
	return out.distinct()
}

// privilegesAt lists the privileges that an entry at path must hold: those that are granted there, and those that are
// granted above for this path or a path below it.
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

// roleName returns the same name for the same work, so that paths share a role. A token that only rolls does not get
// the role that deletes ISOs.
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
