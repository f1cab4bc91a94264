package simtest

import (
	"fmt"
	"maps"
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
	"github.com/recast-sh/recast/internal/step"
)

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

// listen follows a client's roll of one node.
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

// rounds are the requests between two moments that followed one after another: while one was in
// flight, no other counts. Of the looks at a task only the last one counts: until then Proxmox was at
// work, however often it was asked.
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
		if x.at.Before(from) || x.at.After(to) || x.at.Before(answered) || is && look != i {
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

// TestRounds limits how many requests follow one after another while a node is away: between the stop
// and the start of its VM, and from drained to Ready. Each adds its latency to the outage.
func TestRounds(t *testing.T) {
	for name, c := range map[string]struct {
		options  sim.Options
		node     string
		strategy cluster.Strategy
		off, out int
	}{
		"worker, recreate":               {sim.Options{}, "wk1", cluster.Recreate, 120, 199},
		"worker with a holder, recreate": {sim.Options{Holder: true}, "wk1", cluster.Recreate, 105, 185},
		"worker, reimage":                {sim.Options{}, "wk1", cluster.Reimage, 60, 139},
		"control plane, recreate":        {sim.Options{}, "cp1", cluster.Recreate, 110, 268},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "worker, recreate" {
				long(t)
			}
			c.options.ControlPlanes, c.options.Workers, c.options.Hosts, c.options.Latency = 3, 2, 3, answersTake
			inLab(t, c.options, func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: " + string(c.strategy))
				lab.Patch(everywhere)
				must(t, lab.Client().Publish(t.Context()))
				var a asking
				client := lab.Client()
				a.listen(lab, client)
				_, err := client.Roll(t.Context(), planning.Policy{Only: []string{c.node}})
				lab.Recorder.Hooks(nil, nil)
				must(t, err)
				lab.RequireIntact()
				off := a.rounds(a.off(lab, lab.node(c.node).VMID))
				out := a.rounds(a.at["take-down/drain done"], a.at["bring-up/wait-healthy done"])
				fmt.Printf("%-32s rounds between stop and start %3d, from drained to Ready %3d\n", name, len(off), len(out))
				for what, n := range map[string]struct {
					rounds []ask
					most   int
				}{"between stop and start": {off, c.off}, "from drained to Ready": {out, c.out}} {
					if len(n.rounds) > n.most || len(n.rounds) < n.most/2 { // less than half: something is not counted
						t.Errorf("%d rounds %s, wanted at most %d:\n%s", len(n.rounds), what, n.most, list(n.rounds))
					}
				}
			})
		})
	}
}

// BenchmarkNodeRoll measures processor time and requests of starting and rolling a whole
// cluster, per rolled node. It reports the lab's share separately.
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
			rep := valueOf(l.Client().Roll(t.Context(), planning.Policy{}))(t)
			mustBe(t, len(rep.Plan.Work()) == len(l.Nodes), "rolled %d nodes", len(rep.Plan.Work()))
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

// benchmarkInBubble is synctest.Test for a benchmark.
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

// processorTime is the process's user and system time.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
