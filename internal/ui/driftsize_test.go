package ui

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/pipeline"
)

func manyDrifts(nodes, stale int) pipeline.DriftResult {
	res := pipeline.DriftResult{Cluster: "c1", Stale: stale, InSync: stale == 0}
	for i := range nodes {
		d := observe.Drift{Node: fmt.Sprintf("wk%03d", i), Talos: "v1.13.9", Build: "abcdef0123456789"}
		if i < stale {
			d.Stale, d.Reasons = true, []cluster.Reason{{Code: "talos-version", Text: "Talos v1.13.8 → v1.13.9"}}
		}
		res.Nodes = append(res.Nodes, d)
	}
	return res
}

func TestDriftOfManyNodes(t *testing.T) {
	t.Parallel()
	res := manyDrifts(500, 2)
	for _, columns := range []int{0, 40, 80} {
		out := drawnAt(columns, false, func(p *page) { drawDrifts(p, res) })
		drawn(t, fmt.Sprintf("drift-of-500-%d-columns", columns), func(b *bytes.Buffer) error { _, err := b.Write(out.Bytes()); return err })
		if columns > 0 {
			tooWide(t, out.String(), columns)
		}
	}
	var md bytes.Buffer
	if err := WriteDrift(&md, "markdown", manyDrifts(500, 500)); err != nil || md.Len() > largest {
		t.Errorf("%d bytes of Markdown, %v", md.Len(), err)
	}
}

// junitRules are the elements that Jenkins' schema of JUnit results allows below
// each of those that recast writes, and the attributes that each has
// (jenkinsci/xunit-plugin, types/model/xsd/junit-10.xsd).
var junitRules = map[string]struct{ below, attrs []string }{
	"testsuites": {[]string{"testsuite"}, []string{"name", "time", "tests", "failures", "errors"}},
	"testsuite":  {[]string{"testsuite", "properties", "testcase", "system-out", "system-err"}, []string{"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"}},
	"testcase":   {[]string{"skipped", "error", "failure", "system-out", "system-err"}, []string{"name", "time", "classname", "group"}},
	"failure":    {nil, []string{"type", "message"}},
	"error":      {nil, []string{"type", "message"}},
	"system-out": {nil, nil},
}

// Any result, even one with characters that XML does not allow, is written as valid
// JUnit results.
func TestJUnitIsReadable(t *testing.T) {
	t.Parallel()
	res := manyDrifts(4, 2)
	res.Nodes[0].Reasons[0].Text = "]]> & <b> \x1b[31m\x00 \"quoted\""
	res.Nodes[2].Unread = []string{"no route\nsecond line"}
	res.Nodes[3].Notes = []string{"kept"}
	res.Unread = 1
	var out bytes.Buffer
	if err := WriteDrift(&out, "junit", res); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	var stack []string
	d := xml.NewDecoder(&out)
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			name := token.Name.Local
			rule, known := junitRules[name]
			if len(stack) > 0 && !slices.Contains(junitRules[stack[len(stack)-1]].below, name) || !known {
				t.Errorf("%s may not be in %v", name, stack)
			}
			for _, a := range token.Attr {
				if !slices.Contains(rule.attrs, a.Name.Local) {
					t.Errorf("%s may not have %s", name, a.Name.Local)
				}
			}
			stack = append(stack, name)
			counts[name]++
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		}
	}
	want := map[string]int{"testsuites": 1, "testsuite": 1, "testcase": 4, "failure": 2, "error": 1, "system-out": 4}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("elements (-want +got):\n%s", diff)
	}
}

func TestDriftInColours(t *testing.T) {
	t.Parallel()
	res := manyDrifts(3, 1)
	res.Nodes[1].Unread = []string{"no route"}
	out := drawnAt(0, true, func(p *page) { drawDrifts(p, res) }).String()
	for _, want := range []string{"\x1b[33mstale\x1b[0m    wk000", "\x1b[31munread\x1b[0m   wk001", "\x1b[32min sync\x1b[0m  wk002"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q does not hold %q", out, want)
		}
	}
}
