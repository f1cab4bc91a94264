package simtest

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
)

// limits of the duration of a roll and its requests.
type limits struct {
	waste  float64       // fraction beyond the critical path
	longer time.Duration // additional unavailability beyond the world's delays
	asking float64       // requests per second and waiting node; 0: not counted
}

// Without latency only recast's own pauses take time, and requests are counted at the moments when
// nothing else happens. With it, every request that follows another one adds to both durations (see
// TestRounds).
var (
	atNoLatency = limits{waste: 0.01, longer: 2 * time.Second, asking: 2}
	atLatency   = limits{waste: 0.13, longer: 8 * time.Second}
)

// watched is one roll as observed from outside.
type watched struct {
	lab         *Lab
	began, end  time.Time
	rolling     time.Time // when the plan was complete
	plan        planning.Plan
	drained     map[string]time.Time // when a node's drain began
	empty       map[string]time.Time // when it ended
	ready       map[string]time.Time // when the node was healthy again
	out         map[string]time.Time // when its turn began
	nodeSeconds float64

	mu       sync.Mutex
	requests map[time.Time]int // number by time
	work     map[time.Time]bool
	dials    int
}

// rollWatched rolls a lab whose images are published already.
func rollWatched(t *testing.T, lab *Lab) *watched {
	t.Helper()
	must(t, lab.Client().Publish(t.Context()))
	w := &watched{
		lab: lab, drained: map[string]time.Time{}, empty: map[string]time.Time{}, ready: map[string]time.Time{}, out: map[string]time.Time{},
		requests: map[time.Time]int{}, work: map[time.Time]bool{},
	}
	c := lab.Client()
	c.Emit = w.see
	lab.Recorder.Hooks(func(c record.Call) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.requests[time.Now()]++
		if c.Mutation {
			w.work[time.Now()] = true
		}
		return nil
	}, nil)
	w.began = time.Now()
	rep, err := c.Roll(t.Context(), planning.Policy{})
	w.end, w.plan = time.Now(), rep.Plan
	w.dials = c.dialer.Dials()
	lab.Recorder.Hooks(nil, nil)
	must(t, err)
	lab.RequireIntact()
	return w
}

func (w *watched) see(e step.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if e.Status != step.Note {
		w.work[now] = true
	}
	if e.Path == "roll" && e.Status == step.Started {
		w.rolling = now
	}
	parts := strings.Split(e.Path, "/")
	if len(parts) < 3 {
		return
	}
	node, below := parts[2], "/"+strings.Join(parts[3:], "/")
	switch {
	case below == "/" && e.Status == step.Started:
		w.out[node] = now
	case below == "/" && e.Status == step.Done:
		w.nodeSeconds += now.Sub(w.out[node]).Seconds()
	case strings.HasSuffix(below, "/drain") && e.Status == step.Started:
		w.drained[node] = now
	case strings.HasSuffix(below, "/drain"):
		w.empty[node] = now
	case strings.HasSuffix(below, "/wait-healthy") && e.Status == step.Done:
		w.ready[node] = now
	}
}

// asked counts the requests, and those during pure waiting: after the plan, at moments
// when no step began or ended and nothing changed.
func (w *watched) asked() (all, waiting int) {
	for at, n := range w.requests {
		all += n
		if !w.work[at] && at.After(w.rolling) {
			waiting += n
		}
	}
	return all, waiting
}

func (w *watched) took() time.Duration { return w.end.Sub(w.began) }

// judge prints the figures of the roll, and fails the test if it is too slow or sends too
// many requests.
func (w *watched) judge(t *testing.T, name string, most limits) {
	t.Helper()
	critical := w.lab.criticalPath(w.plan, w.began, w.end, w.drained)
	waste := (w.took() - critical).Seconds() / critical.Seconds()
	all, waiting := w.asked()
	nodes := float64(len(w.drained))
	rate := float64(waiting) / w.nodeSeconds
	fmt.Printf("%-20s roll %9s critical path %9s waste %.2f %% requests per node %.0f, %.2f a second of waiting, connections per node %.0f\n",
		name, w.took().Round(10*time.Millisecond), critical.Round(10*time.Millisecond), 100*waste, float64(all)/nodes, rate, float64(w.dials)/nodes)
	require(t, waste <= most.waste, "%.2f %% more than the critical path", 100*waste)
	if most.asking > 0 && rate > most.asking {
		t.Errorf("%.2f requests a second of waiting", rate)
	}
}

