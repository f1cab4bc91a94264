package simtest

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/record"
)

// span is the world's own delays for one node in a roll, without overlaps.
type span struct {
	ahead time.Duration // what can be done while the node serves and others are down
	out   time.Duration // the rest, in the transaction's order
}

// busy is how long at least one delay was in progress between two moments.
func busy(delays []record.Delay, from, to time.Time) time.Duration {
	delays = slices.Clone(delays)
	slices.SortFunc(delays, func(a, b record.Delay) int { return a.From.Compare(b.From) })
	var total time.Duration
	for _, d := range delays {
		begin, end := d.From, d.To
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		if begin.Before(end) {
			total += end.Sub(begin)
			from = end
		}
	}
	return total
}

// byNode groups delays by node; those of the run itself, such as its claim's, are under "".
func (l *Lab) byNode(delays []record.Delay) map[string][]record.Delay {
	owner := map[int]string{}
	for _, n := range l.Nodes {
		owner[n.VMID] = n.Name
	}
	for _, vm := range l.World.VMs() {
		if node, ok := strings.CutPrefix(vm.Config["name"], "recast-parking-"); ok {
			owner[vm.ID] = node
		}
	}
	out := map[string][]record.Delay{}
	for _, d := range delays {
		node := d.Node
		for _, id := range d.VMIDs {
			if owner[id] != "" {
				node = owner[id]
			}
		}
		out[node] = append(out[node], d)
	}
	return out
}

// shortest is the minimum duration of a roll with these spans: phase after phase, in each phase in the plan's order, as
// many at a time as the plan allows, and each node prepared as soon as the roll begins.
func shortest(p planning.Plan, spans map[string]span) time.Duration {
	var now, begin time.Duration
	var before planning.Phase
	for work := p.Work(); len(work) > 0; {
		phase := work[0].Phase
		nodes := slices.DeleteFunc(slices.Clone(work), func(n planning.NodePlan) bool { return n.Phase != phase })
		work = work[len(nodes):]
		limit := 1
		if phase == planning.Workers {
			limit = max(1, p.MaxUnavailable)
		}
		beside := p.WorkersBeside && (before == planning.ControlPlanes || before == planning.Workers)
		if !beside {
			begin = now
		}
		now = max(now, inPhase(nodes, begin, limit, max(1, p.PerHost), spans))
		before = phase
	}
	return now
}

func inPhase(nodes []planning.NodePlan, begin time.Duration, limit, perHost int, spans map[string]span) (end time.Duration) {
	free := slices.Repeat([]time.Duration{begin}, limit)
	hosts := map[string][]time.Duration{}
	end = begin
	for _, n := range nodes {
		if hosts[n.Host] == nil {
			hosts[n.Host] = slices.Repeat([]time.Duration{begin}, perHost)
		}
		at := max(slices.Min(free), slices.Min(hosts[n.Host]), spans[n.Node].ahead)
		done := at + spans[n.Node].out
		for _, slots := range [][]time.Duration{free, hosts[n.Host]} {
			slots[slices.Index(slots, slices.Min(slots))] = done
		}
		end = max(end, done)
	}
	return end
}

// criticalPath is the minimum duration of a roll between two moments, given the world's delay for each step. drained is
// when each node's drain began: earlier work can overlap with other nodes.
func (l *Lab) criticalPath(p planning.Plan, from, to time.Time, drained map[string]time.Time) time.Duration {
	delays := l.byNode(l.Recorder.Timeline.Delays())
	spans := map[string]span{}
	for _, node := range slices.Sorted(maps.Keys(drained)) {
		var ahead, out []record.Delay
		for _, d := range delays[node] {
			switch {
			case d.To.Before(from) || d.From.After(to):
			case d.What == "pull" && d.To.Compare(drained[node]) <= 0:
				ahead = append(ahead, d)
			default:
				out = append(out, d)
			}
		}
		spans[node] = span{ahead: busy(ahead, from, to), out: busy(out, from, to)}
	}
	return busy(delays[""], from, to) + shortest(p, spans)
}
