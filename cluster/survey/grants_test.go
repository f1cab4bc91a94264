package survey

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

type entry struct {
	path, who  string // "recast@pve", "recast@pve!roll", or "@admins", a group of recast@pve
	privileges string
	flat       bool
}

// acl is the list as Proxmox evaluates it (AccessControl.pm, roles; RPCEnvironment.pm).
type acl []entry

const keptUser, keptToken = "recast@pve", "recast@pve!roll"

func (acl) TokenID() string { return keptToken }

// of is what the names have at a path: the deepest entry counts, and at each path the first
// name that has one, so that a user's own comes before a group's.
func (a acl) of(path string, names ...string) cluster.Privileges {
	held := cluster.Privileges{}
	for _, at := range pathAndAbove(path) {
		for _, who := range names {
			for _, e := range a {
				if e.path == at && e.who == who && (!e.flat || at == path) {
					for p := range strings.FieldsSeq(e.privileges) {
						held[p] = held[p] || !e.flat
					}
				}
			}
			if len(held) > 0 {
				return held
			}
		}
	}
	return held
}

// pathAndAbove returns "/a/b", "/a", "/".
func pathAndAbove(path string) []string {
	out := []string{path}
	for path != "/" {
		path = path[:strings.LastIndex(path, "/")]
		if path == "" {
			path = "/"
		}
		out = append(out, path)
	}
	return out
}

func (a acl) user(path string) cluster.Privileges { return a.of(path, keptUser, "@admins") }

func (a acl) Permissions(_ context.Context, path string) (cluster.Privileges, error) {
	user, both := a.user(path), cluster.Privileges{}
	for p, propagates := range a.of(path, keptToken) {
		if ofUser, has := user[p]; has {
			both[p] = propagates && ofUser
		}
	}
	return both, nil
}

func (a acl) Standing(ctx context.Context, paths []string) (map[string]cluster.Standing, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	access, _ := a.Permissions(ctx, "/access")
	_, whole := access["Sys.Audit"]
	out := map[string]cluster.Standing{}
	for _, path := range paths {
		at := cluster.Standing{Whole: whole}
		at.Token, _ = a.Permissions(ctx, path)
		if whole {
			at.User = a.user(path)
			at.UserEntry = slices.ContainsFunc(a, func(e entry) bool { return e.path == path && e.who == keptUser && !e.flat })
			at.TokenEntry = slices.ContainsFunc(a, func(e entry) bool { return e.path == path && e.who == keptToken && !e.flat })
		}
		out[path] = at
	}
	return out, nil
}

