package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/fault"
)

// TestSettledIsRevoked: a sign that another system runs revokes that a node has settled; a failed
// read does not.
func TestSettledIsRevoked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		just  bool // the wait has just ended
		lacks string
		err   error
		want  bool
	}{
		"it was just seen":     {just: true, lacks: "not asked", want: true},
		"nothing is missing":   {want: true},
		"something is missing": {lacks: "its Node is not Ready"},
		"no answer":            {err: errors.New("connection refused"), want: true},
		"its old system":       {err: fmt.Errorf("%w: v1 → v2", errRolledBack)},
		"another system":       {err: fmt.Errorf("%w: v1 → v2", errOtherSystem)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := (&Roller{}).node(rolling.Node{})
			n.settledAt = time.Now().Add(-rolling.JustNow)
			if c.just {
				n.settledAt = time.Now()
			}
			got, err := n.settled(t.Context(), func(context.Context) (string, error) { return c.lacks, c.err })
			if err != nil || (got != "") != c.want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestApplyHints: the hint that a machine waits for a configuration is given only if it has refused
// one.
func TestApplyHints(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer error
		waits  bool
	}{
		"refused": {fault.Refusedf("unknown keys"), true},
		"lost":    {fmt.Errorf("apply: %w", cluster.ErrLostAnswer), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := rollingtest.NewScene()
			all(begun, saved, fails("apply", c.answer))(s)
			s.Ready()
			err := nodeOf(s).applyToBlank(t.Context(), cluster.MachineDisk{}, cluster.KubernetesImages{})
			if !errors.Is(err, c.answer) || strings.Contains(strings.Join(fault.Hints(err), "\n"), "waits for one in maintenance mode") != c.waits {
				t.Errorf("%v, %q", err, fault.Hints(err))
			}
		})
	}
}
