package simtest

import (
	"flag"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/heap"
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

// Without latency only recast's own pauses take time, and requests are counted at the moments when nothing else
// happens. With it, every request that follows another one adds to both durations (see TestRounds).
var (
	atNoLatency = limits{waste: 0.01, longer: 2 * time.Second, asking: 2}
	atLatency   = limits{waste: 0.13, longer: 8 * time.Second}
)

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
	c := lab.Client().hears(w.see)
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
	w.dials = c.Dials()
	lab.Recorder.Hooks(nil, nil)
	must(t, err)
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

// asked counts the requests, and those after the plan when no step began or ended and nothing changed.
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

// judge prints the figures of the roll, and fails the test if it is too slow or sends too many requests.
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
	require(t, most.asking == 0 || rate <= most.asking, "%.2f requests a second of waiting", rate)
}

// requireOutages fails the test if a node was unavailable, from drained to Ready, for longer than the world needs.
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

// A roll takes hardly longer than the world's delays for its steps, with 20 ms for each answer of each server.
func TestRollNearTheCriticalPath(t *testing.T) {
	type story struct {
		options sim.Options
		roll    []string
		instant bool // answers take no time
	}
	inPlace, recreate, tenth := "strategy: in-place", "strategy: recreate", "maxUnavailable: {workers: 10%, perHost: 10}"
	small, large := sim.Options{ControlPlanes: 3, Workers: 2}, sim.Options{ControlPlanes: 5, Workers: 100, Hosts: 5}
	cases := map[string]story{
		"3+2 in-place":       {small, []string{inPlace}, false},
		"3+2 recreate":       {small, []string{recreate}, false},
		"3+2 in-place, 0 ms": {small, []string{inPlace}, true},
		"3+2 recreate, 0 ms": {small, []string{recreate}, true},
		"5+100 in-place":     {large, []string{inPlace, tenth}, false},
	}
	if *fastAll { // some ten minutes: only for make bench
		cases["5+100 recreate"] = story{large, []string{recreate, tenth}, false}
	}
	eachLongIn(t, func(c story) sim.Options {
		c.options.Latency = map[bool]time.Duration{false: answersTake}[c.instant]
		return c.options
	}, cases, func(t *testing.T, lab *Lab, c story) {
		most := map[bool]limits{false: atLatency, true: atNoLatency}[c.instant]
		atOnce(lab, c.roll...)
		w := rollWatched(t, lab)
		w.judge(t, path.Base(t.Name()), most)
		w.requireOutages(t, most)
	})
}

// seedTimes are those of an upgrade in place: 45 s download, 20 s to stage it, 60 s reboot, 45 s until it has joined.
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

// answersTake is how long every answer of a server takes where rounds are counted.
const answersTake = 20 * time.Millisecond

// asking is the requests of one node's roll, each with the step that was last heard of.
type asking struct {
	mu   sync.Mutex
	asks []ask
	now  string               // the last event
	at   map[string]time.Time // when a step ended
}

type ask struct {
	at   time.Time
	call record.Call
	step string
}

func (a *asking) listen(lab *Lab, c *Client) {
	a.at = map[string]time.Time{}
	c.Emit = func(e step.Event) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if parts := strings.SplitN(e.Path, "/", 4); len(parts) == 4 && e.Status != step.Note {
			a.now = parts[3] + " " + e.Status.String()
			a.at[a.now] = time.Now()
		}
	}
	lab.Recorder.Hooks(func(call record.Call) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asks = append(a.asks, ask{time.Now(), call, a.now})
		return nil
	}, nil)
}

// rounds are the requests from one moment until another that followed one after another: while one was in flight, no other
// counts. Of the looks at a task only the last one counts: until then Proxmox was at work, however often it was asked.
func (a *asking) rounds(from, to time.Time) (rounds []ask) {
	last := map[string]int{}
	for i, x := range a.asks {
		if taskStatus.MatchString(x.call.Path) {
			last[x.call.Path] = i
		}
	}
	var answered time.Time
	for i, x := range a.asks {
		look, is := last[x.call.Path]
		if x.at.Before(from) || !x.at.Before(to) || x.at.Before(answered) || is && look != i {
			continue
		}
		answered = x.at.Add(answersTake)
		rounds = append(rounds, x)
	}
	return rounds
}

var taskStatus = regexp.MustCompile(`/tasks/UPID:.*/status$`)

// list shows rounds by the event before them, and how many of each kind.
func list(rounds []ask) string {
	var order []string
	kinds := map[string]map[string]int{}
	for _, x := range rounds {
		if kinds[x.step] == nil {
			kinds[x.step] = map[string]int{}
			order = append(order, x.step)
		}
		path, _, _ := strings.Cut(x.call.Path, "?")
		kinds[x.step][strings.TrimSpace(x.call.Method+" "+regexp.MustCompile(`UPID:[^/]*`).ReplaceAllString(path, "…"))]++
	}
	var b strings.Builder
	for _, s := range order {
		fmt.Fprintf(&b, "%s\n", s)
		for _, kind := range slices.Sorted(maps.Keys(kinds[s])) {
			fmt.Fprintf(&b, "  %3d %s\n", kinds[s][kind], kind)
		}
	}
	return b.String()
}

