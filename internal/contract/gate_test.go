package contract

import (
	"fmt"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestExchangeNoQuorum removes the quorum before each change of an exchange, or of its
// cancellation: Proxmox would destroy disks and then fail, so recast must not ask it to.
func TestExchangeNoQuorum(t *testing.T) {
	for _, u := range []unfinished{{cluster.Recreate, false}, {cluster.Reimage, false}, {cluster.Recreate, true}} {
		t.Run(u.String(), func(t *testing.T) {
			n := u.simulate(t, func(t *testing.T, s *server) int {
				x, px := u.begun(t, s), mortal(s.newClient(), immortal)
				must(t, u.goOn(x, px))
				return px.done
			})
			var chosen slice
			for k := range n {
				chosen.story(t, fmt.Sprintf("before change %d", k+1), simulated, func(t *testing.T, s *server) { u.isolated(t, s, k) })
			}
		})
	}
}

// begun is a node whose exchange, or cancellation, is about to begin.
func (u unfinished) begun(t *testing.T, s *server) *exchanged {
	t.Helper()
	x := u.node(t, s)
	if u.putBack {
		x.interrupt(t, mortal(s.newClient(), untilClosed), u.strategy)
	}
	return x
}

func (u unfinished) goOn(x *exchanged, px cluster.Proxmox) error {
	if u.putBack {
		return x.resume(px, u.strategy, "r1", true)
	}
	return x.exchange(px, u.strategy, "r1")
}

// isolated removes the quorum after k changes. TestExchangeResume covers how the exchange
// continues.
func (u unfinished) isolated(t *testing.T, s *server, k int) {
	t.Helper()
	x := u.begun(t, s)
	px := mortal(s.newClient(), func(_ int, m mutation) bool {
		if m.needsQuorum() && !s.sim.world.Quorate() {
			t.Errorf("without quorum it asks Proxmox to %s: %v %v", m.what, m.set, m.del)
		}
		return true
	})
	px.then = func(made int) { s.sim.world.SetQuorum(made != k) }
	s.sim.world.SetQuorum(k > 0)
	if err := u.goOn(x, px); err == nil || px.done != k {
		t.Errorf("without quorum after change %d it made %d, and ended with: %v", k, px.done, err)
	}
	x.wantAllThere(t)
	s.sim.world.SetQuorum(true)
}
