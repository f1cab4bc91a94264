package simtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
)

const (
	evictAfter  = "DrbdOptions/AutoEvictAfterTime"
	linstorHold = "Aux/recast.dev/hold"
)

// evicting has LINSTOR evict nodes that are away for that many minutes.
func (l *Lab) evicting(minutes string) {
	l.Kube.LINSTOR().SetProperty("DrbdOptions/AutoEvictAllowEviction", "True")
	l.Kube.LINSTOR().SetProperty(evictAfter, minutes)
}

// requireEvictAfter compares the property of a node, and whether recast remembers what it was.
func (l *Lab) requireEvictAfter(node, value string, held bool) {
	l.t.Helper()
	c := l.Kube.LINSTOR()
	if v, memo := c.NodeProperty(node, evictAfter), c.NodeProperty(node, linstorHold); v != value || memo != "" != held {
		l.t.Errorf("%s of %s is %q, memo %q", evictAfter, node, v, memo)
	}
}

// inEvictingLab runs a test with a LINSTOR on three workers that evicts each of them within its outage.
func inEvictingLab(t *testing.T, test func(t *testing.T, lab *Lab)) {
	t.Helper()
	inStorageLab(t, (*Lab).runLINSTOR, 3, func(t *testing.T, lab *Lab) {
		lab.drbd("pvc-1", 2, "wk1", "wk2")
		lab.evicting("1")
		test(t, lab)
	})
}

// TestRollKeepsLINSTORFromEvicting: no node is evicted while it is away, and each has its own property back.
func TestRollKeepsLINSTORFromEvicting(t *testing.T) {
	long(t)
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		lab.Kube.LINSTOR().SetNodeProperty("wk2", evictAfter, "2")
		var said []string
		held := map[string]string{}
		c := lab.Client()
		goes := func(n string) func(step.Event) {
			return whenStarted(n+"/take-down", func() { held[n] = lab.Kube.LINSTOR().NodeProperty(n, linstorHold) })
		}
		c.Emit = allOf(notes("await-storage", &said), goes("wk1"), goes("wk2"))
		must(t, c.roll(planning.Policy{})(t.Context()))
		for n, was := range map[string]string{"wk1": "", "wk2": "2"} {
			var m replica.Memo
			if err := json.Unmarshal([]byte(held[n]), &m); err != nil || m.Was != was || m.Set != "60" || m.Nodes[n] != 60 || m.Run == "" || m.Since.IsZero() {
				t.Errorf("held for %s: %s, %v", n, held[n], err)
			}
			lab.requireEvictAfter(n, was, false)
			require(t, !lab.Kube.LINSTOR().Evicted(n), "%s was evicted", n)
		}
		for _, want := range []string{evictAfter + " of wk1 in LINSTOR is 60 instead of the controller's", evictAfter + " of wk2 in LINSTOR is 60 instead of 2"} {
			require(t, slices.Contains(said, want), "%q is missing in %q", want, said)
		}
		requireInSync(t, lab)
	})
}

// TestLINSTOREvictsWithoutHold: the lab's LINSTOR evicts a node as the real one does, so that the others prove something.
func TestLINSTOREvictsWithoutHold(t *testing.T) {
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		lab.setRoll("storage: {linstor: off}", "strategy: recreate")
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		c := lab.Kube.LINSTOR()
		require(t, c.Evicted("wk1") && !c.Whole("pvc-1"), "wk1 was not evicted")
	})
}

// putOfNode is recast's change of wk1 in LINSTOR.
const putOfNode = "services/linstor-controller:3370/proxy/v1/nodes/wk1 " + http.MethodPut

// TestLINSTORHoldOfAKilledRun: wherever a run is killed, the next one gives back exactly what was there, and so does
// recover.
func TestLINSTORHoldOfAKilledRun(t *testing.T) {
	long(t)
	moments := []moment{
		{server: putOfNode, unsent: true}, onServer(putOfNode), before("wk1/take-down/delete-vm"), before("finish/uncordon"), before("wk1/await-storage-again"),
	}
	inLab := func(t *testing.T, test func(t *testing.T, lab *Lab)) {
		inEvictingLab(t, func(t *testing.T, lab *Lab) {
			lab.setRoll("strategy: recreate")
			lab.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "2")
			test(t, lab)
		})
	}
	goOnAfterKills(t, inLab, moments, func(t *testing.T, lab *Lab, m moment) {
		if set := lab.Kube.LINSTOR().NodeProperty("wk1", evictAfter); !m.unsent && set != "60" {
			t.Errorf("the killed run left %s", set)
		}
	}, func(t *testing.T, lab *Lab) {
		lab.requireEvictAfter("wk1", "2", false)
		require(t, !lab.Kube.LINSTOR().Evicted("wk1"), "wk1 was evicted")
	})
}

// TestLINSTORHoldChangedBySomeoneElse: their value stays.
func TestLINSTORHoldChangedBySomeoneElse(t *testing.T) {
	long(t)
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		c := lab.Client()
		c.Emit = whenStarted("wk1/take-down", func() { lab.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "90") })
		must(t, c.roll(planning.Policy{})(t.Context()))
		lab.requireEvictAfter("wk1", "90", false)
	})
}

