package roll

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestAwaitGate: before a node goes, an error that only a new configuration can fix is reported at
// once. After the node is back, the API may not be complete yet.
func TestAwaitGate(t *testing.T) {
	t.Parallel()
	refused := fault.Refusedf("the API has no such kind")
	type testCase struct {
		look       func(after time.Duration) (cluster.Judged, error)
		before     string
		beforeTook time.Duration
		after      string
		afterTook  time.Duration
	}
	must.Bubbles(t, map[string]testCase{
		"holds": {look: func(time.Duration) (cluster.Judged, error) { return failing(), nil }},
		"holds later, after an API that flaps": {
			look: func(d time.Duration) (cluster.Judged, error) {
				switch {
				case d < 10*time.Second:
					return failing("a"), nil
				case d < 20*time.Second:
					return cluster.Judged{}, errors.New("no answer")
				}
				return failing(), nil
			},
			beforeTook: 20 * time.Second, afterTook: 20 * time.Second,
		},
		"never": {
			look:       func(time.Duration) (cluster.Judged, error) { return failing("a"), nil },
			before:     `gate "v1 Node": gave up after 1m0s; last seen: 1 of 12: a: status.ok=false: context deadline exceeded`,
			beforeTook: time.Minute,
			after:      `wk1 is done and takes pods, but no other node is to follow: gate "v1 Node": gave up after 1m0s; last seen: 1 of 12: a: status.ok=false: context deadline exceeded`,
			afterTook:  time.Minute,
		},
		"refused": {
			look:      func(time.Duration) (cluster.Judged, error) { return cluster.Judged{}, refused },
			before:    `gate "v1 Node": the API has no such kind`,
			after:     `wk1 is done and takes pods, but no other node is to follow: gate "v1 Node": gave up after 1m0s; last seen: the API has no such kind: context deadline exceeded`,
			afterTook: time.Minute,
		},
		"credentials that are wrong": {
			look:   func(time.Duration) (cluster.Judged, error) { return cluster.Judged{}, fault.Configf("read kubeconfig") },
			before: `gate "v1 Node": read kubeconfig`,
			after:  `wk1 is done and takes pods, but no other node is to follow: gate "v1 Node": read kubeconfig`,
		},
	}, func(t *testing.T, c testCase) {
		for _, ask := range []struct {
			when, want string
			took       time.Duration
		}{{"before", c.before, c.beforeTook}, {"after", c.after, c.afterTook}} {
			start := time.Now()
			n := gatedNode(func() (cluster.Judged, error) { return c.look(time.Since(start)) }, nil, someObjects)
			steps := n.userGates.Before()
			if ask.when == "after" {
				steps = n.userGates.After()
			}
			err := steps[0].Do(t.Context())
			if errText(err) != ask.want || time.Since(start) != ask.took {
				t.Errorf("%s: after %s: %v", ask.when, time.Since(start), err)
			}
			if ask.when == "before" && strings.Contains(ask.want, "gave up") && fault.KindOf(err) != fault.Refused {
				t.Errorf("before: kind %d", fault.KindOf(err))
			}
		}
	})
}

func TestCommandGateKnowsWhatItIsAskedFor(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var got []string
		n := gatedNode(nil, func(env []string) (int, string, error) {
			got = append(got, strings.Join(env, " "))
			return max(0, 2-len(got)), "not yet", nil
		}, cluster.UserGate{TimeoutSeconds: 60, Command: &cluster.CommandGate{Args: []string{"check"}}})
		must.Do(t, errors.Join(n.userGates.Before()[0].Do(t.Context()), n.userGates.After()[0].Do(t.Context())))
		const env = "RECAST_CLUSTER=lab RECAST_RUN=r1 RECAST_NODE=wk1 RECAST_STRATEGY=recreate RECAST_WHEN="
		must.Equal(t, "got", []string{env + "before", env + "before", env + "after"}, got)
	})
}

// TestStepsOfGates: for which nodes the gates are asked, and when.
func TestStepsOfGates(t *testing.T) {
	t.Parallel()
	both, before := someObjects, someObjects
	before.BeforeOnly = true
	stale := observe.Drift{Reasons: []cluster.Reason{{Code: "extension-digest"}}}
	cordoned, media := observe.Drift{Reasons: []cluster.Reason{{Code: "cordoned"}}}, observe.Drift{Reasons: []cluster.Reason{{Code: "boot-media"}}}
	type testCase struct {
		gates []cluster.UserGate
		plan  planning.NodePlan
		want  string
	}
	must.Each(t, map[string]testCase{
		"none":                             {nil, planning.NodePlan{Strategy: cluster.Recreate, Drift: stale}, ""},
		"recreate":                         {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.Recreate, Drift: stale}, "ask-gates ask-gates-again"},
		"in place":                         {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InPlace, Drift: stale}, "ask-gates ask-gates-again"},
		"before only":                      {[]cluster.UserGate{before}, planning.NodePlan{Strategy: cluster.Reimage, Drift: stale}, "ask-gates"},
		"rollback":                         {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.Rollback, Drift: stale}, "ask-gates ask-gates-again"},
		"already out":                      {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.Recreate, Resume: true, Drift: stale}, "ask-gates-again"},
		"reset":                            {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InstallReset, Resume: true, Drift: stale}, "ask-gates-again"},
		"a cancelled replacement":          {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.PutBack, Resume: true, Drift: stale}, ""},
		"was out, and is to be uncordoned": {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InPlace, Drift: cordoned}, "ask-gates-again"},
		"never out":                        {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InPlace, Drift: media}, ""},
	}, func(t *testing.T, c testCase) {
		n := gatedNode(nil, nil, c.gates...)
		n.Plan = c.plan
		var got []string
		for _, s := range append(n.userGates.Before(), n.userGates.After()...) {
			got = append(got, s.ID)
			if !s.Yields {
				t.Errorf("%s does not yield", s.ID)
			}
		}
		must.Equal(t, "asked", c.want, strings.Join(got, " "))
	})
}

// commandFunc gets the environment of the command.
type commandFunc func(env []string) (int, string, error)

func (f commandFunc) RunGate(_ context.Context, _ cluster.CommandGate, env []string) (int, string, error) {
	return f(env)
}

func (f commandFunc) RunHook(_ context.Context, _ cluster.CommandGate, env []string, line func(string)) (cluster.HookEnd, error) {
	exit, said, err := f(env)
	line(said)
	return cluster.HookEnd{Exit: exit, Said: said, Output: said + "\n"}, err
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func failing(names ...string) cluster.Judged {
	j := cluster.Judged{Objects: 12}
	for _, name := range names {
		j.Failing = append(j.Failing, cluster.FailingObject{Name: name, Why: "status.ok=false"})
	}
	return j
}

func gatedNode(objects judgeFunc, commands commandFunc, gates ...cluster.UserGate) *node {
	r := &Roller{Roll: &rolling.Roll{Cluster: "lab", Run: "r1", Timing: cluster.Timing{Poll: time.Second}, Say: func(string, string) {}}, Objects: objects, Commands: commands}
	n := r.node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", Strategy: cluster.Recreate}})
	n.userGates.Gates = gates
	return n
}

// judgeFunc is a cluster.ObjectJudge.
type judgeFunc func() (cluster.Judged, error)

func (f judgeFunc) Judge(context.Context, cluster.ObjectGate) (cluster.Judged, error) { return f() }

var someObjects = cluster.UserGate{TimeoutSeconds: 60, Objects: &cluster.ObjectGate{APIVersion: "v1", Kind: "Node"}}
