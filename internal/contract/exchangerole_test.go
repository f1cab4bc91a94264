package contract

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestExchangeMinimal exchanges the system of a node with a token that has exactly the
// permissions in permissions.md for the strategy.
func TestExchangeMinimal(t *testing.T) {
	var chosen slice
	for _, u := range []unfinished{{cluster.Recreate, false}, {cluster.Recreate, true}, {cluster.Reimage, false}, {cluster.Reimage, true}} {
		chosen.story(t, u.String(), simulated, func(t *testing.T, s *server) {
			x, px := s.newNode(mixed()), s.minimal(string(u.strategy))
			x.interrupt(t, mortal(px, untilClosed), u.strategy)
			must(t, x.resume(px, u.strategy, "r1", u.putBack))
			u.check(t, x, u.putBack)
		})
	}
}

// minimal is a client of a token created with the commands of permissions.md.
func (s *server) minimal(strategy string) *pve.Client {
	s.t.Helper()
	const id = "recast@pve!roll"
	s.sim.world.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	commands := documented(strategy)
	if len(commands) < 4 {
		s.t.Fatalf("permissions.md shows only %v for %s", commands, strategy)
	}
	for _, g := range commands {
		path := g.path
		if path == "/storage/isos" { // it represents those of images.iso.storage
			path = "/storage/" + s.place.isoStorage
		}
		s.sim.world.AddRole(g.role, g.privileges...)
		for _, who := range []string{"recast@pve", id} {
			s.sim.world.Grant(world.ACL{Path: path, Who: who, Role: g.role, Propagate: true})
		}
	}
	o := s.trusting()
	o.Token = cluster.Secret(id + "=" + secret)
	return s.connect(o)
}
