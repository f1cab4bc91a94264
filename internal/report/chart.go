package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
)

// chart is a number over time.
type chart struct {
	Name, Text    string
	Line          string // of the drawing
	Gaps          []bar  // without an answer
	Top, Bottom   int    // values at its edges
	Lowest, Least string // label and value of the figure for the lowest value
	Changes       []change
	Well          bool // it was never lower than at the end
}

// change is a change of the number.
type change struct {
	At   time.Time
	Text string
}

// reading is one measurement.
type reading struct {
	at      time.Time
	known   bool
	is, of  int
	lacking []string
}

// tall is the height of a chart in its own units, with some space at both edges.
const (
	tall = 100
	edge = 6
)

// fewNodes is the number up to which a chart starts at 0; above it, it starts at the lowest value.
const fewNodes = 12

func (v view) charts() []chart {
	var out []chart
	for _, c := range []struct {
		name, lowest, lack string
		read               func(planning.Pulse) reading
	}{
		{"Ready nodes", "fewest Ready nodes", "not Ready", func(p planning.Pulse) reading {
			return reading{known: p.Kubernetes, is: p.Ready(), of: p.Nodes, lacking: p.NotReady}
		}},
		{"healthy members of etcd", "fewest healthy members of etcd", "not healthy", func(p planning.Pulse) reading {
			return reading{known: p.Etcd && p.Members > 0, is: p.Well(), of: p.Members, lacking: p.Unwell}
		}},
	} {
		var readings []reading
		for _, p := range v.Story.Pulses {
			r := c.read(p.Pulse)
			r.at = p.At
			readings = append(readings, r)
		}
		if drawn, any := v.chart(readings, c.lack); any {
			drawn.Name, drawn.Lowest = c.name, c.lowest
			out = append(out, drawn)
		}
	}
	return out
}

// chart draws readings: each holds until the next.
func (v view) chart(readings []reading, lack string) (c chart, any bool) {
	known := slices.DeleteFunc(slices.Clone(readings), func(r reading) bool { return !r.known })
	if len(known) == 0 {
		return c, false
	}
	least := slices.MinFunc(known, func(a, b reading) int { return a.is - b.is })
	c.Least = fmt.Sprintf("%d of %d", least.is, slices.MaxFunc(known, func(a, b reading) int { return a.of - b.of }).of)
	for _, r := range known {
		c.Top = max(c.Top, r.of)
	}
	c.Top = max(c.Top, 1)
	if c.Top > fewNodes {
		c.Bottom = max(0, least.is-2)
	}
	last := known[len(known)-1]
	c.Well = least.is == last.is
	c.Text = fmt.Sprintf("lowest %d, at the end %d of %d", least.is, last.is, last.of)
	c.Line, c.Gaps = v.line(readings, c)
	c.Changes = changes(readings, lack)
	return c, true
}

func (v view) line(readings []reading, c chart) (line string, gaps []bar) {
	var b strings.Builder
	y := func(is int) float64 {
		return tall - edge - float64(tall-2*edge)*float64(max(is-c.Bottom, 0))/float64(max(1, c.Top-c.Bottom))
	}
	drawing := false
	for i, r := range readings {
		until := v.Axis.To
		if i+1 < len(readings) {
			until = readings[i+1].at
		}
		if !r.known {
			gaps, drawing = append(gaps, v.Axis.bar(r.at, until, "gap", "no answer for")), false
			continue
		}
		command := "M"
		if drawing {
			command = "L"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", command, v.Axis.x(r.at), y(r.is))
		fmt.Fprintf(&b, "H%.1f", v.Axis.x(until))
		drawing = true
	}
	return b.String(), gaps
}

// changes lists the readings that differ from the one before.
func changes(readings []reading, lack string) (out []change) {
	last := ""
	for _, r := range readings {
		text := "no answer"
		if r.known {
			text = fmt.Sprintf("%d of %d", r.is, r.of)
		}
		if r.known && len(r.lacking) > 0 {
			text += "; " + lack + ": " + strings.Join(r.lacking, ", ")
		}
		if text != last {
			out, last = append(out, change{r.at, text}), text
		}
	}
	return out
}
