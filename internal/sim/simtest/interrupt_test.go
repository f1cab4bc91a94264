package simtest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// whenStarted calls f once, when a step whose path ends in suffix starts.
func whenStarted(suffix string, f func()) func(step.Event) {
	var once sync.Once
	return func(e step.Event) {
		if e.Status == step.Started && strings.HasSuffix("/"+e.Path, "/"+suffix) {
			once.Do(f)
		}
	}
}

// allOf has each of them hear every event.
func allOf(hear ...func(step.Event)) func(step.Event) {
	return func(e step.Event) {
		for _, h := range hear {
			h(e)
		}
	}
}

// rollKilledWhen kills a roll when a step whose path ends in at starts.
func (l *Lab) rollKilledWhen(at string) {
	l.t.Helper()
	l.Client().rollKilled(before(at), planning.Policy{})
}

// interrupter presses Ctrl-C when a worker's step starts, and records which nodes had begun by then.
type interrupter struct {
	at    int // counted over the steps of all workers, from 1
	press func()

	mu      sync.Mutex
	steps   int
	pressed string   // the step
	begun   []string // nodes whose branch had started by then
}

func (i *interrupter) emit(e step.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	rest, ofWorker := strings.CutPrefix(e.Path, "roll/workers/")
	if e.Status != step.Started || !ofWorker || strings.HasSuffix(e.Path, "/pull") { // it runs early, and is interrupted
		return
	}
	i.steps++
	if node, _, inside := strings.Cut(rest, "/"); !inside && i.pressed == "" {
		i.begun = append(i.begun, node)
	}
	if i.steps == i.at {
		i.pressed = e.Path
		i.press()
	}
}

// moments are a selection of the steps of a roll of two workers at a time, by seed.
func moments(salt uint64) []int {
	const stepsOfTwo = 60
	all := rand.New(rand.NewPCG(*crashSeed, salt)).Perm(stepsOfTwo)
	return []int{1, 2 + all[0], 2 + all[1]}
}

// twoAtATime rolls three workers, two at a time, and calls press at one of the steps.
func twoAtATime(ctx context.Context, lab *Lab, at int, press func(c *Client)) (*interrupter, pipeline.Report, error) {
	lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
	lab.Patch(sim.PatchedExtension)
	c := lab.Client()
	i := &interrupter{at: at, press: func() { press(c) }}
	c.Emit = i.emit
	rep, err := c.Roll(ctx, planning.Policy{})
	return i, rep, err
}

// TestCtrlCOnce finishes the nodes in progress, and starts no other.
func TestCtrlCOnce(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{Workers: 3}, storiesOf(moments(1)...), func(t *testing.T, lab *Lab, at int) {
		seen := lab.watchOutage()
		press, rep, err := twoAtATime(t.Context(), lab, at, func(c *Client) { c.Runner.Stop() })
		requireFault(t, err, fault.Interrupted, "stopped; not started: roll/workers/wk")
		if !strings.Contains(rep.Outcome, "stopped; not started: ") {
			t.Errorf("outcome %q", rep.Outcome)
		}
		stale := slices.DeleteFunc([]string{"wk1", "wk2", "wk3"}, func(node string) bool { return slices.Contains(press.begun, node) })
		requireDrift(t, lab, stale...)
		slices.Sort(press.begun)
		slices.Sort(seen.order)
		requireSame(t, press.begun, seen.order, "pressed at %s: nodes that had begun, and that were out", press.pressed)
		requireNoClaim(t, lab)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
	})
}

// TestCtrlCTwice stops a roll of two workers at a time at once; the next one finishes it.
func TestCtrlCTwice(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{Workers: 3}, storiesOf(moments(2)...), func(t *testing.T, lab *Lab, at int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var pressed time.Time
		press, _, err := twoAtATime(ctx, lab, at, func(c *Client) { c.Runner.Stop(); cancel(); pressed = time.Now() })
		if took := time.Since(pressed); fault.KindOf(err) != fault.Interrupted || took > 15*time.Second {
			t.Errorf("pressed at %s: after %s, kind %d: %v", press.pressed, took, fault.KindOf(err), err)
		}
		requireNoClaim(t, lab)
		// Proxmox and the machines continue what they were told to do.
		if err := lab.second().roll(planning.Policy{})(t.Context()); err != nil {
			t.Fatalf("pressed at %s: the next roll: %v", press.pressed, err)
		}
		requireInSync(t, lab)
		for _, n := range lab.Nodes {
			lab.requireServing(n.Name)
		}
	})
}

// TestCtrlCBeforeTheFirstNode takes no node down.
func TestCtrlCBeforeTheFirstNode(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.Confirm = func(planning.Plan) (bool, error) { c.Runner.Stop(); return true, nil }
		before := len(lab.Recorder.Calls())
		_, err := c.Roll(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Interrupted)
		for _, call := range changesOfNodes(lab.Recorder.Calls()[before:]) {
			t.Errorf("%s was sent", call)
		}
		requireNoClaim(t, lab)
	})
}
