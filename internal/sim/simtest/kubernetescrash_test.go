package simtest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// upgradeKilledAt upgrades Kubernetes and is killed at a point; 0 lets it finish.
func (l *Lab) upgradeKilledAt(ctx context.Context, at int) (points []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := l.Client()
	k := l.watch(c, at, cancel)
	defer l.Recorder.Hooks(nil, nil)
	err = c.upgradeKubernetes(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if at != 0 && !k.dead {
		err = errors.Join(err, errNotReached)
	}
	return k.points, err
}

// TestUpgradeKubernetesIsKilled at every point, and run again with its journal or without:
// the result is the same.
func TestUpgradeKubernetesIsKilled(t *testing.T) {
	long(t)
	var points []string
	t.Run("undisturbed", func(t *testing.T) {
		inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) {
			var err error
			points, err = lab.upgradeKilledAt(t.Context(), 0)
			must(t, err)
			lab.requireKubernetes(nextKubernetes)
		})
	})
	var config, pull int
	for i, point := range points {
		config += strings.Count(point, "ApplyConfiguration")
		pull += strings.Count(point, "Pull")
		if !*crashAll && i%5 != 1 {
			continue
		}
		for name, elsewhere := range map[string]bool{"here": false, "elsewhere": true} {
			if !*crashAll && elsewhere == (i%2 == 0) {
				continue
			}
			t.Run(strings.ReplaceAll(point, "/", " ")+" "+name, func(t *testing.T) {
				inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) { lab.killUpgrade(i+1, elsewhere) })
			})
		}
	}
	if config != 6 || pull < 7 {
		t.Errorf("%d configurations and %d pulls among %q", config, pull, points)
	}
}

// killUpgrade kills an upgrade at a point and then finishes it.
func (l *Lab) killUpgrade(at int, elsewhere bool) {
	l.t.Helper()
	boots := l.boots()
	if _, err := l.upgradeKilledAt(l.t.Context(), at); err == nil || errors.Is(err, errNotReached) {
		l.t.Skipf("not killed: %v", err) // a heartbeat shifted the points
	}
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