func (a acl) obey(t *testing.T, lines []string) acl {
	t.Helper()
	a = slices.Clone(a)
	roles := map[string]string{}
	for _, line := range lines {
		words := strings.Fields(line)
		option := func(name string) string {
			if i := slices.Index(words, name); i > 0 {
				return strings.Trim(words[i+1], "'")
			}
			return ""
		}
		switch strings.Join(words[:3], " ") {
		case "pveum role add":
		case "pveum role modify":
			roles[words[3]] += " " + strings.ReplaceAll(option("--privs"), ",", " ")
		case "pveum acl modify":
			for _, who := range []string{option("--users"), option("--tokens")} {
				if who != "" {
					a = append(a, entry{words[3], who, roles[option("--roles")], option("--propagate") == "0"})
				}
			}
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return a
}

// TestGrantsTakeNothingAway: an entry at a path overrides those from above, and a group's.
// Following the hint must not take a right away.
func TestGrantsTakeNothingAway(t *testing.T) {
	t.Parallel()
	const (
		roll  = "Sys.Audit SDN.Use Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit VM.Allocate VM.Audit VM.Config.Memory VM.Config.Options"
		admin = roll + " Sys.Modify Permissions.Modify VM.Console Datastore.Allocate Sys.AccessNetwork VM.PowerMgmt VM.Config.Disk VM.Config.CDROM"
	)
	rolling := NeedsToRoll([]string{"isos"}, []string{"pve1"}, cluster.Reimage)
	pruning := NeedsToPrune([]string{"isos"}, nil)
	optional := OptionalPrivileges([]string{"isos"}, nil, []string{"pve1"})
	both := func(path, privileges string) acl {
		return acl{{path, keptUser, privileges, false}, {path, keptToken, privileges, false}}
	}
	type row struct {
		held  acl
		needs Needs
		keeps []string // roles that keep existing privileges, of the token and of the user
	}
	must.Each(t, map[string]row{
		"nothing":                                 {nil, rolling, nil},
		"disks' storage that has the ISOs, too":   {both("/", roll), pruning, []string{"RecastKeep-recast-pve-storage-isos"}},
		"disks' storage, option of pruning":       {both("/", roll), rolling.With(optional[1].Needs), []string{"RecastKeep-recast-pve-storage-isos"}},
		"option of downloading":                   {both("/", roll+" Sys.Modify"), optional[0].Needs, []string{"RecastKeep-recast-pve-nodes-pve1"}},
		"prune after the roll's grants":           {acl(nil).obey(t, rolling.Grants().Lines(keptToken)), pruning, nil}, // it already has an entry there
		"an entry that another joins":             {append(both("/", "Sys.Audit VM.Clone"), both("/vms", "VM.Console VM.Audit")...), rolling, nil},
		"a user by a group at the same path":      {append(acl{{"/", "@admins", "Sys.Audit Pool.Audit Sys.Console", false}}, both("/vms", roll)...), rolling, nil},
		"an administrator by a group":             {acl{{"/", "@admins", admin, false}, {"/", keptToken, roll, false}}, pruning, []string{"RecastKeep-recast-pve-roll-storage-isos"}},
		"a group's flat entry at the root":        {acl{{"/", "@admins", "Sys.Audit Pool.Audit", true}, {"/access", keptUser, roll, false}, {"/access", keptToken, roll, false}}, rolling, []string{"RecastKeep-recast-pve-flat"}},
		"a token with less than its user":         {acl{{"/", keptUser, roll + " VM.Console", false}, {"/", keptToken, roll, false}}, rolling, []string{"RecastKeep-recast-pve-vms"}},
		"an entry in the way, with more of above": {append(both("/", admin), both("/vms/9001", "VM.Console")...), rolling, nil},
	}, func(t *testing.T, tc row) {
		missing, err := tc.needs.Missing(t.Context(), tc.held)
		must.Do(t, err)
		lines := missing.Grants().Lines(missing.Token)
		now := tc.held.obey(t, lines)
		whole := missing.Caution() == ""
		for _, path := range []string{"/", "/access", "/nodes", "/nodes/pve1", "/sdn/zones/localnetwork/vmbr0", "/storage", "/storage/isos", "/storage/fast", "/vms", "/vms/9001", "/vms/9002"} {
			before, _ := tc.held.Permissions(t.Context(), path)
			after, _ := now.Permissions(t.Context(), path)
			requireKept(t, "the token", path, before, after)
			if whole {
				requireKept(t, "its user", path, tc.held.user(path), now.user(path))
			}
		}
		if still, err := tc.needs.Missing(t.Context(), now); whole && (err != nil || len(still.Lacks) > 0) {
			t.Errorf("still missing: %s, %v", still, err)
		}
		var keeps []string
		for _, line := range lines {
			if role, is := strings.CutPrefix(line, "pveum role add RecastKeep"); is {
				keeps = append(keeps, "RecastKeep"+role)
			}
		}
		slices.Sort(keeps)
		slices.Sort(tc.keeps)
		must.Equal(t, "roles that keep", tc.keeps, keeps)
	})
}

// requireKept requires that everything that counts at a path is still there.
func requireKept(t *testing.T, who, path string, before, after cluster.Privileges) {
	t.Helper()
	for _, p := range slices.Sorted(maps.Keys(before)) {
		if propagates, has := after[p]; countsAt(path, p) && (!has || before[p] && !propagates) {
			t.Errorf("%s had %s on %s", who, p, path)
		}
	}
}
