package simtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// TestUpgradeKubernetesIsKilled at every point, and run again with its journal or without:
// the result is the same.
func TestUpgradeKubernetesIsKilled(t *testing.T) {
	long(t)
	var points []point
	t.Run("undisturbed", func(t *testing.T) {
		inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) {
			points, _ = lab.finish(t, upgradesKubernetes)
			lab.requireKubernetes(nextKubernetes)
		})
	})
	type kill struct {
		point
		elsewhere bool
	}
	var kills []kill
	var config, pull int
	for _, p := range points {
		config += strings.Count(p.name, "ApplyConfiguration")
		pull += strings.Count(p.name, "Pull")
		kills = append(kills, kill{p, false}, kill{p, true})
	}
	if config != 6 || pull < 7 {
		t.Errorf("%d configurations and %d pulls among %q", config, pull, points)
	}
	for _, k := range chosenKills(t, kills, 1, func(k kill) bool { return k.at%5 == 2 && k.elsewhere == (k.at%2 == 0) }) {
		where := map[bool]string{false: "here", true: "elsewhere"}[k.elsewhere]
		t.Run(fmt.Sprint(k.at, " ", strings.ReplaceAll(k.name, "/", " "), " ", where), func(t *testing.T) {
			inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) { lab.killUpgrade(t, k.point, k.elsewhere) })
		})
	}
}

// upgradesKubernetes upgrades everything to nextKubernetes.
func upgradesKubernetes(ctx context.Context, c *Client) error { return c.upgradeKubernetes(ctx) }

// killUpgrade kills an upgrade at a point and then finishes it.
func (l *Lab) killUpgrade(t *testing.T, at point, elsewhere bool) {
	t.Helper()
	boots := l.boots()
	l.diesAt(t, at, upgradesKubernetes)
	c := l.Client()
	if c.Run = "20000101-0001-feed"; elsewhere {
		l.loseJournal()
		c.Elsewhere = true
	}
	rep, err := c.UpgradeKubernetes(l.t.Context(), nextKubernetes, false)
	if err != nil {
		l.t.Fatalf("%v\nhints %q", err, fault.Hints(err))
	}
	if rep.Outcome != "done" && rep.Outcome != "nothing to do" {
		l.t.Errorf("%+v", rep)
	}
	l.requireKubernetes(nextKubernetes)
	if after := l.boots(); strings.Join(boots, " ") != strings.Join(after, " ") {
		l.t.Errorf("boots %q, then %q", boots, after)
	}
	l.RequireIntact()
}
