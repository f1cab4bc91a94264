package contract

import (
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// holds skips a test for which the token of a real server lacks a privilege. The
// simulator's token gets it.
func (s *server) holds(path string, wanted ...string) {
	s.t.Helper()
	for _, privilege := range wanted {
		if slices.Contains(s.privileges(path), privilege) {
			continue
		}
		if s.sim == nil {
			s.skipf("needs %s on %s", privilege, path)
		}
		s.sim.world.AddRole("Also"+privilege, append(role(), privilege)...)
		s.sim.world.Grant(world.ACL{Path: path, Who: simToken, Role: "Also" + privilege, Propagate: true})
	}
}

// lacks skips a test for which the token of a real server must not have a privilege. The
// simulator's token loses it.
func (s *server) lacks(path, privilege string) {
	s.t.Helper()
	if s.sim != nil {
		less := slices.DeleteFunc(role(), func(p string) bool { return p == privilege })
		s.sim.world.AddRole("Without"+privilege, less...)
		s.sim.world.Revoke(world.ACL{Path: "/", Who: simToken, Role: "Contract", Propagate: true})
		s.sim.world.Grant(world.ACL{Path: "/", Who: simToken, Role: "Without" + privilege, Propagate: true})
	}
	if slices.Contains(s.privileges(path), privilege) {
		s.skipf("needs a token without %s on %s", privilege, path)
	}
}

// without makes a token of the simulator's with the suite's privileges except one.
func (s *server) without(privilege string) (token string) {
	s.t.Helper()
	return s.only("/", slices.DeleteFunc(role(), func(p string) bool { return p == privilege })...)
}

// only makes a token of the simulator's with privileges at one path and below, and no
// others.
func (s *server) only(path string, privileges ...string) (token string) {
	s.t.Helper()
	token = "contract@pve!t" + strings.ReplaceAll(strings.Join(privileges, "-"), ".", "") + "=" + secret
	id, _, _ := strings.Cut(token, "=")
	s.sim.world.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	s.also(token, path, privileges...)
	return token
}

// also grants a token of the simulator's privileges at another path.
func (s *server) also(token, path string, privileges ...string) {
	id, _, _ := strings.Cut(token, "=")
	name := id + path
	s.sim.world.AddRole(name, privileges...)
	s.sim.world.Grant(world.ACL{Path: path, Who: id, Role: name, Propagate: true})
}