// requireOutages fails the test if a node was unavailable, from drained to Ready, for
// longer than the world needs.
func (w *watched) requireOutages(t *testing.T, most limits) {
	t.Helper()
	var longest time.Duration
	delays := w.lab.byNode(w.lab.Recorder.Timeline.Delays())
	for node, from := range w.empty {
		to := w.ready[node]
		if longer := to.Sub(from) - busy(delays[node], from, to); longer > most.longer {
			t.Errorf("%s was out for %s, %s longer than the world takes", node, to.Sub(from), longer)
		} else {
			longest = max(longest, longer)
		}
	}
	fmt.Printf("%s: no node was out for more than %s longer than the world takes\n", t.Name(), longest.Round(10*time.Millisecond))
}

// atOnce is a lab without configured waits. The first control plane is the canary.
func atOnce(lab *Lab, roll ...string) {
	lab.Replace("recast.yaml", "settle: 2s", "settle: 0s")
	lab.setRoll(append([]string{"canary: cp1"}, roll...)...)
	lab.Patch(everywhere)
}

var fastAll = flag.Bool("fast.all", false, "recreate a hundred nodes too")

// A roll takes hardly longer than the world's delays for its steps, with 20 ms for each answer of
// each server.
func TestRollNearTheCriticalPath(t *testing.T) {
	cases := map[string]struct {
		options sim.Options
		roll    []string
		huge    bool // some ten minutes: only for make bench
		instant bool // answers take no time
	}{
		"3+2 in-place":       {options: sim.Options{ControlPlanes: 3, Workers: 2}, roll: []string{"strategy: in-place"}},
		"3+2 recreate":       {options: sim.Options{ControlPlanes: 3, Workers: 2}, roll: []string{"strategy: recreate"}},
		"3+2 in-place, 0 ms": {options: sim.Options{ControlPlanes: 3, Workers: 2}, roll: []string{"strategy: in-place"}, instant: true},
		"3+2 recreate, 0 ms": {options: sim.Options{ControlPlanes: 3, Workers: 2}, roll: []string{"strategy: recreate"}, instant: true},
		"5+100 in-place":     {options: sim.Options{ControlPlanes: 5, Workers: 100, Hosts: 5}, roll: []string{"strategy: in-place", "maxUnavailable: {workers: 10%, perHost: 10}"}},
		"5+100 recreate":     {options: sim.Options{ControlPlanes: 5, Workers: 100, Hosts: 5}, roll: []string{"strategy: recreate", "maxUnavailable: {workers: 10%, perHost: 10}"}, huge: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			long(t)
			if c.huge && !*fastAll {
				t.Skip("left to make bench")
			}
			most := atNoLatency
			if !c.instant {
				most, c.options.Latency = atLatency, answersTake
			}
			inLab(t, c.options, func(t *testing.T, lab *Lab) {
				atOnce(lab, c.roll...)
				w := rollWatched(t, lab)
				w.judge(t, name, most)
				w.requireOutages(t, most)
			})
		})
	}
}

// seedTimes are the durations of an upgrade in place: 45 s for the download, 20 s to stage
// it, 60 s for the reboot and 45 s until the node has joined again.
func seedTimes() talosapi.Times {
	return talosapi.Times{Pull: 45 * time.Second, Copy: 20 * time.Second, Leave: 5 * time.Second, Boot: 55 * time.Second, Services: 40 * time.Second}
}

// serial is the sum of the world's delays for all nodes, stages and drains, without gaps.
func (w *watched) serial() (sum time.Duration) {
	delays := w.lab.byNode(w.lab.Recorder.Timeline.Delays())
	for _, n := range w.lab.Nodes {
		sum += busy(delays[n.Name], w.began, w.end)
	}
	return sum
}

// A roll takes a small fraction of its nodes' serial time.
func TestRollBesidesTheSerialSum(t *testing.T) {
	type story struct {
		options sim.Options
		roll    []string
		most    float64
	}
	eachLongIn(t, func(c story) sim.Options { return c.options }, map[string]story{
		"3+2":   {sim.Options{ControlPlanes: 3, Workers: 2, Times: seedTimes()}, []string{"strategy: in-place", "reboot: kexec", "workersBeside: true", "maxUnavailable: {workers: 1, perHost: 2}"}, 0.52},
		"3+100": {sim.Options{ControlPlanes: 3, Workers: 100, Hosts: 5, Times: seedTimes()}, []string{"strategy: in-place", "reboot: kexec", "maxUnavailable: {workers: 10%, perHost: 10}"}, 1. / 8},
	}, func(t *testing.T, lab *Lab, c story) {
		atOnce(lab, c.roll...)
		w := rollWatched(t, lab)
		sum := w.serial()
		part := w.took().Seconds() / sum.Seconds()
		fmt.Printf("%s roll %s, one node after another %s: %.3f\n", t.Name(), w.took().Round(time.Second), sum.Round(time.Second), part)
		require(t, part <= c.most, "%.3f of one node after another, wanted at most %.3f", part, c.most)
	})
}