// off is when the node's VM went off and when it was started again.
func (a *asking) off(lab *Lab, vmid int) (from, to time.Time) {
	for _, x := range a.asks {
		if x.call.Method == "POST" && strings.HasSuffix(x.call.Path, fmt.Sprintf("/qemu/%d/status/start", vmid)) {
			to = x.at
		}
	}
	for _, d := range lab.Recorder.Timeline.Delays() {
		if d.What == "qmshutdown" && slices.Contains(d.VMIDs, vmid) && d.To.Before(to) {
			from = d.To
		}
	}
	return from, to
}

// Of the requests while a node is away, few follow one after another: each adds its latency to the outage.
func TestRounds(t *testing.T) {
	type story struct {
		node     string
		strategy cluster.Strategy
		holder   bool
		off, out int
	}
	options := func(s story) sim.Options {
		return sim.Options{ControlPlanes: 3, Workers: 2, Hosts: 3, Holder: s.holder, Latency: answersTake}
	}
	play := func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: " + string(c.strategy))
		lab.Patch(everywhere)
		must(t, lab.Client().Publish(t.Context()))
		var a asking
		client := lab.Client()
		a.listen(lab, client)
		err := client.roll(policyFor(c.node))(t.Context())
		lab.Recorder.Hooks(nil, nil)
		must(t, err)
		few := func(what string, rounds []ask, most int) int {
			if len(rounds) > most || len(rounds) < most/2 { // less than half: something is not counted
				t.Errorf("%d rounds %s, wanted at most %d:\n%s", len(rounds), what, most, list(rounds))
			}
			return len(rounds)
		}
		off := few("between stop and start", a.rounds(a.off(lab, lab.node(c.node).VMID)), c.off)
		out := few("from drained to Ready", a.rounds(a.at["take-down/drain done"], a.at["bring-up/wait-healthy done"]), c.out)
		fmt.Printf("%-32s rounds between stop and start %3d, from drained to Ready %3d\n", path.Base(t.Name()), off, out)
	}
	eachIn(t, options, map[string]story{"worker, recreate": {"wk1", cluster.Recreate, false, 122, 202}}, play)
	eachLongIn(t, options, map[string]story{
		"worker with a holder, recreate": {"wk1", cluster.Recreate, true, 109, 189},
		"worker, reimage":                {"wk1", cluster.Reimage, false, 62, 142},
		"control plane, recreate":        {"cp1", cluster.Recreate, false, 112, 271},
	}, play)
}

// BenchmarkNodeRoll is the cost of starting and rolling a whole cluster, per rolled node, and the lab's share of it.
func BenchmarkNodeRoll(b *testing.B) {
	for _, c := range []struct {
		strategy cluster.Strategy
		workers  int
		most     nodeRoll
	}{
		{cluster.Recreate, 2, nodeRoll{850, 720_000}},
		{cluster.Reimage, 2, nodeRoll{750, 650_000}},
		{cluster.InPlace, 2, nodeRoll{455, 430_000}},
		{cluster.Recreate, 20, nodeRoll{780, 690_000}},
		{cluster.Reimage, 20, nodeRoll{660, 620_000}},
		{cluster.InPlace, 20, nodeRoll{395, 370_000}},
	} {
		b.Run(fmt.Sprintf("%s/3+%d", c.strategy, c.workers), func(b *testing.B) {
			benchmarkNodeRoll(b, sim.Options{ControlPlanes: 3, Workers: c.workers, Hosts: 3}, c.strategy, c.most)
		})
	}
}

// nodeRoll is what one node's roll may take, with its part of the cluster's start and of the plan.
type nodeRoll struct {
	requests    float64
	allocations float64 // of recast and the lab
}

func benchmarkNodeRoll(b *testing.B, o sim.Options, strategy cluster.Strategy, most nodeRoll) {
	b.ReportAllocs()
	allocated := heap.Count()
	var lab, all time.Duration
	requests := 0
	for b.Loop() {
		begin := processorTime(b)
		benchmarkInBubble(b, func(t *testing.T) {
			l := New(t, o)
			l.setRoll("strategy: " + string(strategy))
			l.Patch(sim.CommonExtension)
			lab += processorTime(t) - begin
			before := len(l.Recorder.Calls())
			requireCount(t, len(l.Nodes), valueOf(l.Client().Roll(t.Context(), planning.Policy{}))(t).Plan.Work(), "nodes")
			requests += len(l.Recorder.Calls()) - before
		})
		all += processorTime(b) - begin
	}
	rolls := float64(b.N * (o.ControlPlanes + o.Workers))
	b.ReportMetric(float64(all.Microseconds())/1000/rolls, "cpu-ms/node-roll")
	b.ReportMetric(float64(lab.Microseconds())/1000/rolls, "lab-cpu-ms/node-roll")
	b.ReportMetric(float64(requests)/rolls, "requests/node-roll")
	if each := float64(requests) / rolls; each > most.requests {
		b.Errorf("%.0f requests for each node, more than %.0f", each, most.requests)
	}
	if each := float64(allocated()) / rolls; each > most.allocations {
		b.Errorf("%.0f allocations for each node, more than %.0f", each, most.allocations)
	}
}

func benchmarkInBubble(b *testing.B, f func(t *testing.T)) {
	b.Helper()
	all := func(pattern, name string) (bool, error) {
		_, err := regexp.Compile(pattern)
		return true, err
	}
	if !testing.RunTests(all, []testing.InternalTest{{Name: b.Name(), F: func(t *testing.T) { synctest.Test(t, f) }}}) {
		b.FailNow()
	}
}

func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
