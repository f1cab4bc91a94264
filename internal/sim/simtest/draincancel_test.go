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
	type story struct {
		strategy   cluster.Strategy
		at, stands string
	}
	eachInLab(t, oneWorker(), storiesOf(story{cluster.Recreate, "take-down/drain", isOut}, story{cluster.InPlace, "upgrade/drain", "on, cordoned"}), func(t *testing.T, lab *Lab, c story) {
		s := &talosScene{talosFault: &talosFault{rolls: "wk1", strategy: c.strategy}, t: t, Lab: lab}
		s.setRoll("strategy: " + string(c.strategy))
		deployed(stubborn)(s)
		lab.Patch(everywhere)
		was, members := s.machineState(), s.memberIDs()
		ctx, cancel := context.WithCancel(t.Context())
		client := s.as(firstRun)
		client.Emit = whenStarted(c.at, func() { time.AfterFunc(10*time.Second, cancel) })
		if err := client.roll(s.only())(ctx); err == nil || ctx.Err() == nil {
			t.Fatalf("err = %v", err)
		}
		if got := s.stand(); got != c.stands {
			t.Errorf("wk1: %s, want %s", got, c.stands)
		}
		if now := s.machineState(); now.Boot != was.Boot {
			t.Error("the machine was rebooted")
		}
		time.Sleep(time.Minute)
		must(t, s.as(secondRun).roll(s.only())(t.Context()))
		s.requireWell(members)
	})
}

// toRack labels a Node as a person would.
func (l *Lab) toRack(name, rack string) {
	l.t.Helper()
	node, err := l.Kube.Node(l.t.Context(), name)
	must(l.t, err)
	node.Labels["rack"] = rack
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
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
		"someone moves it to another rack": {func(s *talosScene) { s.toRack("wk1", "b") }, "b"},
		"someone deletes it":               {forgotten("wk1"), "a"},
	}, func(t *testing.T, lab *Lab, c story) {
		s := &talosScene{talosFault: &talosFault{rolls: "wk1"}, t: t, Lab: lab}
		lab.toRack("wk1", "a")
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