// TestDoctorOfLINSTOR: doctor says when it evicts nodes, and what becomes of that.
func TestDoctorOfLINSTOR(t *testing.T) {
	const evicts = "1 volume; evicts a node that is away for %s (" + evictAfter + ")"
	cases := map[string]struct {
		do    func(l *Lab)
		state checkup.State
		seen  string
	}{
		"never":       {func(*Lab) {}, checkup.OK, "1 volume"},
		"soon":        {func(l *Lab) { l.evicting("20") }, checkup.OK, fmt.Sprintf(evicts, 20*time.Minute) + ", and wk1 is expected to be away for 4m0s: a roll has it wait 1h0m0s"},
		"after a day": {func(l *Lab) { l.evicting("1440") }, checkup.OK, fmt.Sprintf(evicts, 24*time.Hour)},
		"what is left": {func(l *Lab) {
			l.evicting("20")
			l.Kube.LINSTOR().SetNodeProperty("wk1", evictAfter, "60")
			l.Kube.LINSTOR().SetNodeProperty("wk1", linstorHold, `{"was":"","set":"60","nodes":{"wk1":60}}`)
		}, checkup.Warning, evictAfter + " of wk1 was not set before recast set it to 60, while wk1 is away"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inStorageLab(t, (*Lab).runLINSTOR, 2, func(t *testing.T, lab *Lab) {
				lab.drbd("pvc-1", 2, "wk1", "wk2")
				tc.do(lab)
				requireStorageCheck(t, lab, "LINSTOR", tc.state, tc.seen)
			})
		})
	}
}

// TestLINSTORHoldIsRefused: if the property can't be changed, the node is not touched; doctor names the right before.
func TestLINSTORHoldIsRefused(t *testing.T) {
	long(t)
	set := func(l *Lab) string {
		c := l.Kube.LINSTOR()
		return c.NodeProperty("wk1", evictAfter) + " " + c.NodeProperty("wk1", linstorHold)
	}
	refusedHolds(t, inEvictingLab, "LINSTOR", set, map[string]refusedHold{
		"no answer": {silentLINSTOR, "have LINSTOR wait for wk1: gave up after 1m0s", ""},
		"no right": {func(l *Lab) {
			l.mayAll(func(r kubeapi.Request) bool { return r.Verb != "update" || r.Resource != "services/proxy" })
		}, `cannot update resource "services/proxy"`, "the kubeconfig may not update services/proxy of LINSTOR's controller"},
		"a memo that recast does not know": {func(l *Lab) {
			l.Kube.LINSTOR().SetNodeProperty("wk1", linstorHold, "{}")
		}, "property " + linstorHold + " of LINSTOR's node wk1 is not as recast writes it", ""},
	})
}

// TestLINSTORHoldIsLeft: if the property can't be given back, the roll says so, with the command that does it, and fails;
// the next one gives it back.
func TestLINSTORHoldIsLeft(t *testing.T) {
	long(t)
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		c := lab.Client()
		c.Emit = whenStarted("wk1/await-storage-again", func() { silentLINSTOR(lab) })
		err := c.roll(planning.Policy{Only: []string{"wk1"}})(t.Context())
		requireFault(t, err, fault.Failed, "give back what storage systems were told")
		const undo = `by hand: echo '{"override_props":{},"delete_props":["DrbdOptions/AutoEvictAfterTime","Aux/recast.dev/hold"]}' | ` +
			"kubectl replace --raw /api/v1/namespaces/piraeus-datastore/services/linstor-controller:3370/proxy/v1/nodes/wk1 -f -"
		hints := fault.Hints(err)
		require(t, slices.Contains(hints, undo), "hints %q", hints)
		lab.Recorder.Hooks(nil, nil)
		lab.requireEvictAfter("wk1", "60", true)
		requireNoClaim(t, lab)
		requireHeldInDrift(t, lab, true)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		lab.requireEvictAfter("wk1", "", false)
		res := valueOf(lab.Client().Drift(t.Context()))(t)
		require(t, len(res.Held) == 0 && res.InSync, "%+v", res)
	})
}

// requireHeldInDrift compares what drift says of the property of wk1: it is drift once no run is active.
func requireHeldInDrift(t *testing.T, lab *Lab, left bool) {
	t.Helper()
	res := lab.drift()
	mustBe(t, len(res.Held) == 1 && res.HeldLeft == left && !res.InSync, "%+v", res)
	h := res.Held[0]
	if h.What != "LINSTOR: "+evictAfter+" of wk1 was not set before recast set it to 60, while wk1 is away" || h.Run == "" || time.Since(h.Since) > time.Hour || len(h.Next) != 2 {
		t.Errorf("%+v", h)
	}
}

// TestDriftDuringARoll: what an active roll holds is shown, and no drift.
func TestDriftDuringARoll(t *testing.T) {
	long(t)
	inEvictingLab(t, func(t *testing.T, lab *Lab) {
		looked := false
		c := lab.Client()
		c.Emit = whenStarted("wk1/await-storage-again", func() {
			looked = true
			requireHeldInDrift(t, lab, false)
		})
		must(t, c.roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
		require(t, looked, "it did not look")
	})
}

// TestHoldBesideASilentSystem: what one system is told is given back though another one does not answer.
func TestHoldBesideASilentSystem(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		lab.runLINSTOR()
		lab.stopProgram(piraeusSpace, "linstor-controller")
		err := lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context())
		requireFault(t, err, fault.Failed, "give back what storage systems were told: read what storage systems were told: gave up after 20s")
		lab.requireWaits("30", "")
		requireDrift(t, lab, "wk2", "wk3")
	})
}

// silentLINSTOR has no change of wk1 in LINSTOR arrive.
func silentLINSTOR(l *Lab) { l.dropsCalls(putOfNode) }
