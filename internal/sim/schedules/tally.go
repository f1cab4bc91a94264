package schedules

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Tally adds up the results of a run.
type Tally struct {
	Schedules, NodeRolls, Runs, Calls, Faults, Violations int
	Virtual                                               time.Duration

	drawn   map[string]map[string]int // drawn values: subject, value, count
	persons map[string]int
}

// NewTally is an empty Tally.
func NewTally() *Tally {
	return &Tally{drawn: map[string]map[string]int{}, persons: map[string]int{}}
}

// Add adds the result of one case.
func (t *Tally) Add(c Case, r Result) {
	t.Schedules++
	t.NodeRolls += r.NodeRolls
	t.Runs += r.Runs
	t.Calls += r.Calls
	t.Virtual += r.Virtual
	if len(r.Problems) > 0 {
		t.Violations++
	}
	count := func(subject string, values ...string) {
		if t.drawn[subject] == nil {
			t.drawn[subject] = map[string]int{}
		}
		for _, v := range values {
			t.drawn[subject][v]++
		}
	}
	for name, n := range r.Struck {
		t.Faults += n
		for range n {
			count("faults that struck", name)
		}
	}
	for reason, n := range r.Persons {
		t.persons[reason] += n
	}
	count("control planes", fmt.Sprint(c.ControlPlanes))
	count("workers", workers(c.Workers))
	count("hosts", fmt.Sprint(c.Hosts))
	for i := range c.nodes() {
		count("strategy of nodes", string(c.strategy(i)))
	}
	count("disks", cmp.Or(c.Storage, "dir")+map[bool]string{true: ", shared"}[c.Shared]+map[bool]string{true: ", data VM"}[c.Holder])
	count("etcd's data on", map[bool]string{true: "a persistent disk", false: "the system disk"}[c.EtcdOnData])
	count("rounds", strings.Join(c.Changes, ", "))
	count("machines boot", cmp.Or(c.Boot, "iso"))
	count("surge nodes", fmt.Sprint(c.Surge))
	count("faults drawn", fmt.Sprint(len(c.Faults)))
	count("recast and servers", map[bool]string{true: "without a wire", false: "over the wire"}[c.Direct])
}

// workers is the class of a number of workers.
func workers(n int) string {
	switch {
	case n <= 5:
		return fmt.Sprintf("%2d", n)
	case n <= 15:
		return " 6-15"
	}
	return "16-50"
}

// widest is the length of the longest bar.
const widest = 40

// Distribution prints the drawn values with a bar for each.
func (t *Tally) Distribution(w io.Writer) {
	for _, subject := range slices.Sorted(maps.Keys(t.drawn)) {
		fmt.Fprintln(w, subject)
		values := t.drawn[subject]
		most := slices.Max(slices.Collect(maps.Values(values)))
		for _, v := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(w, "  %-24s %6d %s\n", v, values[v], strings.Repeat("#", (values[v]*widest+most-1)/most))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(t.persons)) {
		fmt.Fprintf(w, "took a person %d times: …%s\n", t.persons[reason], reason)
	}
}

// String is the line of figures.
func (t *Tally) String() string {
	return fmt.Sprintf("%d schedules, %d node-rolls, %d runs, %d faults, %d violations, %s of virtual time, %d calls",
		t.Schedules, t.NodeRolls, t.Runs, t.Faults, t.Violations, t.Virtual.Round(time.Minute), t.Calls)
}
