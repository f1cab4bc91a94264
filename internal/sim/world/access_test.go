package world_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestPermissions follows pve-access-control: AccessControl.pm, roles, and RPCEnvironment.pm, $compile_acl_path.
func TestPermissions(t *testing.T) {
	t.Parallel()
	const user, token = "recast@pve", "recast@pve!lab"
	at := func(path, who, role string, propagate bool) world.ACL {
		return world.ACL{Path: path, Who: who, Role: role, Propagate: propagate}
	}
	admin := at("/", user, world.Administrator, true)
	type row struct {
		acls []world.ACL
		path string
		want map[string]bool
	}
	must.Each(t, map[string]row{
		"nothing":                                 {nil, "/vms", map[string]bool{}},
		"a token has not what its user has":       {[]world.ACL{admin}, "/vms", map[string]bool{}},
		"nor what its user has not":               {[]world.ACL{at("/", token, "Look", true)}, "/vms", map[string]bool{}},
		"both":                                    {[]world.ACL{admin, at("/", token, "Look", true)}, "/vms", map[string]bool{"VM.Audit": true}},
		"a path that does not exist":              {[]world.ACL{admin, at("/vms", token, "Look", true)}, "/vms/777", map[string]bool{"VM.Audit": true}},
		"without propagation at its path":         {[]world.ACL{admin, at("/vms", token, "Look", false)}, "/vms", map[string]bool{"VM.Audit": false}},
		"and not below":                           {[]world.ACL{admin, at("/vms", token, "Look", false)}, "/vms/777", map[string]bool{}},
		"and what is above goes on":               {[]world.ACL{admin, at("/", token, "Look", true), at("/vms", token, "Work", false)}, "/vms/777", map[string]bool{"VM.Audit": true}},
		"the user's may not propagate":            {[]world.ACL{at("/vms", user, "Look", false), at("/vms", token, "Look", true)}, "/vms", map[string]bool{"VM.Audit": false}},
		"an entry takes the place of those above": {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms/777", token, "Work", true)}, "/vms/777", map[string]bool{"VM.PowerMgmt": true}},
		"two at one path add up":                  {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms", token, "Work", false)}, "/vms", map[string]bool{"VM.Audit": true, "VM.PowerMgmt": false}},
		"NoAccess wins at its path":               {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms", token, world.NoAccess, true)}, "/vms", map[string]bool{}},
		"NoAccess at a lower path":                {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms/777", token, world.NoAccess, true)}, "/vms/777", map[string]bool{}},
		"a member of a pool":                      {[]world.ACL{admin, at("/pool/talos", token, "Work", true)}, "/vms/100", map[string]bool{"VM.PowerMgmt": false}},
		"no member":                               {[]world.ACL{admin, at("/pool/talos", token, "Work", true)}, "/vms/101", map[string]bool{}},
		"both by pool and by itself":              {[]world.ACL{admin, at("/pool/talos", token, "Work", true), at("/vms", token, "Look", true)}, "/vms/100", map[string]bool{"VM.PowerMgmt": false, "VM.Audit": true}},
		"NoAccess on the pool":                    {[]world.ACL{admin, at("/pool/talos", token, world.NoAccess, true), at("/vms", token, "Look", true)}, "/vms/100", map[string]bool{}},
		"a pool does not help NoAccess":           {[]world.ACL{admin, at("/pool/talos", token, "Work", true), at("/vms", token, world.NoAccess, true)}, "/vms/100", map[string]bool{}},
	}, func(t *testing.T, tc row) {
		synctest.Test(t, func(t *testing.T) {
			w := pooled(t)
			defer w.Close()
			w.AddRole("Look", "VM.Audit")
			w.AddRole("Work", "VM.PowerMgmt")
			w.AddToken(world.Token{ID: token, Privsep: true})
			for _, a := range tc.acls {
				w.Grant(a)
			}
			must.Equal(t, "Permissions", tc.want, w.Permissions(token, tc.path))
			if listed, found := w.EffectivePermissions(token)[tc.path]; found && len(tc.want) == 0 {
				t.Errorf("the list of all has %s, where nothing is held: %v", tc.path, listed)
			}
		})
	})
}

// pooled is a world with VM 100 in the pool talos, and VM 101 in none.
func pooled(t *testing.T) *world.World {
	t.Helper()
	w := world.New(world.Options{})
	w.AddHost("pve1")
	w.AddPool("talos")
	for id, pool := range map[int]string{100: "talos", 101: ""} {
		if _, err := w.CreateVM("", "pve1", world.CreateRequest{ID: id, Pool: pool, Config: map[string]string{"memory": "16"}}); err != nil {
			t.Fatal(err)
		}
	}
	w.Delay(time.Minute) // until their tasks end
	return w
}

func TestTokensOfUsers(t *testing.T) {
	t.Parallel()
	w := world.New(world.Options{})
	defer w.Close()
	w.AddRole("Look", "VM.Audit")
	w.AddToken(world.Token{ID: "a@pve!full"})
	w.AddToken(world.Token{ID: "root@pam!small", Privsep: true})
	w.Grant(world.ACL{Path: "/vms", Who: "a@pve", Role: "Look", Propagate: true})
	w.Grant(world.ACL{Path: "/vms", Who: "root@pam!small", Role: "Look", Propagate: true})
	w.Grant(world.ACL{Path: "/vms", Who: "a@pve!gone", Role: "Look", Propagate: true})
	look := map[string]bool{"VM.Audit": true}
	for id, want := range map[string]map[string]bool{"a@pve!full": look, "a@pve": look, "root@pam!small": look, "a@pve!gone": {}} {
		must.Equal(t, id, want, w.Permissions(id, "/vms"))
	}
	want := map[string]map[string]bool{"/vms": look}
	must.Equal(t, "EffectivePermissions", want, w.EffectivePermissions("a@pve"))
}

func TestRegisteredTags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const user = "a@pve"
		w := pooled(t)
		defer w.Close()
		w.AddRole("Work", "VM.Audit", "VM.Allocate", "VM.Config.Options")
		w.AddRole("Rule", "Sys.Modify")
		w.Grant(world.ACL{Path: "/vms", Who: user, Role: "Work", Propagate: true})
		w.RegisterTags("gold")
		tag := func(who, tags string) error {
			return w.SetConfig(who, "pve1", world.ChangeRequest{ID: 100, Set: map[string]string{"tags": tags}})
		}
		for _, step := range []struct{ who, tags, want string }{
			{user, "mine", ""},
			{user, "mine;gold", "Permission check failed (/, Sys.Modify for modifying tag 'gold')"},
			{"", "mine;gold", ""},
			{user, "other;gold", ""}, // unchanged
			{user, "other", "Permission check failed (/, Sys.Modify for modifying tag 'gold')"},
		} {
			must.Equal(t, "sets", step.want, message(tag(step.who, step.tags)))
		}
		must.Equal(t, "AllowedTags", []string{"other"}, w.AllowedTags(user))
		w.Grant(world.ACL{Path: "/", Who: user, Role: "Rule"})
		must.Equal(t, "AllowedTags", []string{"gold", "other"}, w.AllowedTags(user))
		must.Equal(t, "message", "", message(tag(user, "other")))
	})
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
