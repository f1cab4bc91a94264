package simtest

import (
	"context"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// TestCtrlCInADrain interrupts a roll while a pod is terminating. It leaves a cordoned,
// complete node, from which the next roll continues; it evicts only the remaining pods.
func TestCtrlCInADrain(t *testing.T) {
	long(t)
	for strategy, at := range map[cluster.Strategy]string{cluster.Recreate: "take-down/drain", cluster.InPlace: "upgrade/drain"} {
		t.Run(string(strategy), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				f := &talosFault{rolls: "wk1", strategy: strategy, stands: map[cluster.Strategy]string{cluster.Recreate: isOut, cluster.InPlace: "on, cordoned"}[strategy]}
				s := &talosScene{talosFault: f, t: t, Lab: lab}
				s.setRoll("strategy: " + string(strategy))
				deployed(stubborn)(s)
				lab.Patch(everywhere)
				was, members := s.machineState(), s.memberIDs()
				ctx, cancel := context.WithCancel(t.Context())
				c := s.as(firstRun)
				c.Emit = whenStarted(at, func() { time.AfterFunc(10*time.Second, cancel) })
				if err := c.roll(s.only())(ctx); err == nil || ctx.Err() == nil {
					t.Fatalf("err = %v", err)
				}
				if got := s.stand(); got != f.stands {
					t.Errorf("wk1: %s, want %s", got, f.stands)
				}
				if now := s.machineState(); now.Boot != was.Boot {
					t.Error("the machine was rebooted")
				}
				time.Sleep(time.Minute)
				must(t, s.as(secondRun).roll(s.only())(t.Context()))
				s.requireWell(members)
			})
		})
	}
}

// TestMetadataOfTheSameNode: a person's changes of a Node during its roll are kept; a new
// Node of that name gets the old one's metadata.
func TestMetadataOfTheSameNode(t *testing.T) {
	long(t)
	type story struct {
		meanwhile func(*talosScene)
		rack      string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"someone moves it to another rack": {func(s *talosScene) { s.label("wk1", "b") }, "b"},
		"someone deletes it":               {forgotten("wk1"), "a"},
	}, func(t *testing.T, lab *Lab, c story) {
		s := &talosScene{talosFault: &talosFault{rolls: "wk1"}, t: t, Lab: lab}
		s.label("wk1", "a")
		lab.Patch(everywhere)
		client := s.as(firstRun)
		client.Emit = whenStarted("bring-up/start", func() { c.meanwhile(s) })
		must(t, client.roll(s.only())(t.Context()))
		node, err := lab.Kube.Node(t.Context(), "wk1")
		must(t, err)
		if got := node.Labels["rack"]; got != c.rack {
			t.Errorf("rack %q, want %q", got, c.rack)
		}
	})
}

func (s *talosScene) label(node, rack string) {
	s.t.Helper()
	n, err := s.Kube.Node(s.t.Context(), node)
	must(s.t, err)
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels["rack"] = rack
	_, err = s.Kube.Store().Update(s.t.Context(), store.Nodes(), n, store.Main)
	must(s.t, err)
}
