package simtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
)

// slowFor is how long an API is slow, or refuses connections, at each step.
const slowFor = time.Minute

// slowRoll is one node that is rolled while an API is slow.
type slowRoll struct {
	node     string
	strategy cluster.Strategy
}

func (s slowRoll) String() string { return fmt.Sprintf("%s %s", s.strategy, s.node) }

func slowRolls() []slowRoll {
	return []slowRoll{{"wk1", cluster.Recreate}, {"cp2", cluster.Recreate}, {"wk1", cluster.InPlace}, {"cp2", cluster.InPlace}}
}

// play rolls the node, calls strike at the beginning of each step, and returns the final
// world.
func (s slowRoll) play(t *testing.T, secrets *talosapi.Cluster, strike func(l *Lab, c *Client)) (dump string, own *talosapi.Cluster) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := New(t, sim.Options{ControlPlanes: 3, Workers: 1, Talos: secrets})
		l.setRoll("strategy: " + string(s.strategy))
		l.Patch(everywhere)
		c := l.Client()
		strikes := 0
		c.Emit = func(e step.Event) {
			if !strings.Contains(e.Path, "/"+s.node) || e.Status != step.Started {
				return
			}
			strikes++
			strike(l, c)
		}
		must(t, c.roll(policyFor(s.node))(t.Context()))
		if strikes < 10 {
			t.Errorf("it was slow in %d steps only", strikes)
		}
		l.requireUpgraded(t, s.node)
		requireNoClaim(t, l)
		dump, own = l.settledDump(), l.Talos
	})
	return dump, own
}

// slowStrikes are the faults at the beginning of a step.
func slowStrikes() map[string]func(l *Lab, c *Client) {
	strikes := map[string]func(l *Lab, c *Client){
		"refused": func(l *Lab, c *Client) {
			c.Cut()
			time.AfterFunc(slowFor, c.Mend)
		},
	}
	for _, server := range sim.SlowServers {
		strikes["slow "+server] = func(l *Lab, _ *Client) {
			must(l.t, l.Slow(server, slowFor))
		}
	}
	return strikes
}

// TestSlowServers: while an API is slow, or refuses every connection, for a minute at
// every single step of a node, no step fails, and the final world is that of an
// undisturbed roll.
func TestSlowServers(t *testing.T) {
	for _, s := range slowRolls() {
		ref := sync.OnceValues(func() (string, *talosapi.Cluster) {
			return s.play(t, nil, func(*Lab, *Client) {})
		})
		for name, strike := range slowStrikes() {
			t.Run(s.String()+" "+name, func(t *testing.T) {
				long(t)
				t.Parallel()
				want, secrets := ref()
				got, _ := s.play(t, secrets, strike)
				requireSame(t, want, got, "the world differs from an undisturbed one (-undisturbed +here)")
			})
		}
	}
}
