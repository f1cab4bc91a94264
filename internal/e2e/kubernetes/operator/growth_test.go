package operator

import (
	"fmt"
	"maps"
)

// cost is what the operator has done.
type cost struct{ reconciles, requests, writes, errors float64 }

func (c cost) String() string {
	return fmt.Sprintf("%.2f reconciles, %.2f requests, of which %.2f write", c.reconciles, c.requests, c.writes)
}

func (c cost) per(clusters int) cost {
	n := float64(clusters)
	return cost{c.reconciles / n, c.requests / n, c.writes / n, c.errors}
}

// since is what was done since an earlier reading. The renewals of the Lease, the only PUTs, do not count.
func (r reading) since(before reading) cost {
	count := func(name string, labels ...string) float64 {
		return r.sum(name, labels...) - before.sum(name, labels...)
	}
	const requests = "rest_client_requests_total"
	return cost{
		reconciles: count("controller_runtime_reconcile_total"),
		requests:   count(requests) - count(requests, `method="PUT"`),
		writes:     count(requests, `method="POST"`) + count(requests, `method="PATCH"`) + count(requests, `method="DELETE"`),
		errors:     count("controller_runtime_reconcile_errors_total") + count(requests, `code="403"`) + count(requests, `code="429"`),
	}
}

// count is how many Jobs of a kind have begun.
func (p *player) count(kind string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[kind]
}

func (p *player) mostAtATime() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.most)
}

// most is how much memory the operator may have had at some time, in MiB, by the number of clusters.
var most = map[int]int{100: 128, 1000: 512}

// hundred is the memory that the operator has had with the clusters that there are.
func (f *fleet) hundred() {
	peak := f.operator.peakMiB()
	f.t.Attr(fmt.Sprintf("peak-MiB-%d", f.clusters), fmt.Sprint(peak))
	fmt.Fprintf(f.t.Output(), "%d clusters: peak memory %d MiB\n", f.clusters, peak)
	if peak > most[f.clusters] {
		f.t.Errorf("the operator had %d MiB with %d clusters, want at most %d", peak, f.clusters, most[f.clusters])
	}
}

// growth: what a cluster costs does not depend on how many there are.
func (f *fleet) growth() {
	t := f.t
	peaks := map[int]int{f.clusters: f.operator.peakMiB()}
	var small cost
	for _, to := range []int{300, 1000} {
		more := to - f.clusters
		before := f.operator.settle()
		f.grow(to)
		checked := f.operator.settle()
		f.apply(fmt.Sprintf(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: to-%d}
spec: {talosVersion: v1.13.9, maxConcurrent: 50, maxConcurrentPerSite: 10, stages: [{name: all, selector: {matchLabels: {size: "%[1]d"}}}]}
`, to))
		f.kubectl(fmt.Sprintf("wait --for=condition=Ready fleetroll/to-%d --timeout=30m", to))
		rolled := f.operator.settle()
		peaks[to] = f.operator.peakMiB()
		fmt.Fprintf(t.Output(), "%d clusters; each new one, created and checked: %s; rolled: %s; peak memory %d MiB\n",
			to, checked.since(before).per(more), rolled.since(checked).per(more), peaks[to])
		both := rolled.since(before).per(more)
		if both.errors > 0 {
			t.Errorf("%.0f reconciles failed, or requests were refused", both.errors)
		}
		if small == (cost{}) {
			small = both
		}
		const factor = 1.25
		if both.requests > factor*small.requests || both.reconciles > factor*small.reconciles {
			t.Errorf("%d clusters: %s for each new one, want at most %.2f times that of 300: %s", to, both, factor, small)
		}
		if to == 1000 {
			t.Attr("requests-per-roll", fmt.Sprint(int(rolled.since(checked).per(more).requests+0.5)))
			t.Attr("reconciles-per-roll", fmt.Sprint(int(rolled.since(checked).per(more).reconciles+0.5)))
		}
	}
	f.memory(peaks)
}

// memory holds peaks against the limits. The second slope may be the larger one by a half: the garbage
// collector's steps are as large as the heap.
func (f *fleet) memory(peaks map[int]int) {
	f.hundred()
	first, second := float64(peaks[300]-peaks[100])/200, float64(peaks[1000]-peaks[300])/700
	fmt.Fprintf(f.t.Output(), "memory of a cluster: %.0f KiB from 100 to 300, %.0f KiB from 300 to 1,000\n", first*1024, second*1024)
	if least := 0.1; second > 1.5*max(first, least) { // MiB
		f.t.Errorf("memory does not grow linearly: %v", peaks)
	}
}

// restart: a new operator finds everything as it should be. It reads, and writes nothing but the Event that it leads.
func (f *fleet) restart() {
	f.operator.Kill()
	f.operator = f.startSingle()
	c := f.operator.settle().since(reading{})
	fmt.Fprintf(f.t.Output(), "restarted, %d clusters: %s; peak memory %d MiB\n", f.clusters, c, f.operator.peakMiB())
	const lists, looks, leads = 50, 3, 1
	if c.writes > leads || c.requests > lists || c.reconciles > float64(looks*f.clusters) {
		f.t.Errorf("after a restart, with nothing to do: %s", c)
	}
}
