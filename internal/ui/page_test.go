package ui

import (
	"bytes"
	gocmp "cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
)

func TestWriteDrift(t *testing.T) {
	t.Parallel()
	drift := func(node string, reasons ...cluster.Reason) observe.Drift {
		return observe.Drift{Node: node, Build: "abcdef0123456789", Talos: "v1.13.9", Stale: len(reasons) > 0, Reasons: reasons}
	}
	kubernetes := cluster.Reason{Code: "kubernetes-version", Text: "Kubernetes v1.34.0 → v1.35.4", Old: "v1.34.0", New: "v1.35.4"}
	kept := drift("wk1")
	kept.Notes = []string{`previous system disk is parked as scsi30 of VM 9090 "recast-parking-wk1" on pve1 (run 20261120-0300-aaaa)`}
	unread := drift("wk2", cluster.Reason{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "recast-parking-wk2" on pve1`})
	unread.Unread = []string{"read machine 10.0.0.2: no route to host"}
	file := cluster.Reason{Code: "extension-file", Text: "/usr/local/sbin/iscsid of extension iscsi-tools v0.2.0: sha256:222222222222 → sha256:333333333333"}
	held := []pipeline.HeldBack{{
		What: "Longhorn: replica-replenishment-wait-interval was 600 before recast set it to 1800, while wk1 is away", Run: "20261120-0300-aaaa",
		Since: time.Date(2026, 11, 20, 3, 1, 0, 0, time.UTC), Next: []pipeline.Advice{{Command: "recast roll", Does: "gives it back"}, {Command: "kubectl patch x", Does: "does so by hand"}},
	}}
	for name, res := range map[string]pipeline.DriftResult{
		"drift-held":       {InSync: true, Held: held, HeldUnread: "LINSTOR: no usable answer", Nodes: []observe.Drift{drift("cp1"), drift("wk1")}},
		"drift-held-left":  {Held: held, HeldLeft: true, Nodes: []observe.Drift{drift("cp1"), drift("wk1")}},
		"drift-none":       {InSync: true, Unlisted: []string{"wk8", "wk9"}, Nodes: []observe.Drift{drift("cp1"), kept}},
		"drift-kubernetes": {Stale: 1, Nodes: []observe.Drift{drift("cp1", kubernetes), drift("wk1")}},
		"drift-stale": {Stale: 3, Nodes: []observe.Drift{
			drift("cp1", cluster.Reason{Code: "install-image", Text: "install image of its configuration: factory.example/nocloud-installer/ffff:v1.13.8 → factory.example/nocloud-installer/eeee@sha256:1111"}, kubernetes),
			drift("wk1", cluster.Reason{Code: "pending-reboot", Text: "talos-v1.13.9~1.efi is installed, but talos-v1.13.8.efi is running: the next reboot starts the other system"},
				cluster.Reason{Code: "boot-order", Text: "it boots from ide2 before its system disk scsi0"}),
			drift("wk2", cluster.Reason{Code: "cordoned", Text: "run r1 cordoned it to roll it in-place and did not finish"}, kubernetes),
		}},
		"drift-deep": {Stale: 2, Nodes: []observe.Drift{
			drift("wk1", file, cluster.Reason{Code: "extension-file", Text: "3 more files of extensions are not as locked"}),
			drift("wk2", cluster.Reason{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:000000000000 → sha256:111111111111"}, file),
		}},
		"drift-unread": {Unread: 1, Stale: 1, Nodes: []observe.Drift{drift("wk1"), unread}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res.Cluster = "c1"
			drawn(t, name, func(b *bytes.Buffer) error { return WriteDrift(b, "text", res) })
			drawn(t, name+".md", func(b *bytes.Buffer) error { return WriteDrift(b, "markdown", res) })
			drawn(t, name+".xml", func(b *bytes.Buffer) error { return WriteDrift(b, "junit", res) })
		})
	}
}

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

// junitRules are the elements that Jenkins' schema of JUnit results allows below each of those that recast writes, and
// the attributes that each has (jenkinsci/xunit-plugin, types/model/xsd/junit-10.xsd).
var junitRules = map[string]struct{ below, attrs []string }{
	"testsuites": {[]string{"testsuite"}, []string{"name", "time", "tests", "failures", "errors"}},
	"testsuite":  {[]string{"testsuite", "properties", "testcase", "system-out", "system-err"}, []string{"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"}},
	"testcase":   {[]string{"skipped", "error", "failure", "system-out", "system-err"}, []string{"name", "time", "classname", "group"}},
	"failure":    {nil, []string{"type", "message"}},
	"error":      {nil, []string{"type", "message"}},
	"system-out": {nil, nil},
}

// Any result, even one with characters that XML does not allow, is written as valid JUnit results.
func TestJUnitIsReadable(t *testing.T) {
	t.Parallel()
	res := manyDrifts(4, 2)
	res.Nodes[0].Reasons[0].Text = "]]> & <b> \x1b[31m\x00 \"quoted\""
	res.Nodes[2].Unread = []string{"no route\nsecond line"}
	res.Nodes[3].Notes = []string{"kept"}
	res.Unread = 1
	var out bytes.Buffer
	must.Do(t, WriteDrift(&out, "junit", res))
	counts := map[string]int{}
	var stack []string
	d := xml.NewDecoder(&out)
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			name := token.Name.Local
			rule, known := junitRules[name]
			must.Hold(t, (len(stack) == 0 || slices.Contains(junitRules[stack[len(stack)-1]].below, name)) && known,
				"%s may not be in %v", name, stack)
			for _, a := range token.Attr {
				must.Hold(t, slices.Contains(rule.attrs, a.Name.Local), "%s may not have %s", name, a.Name.Local)
			}
			stack = append(stack, name)
			counts[name]++
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		}
	}
	want := map[string]int{"testsuites": 1, "testsuite": 1, "testcase": 4, "failure": 2, "error": 1, "system-out": 4}
	must.Equal(t, "elements", want, counts)
}

func TestDriftInColours(t *testing.T) {
	t.Parallel()
	res := manyDrifts(3, 1)
	res.Nodes[1].Unread = []string{"no route"}
	out := drawnAt(0, true, func(p *page) { drawDrifts(p, res) }).String()
	must.Contain(t, "text", out, "\x1b[33mstale\x1b[0m    wk000", "\x1b[31munread\x1b[0m   wk001", "\x1b[32min sync\x1b[0m  wk002")
}

func changes(more int) []config.Change {
	out := []config.Change{
		{Document: "HostnameConfig", Path: "hostname", Kind: config.Changed, Found: "a", Wanted: "b"},
		{Document: "UserVolumeConfig data", Kind: config.Removed},
		{Document: "UserVolumeConfig data", Path: "provisioning.maxSize", Kind: config.Removed, Found: "10GiB"},
		{Document: "v1alpha1", Path: "cluster.secret", Kind: config.Changed, Found: config.Hidden, Wanted: config.Hidden},
		{Document: "v1alpha1", Path: `machine.sysctls["vm.swappiness"]`, Kind: config.Added, Wanted: "10"},
		{Document: "v1alpha1", Path: "machine.network.nameservers", Kind: config.Reordered, Found: "[1.1.1.1, 8.8.8.8]", Wanted: "[8.8.8.8, 1.1.1.1]"},
		{Document: "v1alpha1", Path: "machine.files[/x].path", Kind: config.Added, Wanted: strings.Repeat("long ", 40)},
	}
	for i := range more {
		out = append(out, config.Change{Document: "v1alpha1", Path: fmt.Sprintf("machine.nodeLabels.l%d", i), Kind: config.Added, Wanted: "\"\""})
	}
	return out
}

func withFile(n planning.NodePlan, f cluster.ConfigFile) planning.NodePlan {
	n.ConfigFile = &f
	return n
}

// TestWriteConfigFiles shows what files of talos.machineConfigs change: the same on two
// nodes, on one more than a plan shows, on one an unknown change.
func TestWriteConfigFiles(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("ab", 32)
	away := withFile(node("wk1", 9031, planning.Unfinished, cluster.Recreate, 240), cluster.ConfigFile{Hash: hash, Applied: true, Uncompared: "the node is unavailable; the file is the one that run 20261120-0300-aaaa remembered"})
	inPlace := withFile(node("cp1", 9001, planning.ControlPlanes, cluster.InPlace, 120), cluster.ConfigFile{Hash: hash, Runs: hash, Changes: changes(0)})
	inPlace.Notes = []string{"its file in talos.machineConfigs differs from what it runs; an upgrade in place leaves the configuration as it is"}
	few := cluster.ConfigFile{Hash: hash, Runs: hash, Applied: true, Changes: changes(0)}
	many := withFile(node("wk4", 9034, planning.Canary, cluster.Recreate, 240), cluster.ConfigFile{Hash: hash, Runs: hash, Applied: true, Changes: changes(10)})
	same := withFile(node("wk5", 9035, planning.Workers, cluster.Recreate, 240), cluster.ConfigFile{Hash: hash, Runs: hash, Applied: true})
	same.Phase = planning.Reset
	plan := planning.Plan{
		Run: "20261120-0300-aaaa", MaxUnavailable: 1, PerHost: 1, TotalSeconds: 960,
		Nodes: []planning.NodePlan{
			away, same, many, inPlace,
			withFile(node("wk2", 9032, planning.Workers, cluster.Recreate, 240), few), withFile(node("wk3", 9033, planning.Workers, cluster.Recreate, 240), few),
		},
	}
	drawn(t, "plan-files", func(b *bytes.Buffer) error { return WritePlan(b, "text", plan) })
	drawn(t, "plan-files.md", func(b *bytes.Buffer) error { return WritePlan(b, "markdown", plan) })
	drawn(t, "explain-file", func(b *bytes.Buffer) error {
		return WriteExplanation(b, "text", survey.Explanation{Cluster: "c1", Turn: 1, Of: 1, Plan: many})
	})
	drawn(t, "explain-file-in-place", func(b *bytes.Buffer) error {
		return WriteExplanation(b, "text", survey.Explanation{Cluster: "c1", Turn: 1, Of: 1, Plan: inPlace})
	})
}

func TestWriteProvenance(t *testing.T) {
	t.Parallel()
	p := observe.Provenance{
		Node: "wk1", VM: `VM 9031 "wk1" on pve1`, Address: netip.MustParseAddr("127.42.7.31"), Origin: observe.FromLock, Build: "b1", Wanted: "b1",
		Summary: []string{"contradicted: files: the node's answers contradict each other", "it claims the build that recast.lock wants"},
		Links: []observe.ProvenanceLink{
			{Name: "lock", Certainty: observe.Proven, Text: "recast.lock wants schematic storage", Details: []string{"schematic ID cafe", "installer registry.example/x@sha256:11"}},
			{Name: "schematic", Certainty: observe.Claimed, Text: "the image says that it was built by \x1b[31mImage Factory"},
			{Name: "cmdline", Certainty: observe.Unknown, Text: "the kernel's command line has no recast.lock"},
			{Name: "files", Certainty: observe.Contradicted, Text: "1 files of its extensions are not those of the images", Details: []string{"/usr/local/a of extension tool v1: sha256:aa → sha256:bb"}},
		},
	}
	drawn(t, "provenance", func(b *bytes.Buffer) error { return WriteProvenance(b, "text", p) })
	var out bytes.Buffer
	must.Do(t, WriteProvenance(&out, "json", p))
	var back observe.Provenance
	must.Do(t, json.Unmarshal(out.Bytes(), &back))
	must.Equal(t, "JSON", p, back, cmpopts.EquateComparable(netip.Addr{}))
}

func TestWrapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 25)
	for name, tc := range map[string]struct {
		columns    int
		text, want string
	}{
		"short":                       {20, "a b", "why: a b\n"},
		"nothing":                     {20, "", "why:\n"},
		"at spaces":                   {12, "aaa bbb ccc ddd", "why: aaa bbb\n  ccc ddd\n"},
		"a word that is too long":     {8, "aaa bbbbbbbbbb c", "why: aaa\n  bbbbbbbbbb\n  c\n"},
		"no terminal":                 {0, long, "why: " + strings.TrimSpace(long) + "\n"},
		"lines of its own":            {0, "a\n\nb", "why: a\n  b\n"},
		"few reasons":                 {0, reasons("a; b"), "why: a; b\n"},
		"many reasons":                {0, reasons(long + "a; b"), "why: " + long + "a;\n  b\n"},
		"colours take no room":        {12, (&page{colour: true}).paint(red, "aaa bbb") + " ccc", "why: \x1b[31maaa bbb\x1b[0m\n  ccc\n"},
		"letters count, not bytes":    {12, "äää ööö", "why: äää ööö\n"},
		"spaces are not worth a line": {12, "  aaa   bbb  ", "why: aaa bbb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			(&page{w: &out, columns: tc.columns}).wrapped("why: ", "  ", tc.text)
			must.Equal(t, "wrapped", tc.want, out.String())
		})
	}
}

func TestColoured(t *testing.T) {
	for name, c := range map[string]struct {
		no, force string
		want      bool
	}{
		"no terminal":       {"", "", false},
		"forced":            {"", "1", true},
		"forced with 0":     {"", "0", false},
		"NO_COLOR wins":     {"1", "1", false},
		"NO_COLOR is empty": {"", "yes", true},
	} {
		t.Setenv("NO_COLOR", c.no)
		t.Setenv("CLICOLOR_FORCE", c.force)
		must.Equal(t, name, c.want, coloured(&bytes.Buffer{}))
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"":                              "",
		"wk1":                           "wk1",
		"wk1 wk2 wk3":                   "wk1, wk2, wk3",
		"cp1 wk1 wk2 wk3 wk4 db":        "cp1, wk1…wk4, db",
		"wk8 wk9 wk10 wk11":             "wk8…wk11",
		"wk008 wk009 wk010 wk011 wk013": "wk008…wk011, wk013",
		"wk08 wk09 wk10 wk011 wk012":    "wk08, wk09, wk10, wk011, wk012",
		"a1 b2 c3 d4":                   "a1, b2, c3, d4",
		"wk4 wk3 wk2 wk1":               "wk4, wk3, wk2, wk1",
		"n99999999999999999999 n1":      "n99999999999999999999, n1",
		"a1 a2 a3 a4 a5 b1 b2 b3 b4 b6": "a1…a5, b1…b4, b6",
		"1 2 3 4":                       "1…4",
	} {
		must.Equal(t, names, want, together(strings.Fields(names)))
	}
}

func stringsOf(v reflect.Value) (out []string) {
	switch v.Kind() {
	case reflect.String:
		if v.Type() != reflect.TypeFor[Mood]() && v.String() != "" {
			out = append(out, v.String())
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, stringsOf(v.Index(i))...)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			out = append(out, stringsOf(field)...)
		}
	}
	return out
}

// requireWords: the text output has every text of the words, and the words have each of those texts.
func requireWords(t *testing.T, text string, words any, texts ...string) {
	t.Helper()
	all := stringsOf(reflect.ValueOf(words))
	must.Be(t, len(all) >= 5, "only %q", all)
	for _, word := range all {
		must.Contain(t, "the text", spaced(text), spaced(word))
	}
	for _, want := range texts {
		if !slices.ContainsFunc(all, func(word string) bool { return strings.Contains(word, want) }) {
			t.Errorf("the words do not say %q", want)
		}
	}
}

func same(text string) string { return text }

// The words of a plan are those that it prints, none more and no fact less.
func TestPlanInWords(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]planning.Plan{"every phase": everyPhase(), "many": many(500, 20)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			must.Do(t, WritePlan(&text, "text", plan))
			must.Do(t, AdvisePlan(&text, plan))
			var facts []string
			for _, n := range plan.Nodes {
				facts = append(facts, cluster.Each(factsOf(n), func(f Fact) string { return f.Text })...)
			}
			words := PlanInWords(plan, same)
			names := 0
			for i := range words.Idle {
				words.Idle[i].Node, names = "", names+1 // many share a line, which leaves names out
			}
			for _, p := range words.Phases {
				names += len(p.Nodes)
			}
			must.Equal(t, "number of nodes", len(plan.Nodes), names)
			requireWords(t, text.String(), words, append(facts, plan.Warn...)...)
		})
	}
}

func TestDriftInWords(t *testing.T) {
	t.Parallel()
	res := pipeline.DriftResult{Stale: 1, Unread: 1, Unlisted: []string{"wk9"}, Nodes: []observe.Drift{
		{Node: "cp1", Talos: "v1.13.9", Build: "abcdef0123456789"},
		{Node: "wk1", Talos: "v1.13.8", Build: "abcdef0123456789", Stale: true, Reasons: []cluster.Reason{{Code: "talos", Text: "Talos v1.13.8 → v1.13.9"}}, Notes: []string{"a disk is parked"}},
		{Node: "wk2", Build: "abcdef0123456789", Unread: []string{"no route to host"}},
	}}
	var text bytes.Buffer
	must.Do(t, WriteDrift(&text, "text", res))
	words := DriftInWords(res, same)
	requireWords(t, text.String(), words, "Talos v1.13.8 → v1.13.9", "a disk is parked", "no route to host", "wk9", "recast plan", "recast doctor")
	order := cluster.Each(words.Nodes, func(n NodeWords) string { return n.Node + " " + n.State + " " + string(n.Mood) })
	want := []string{"wk2 unread bad", "wk1 stale open", "cp1 in sync good"}
	must.Hold(t, slices.Equal(order, want) && words.InSync == 1, "nodes %q, %d in sync", order, words.InSync)
	hidden := DriftInWords(res, func(string) string { return "x" })
	if all := strings.Join(stringsOf(reflect.ValueOf(hidden)), " "); strings.Contains(all, "parked") || strings.Contains(all, "route") || strings.Contains(all, "→") {
		t.Errorf("not hidden: %s", all)
	}
}

// Text from a server can't control the terminal.
func TestForeignTextDoesNotControlTheTerminal(t *testing.T) {
	t.Parallel()
	const words = "no space\x1b[2J\x1b]52;c;eA==\x07 left\u009b1A\u202e"
	var out bytes.Buffer
	p := NewProgress(&out)
	p.Emit(step.Event{Path: "roll", Title: "roll " + words, Status: step.Started})
	p.Emit(step.Event{Path: "roll", Status: step.Note, Text: words})
	err := fault.WithSafe(fault.WithHint(errors.New(words+"\nand more"), "%s", words), words)
	must.Do(t, WriteTrouble(&out, Trouble{Err: err, Runbook: func(fault.Code) string { return "" }}))
	res := pipeline.StatusResult{Kubernetes: words, Problems: []string{words}, Claim: &pipeline.ClaimHeld{}}
	res.Claim.Holder.Host = words
	must.Do(t, WriteStatus(&out, "text", res))
	if foreign.Lines(out.String()) != out.String() || strings.Count(out.String(), "no space left\ufffd1A\ufffd") != 8 {
		t.Errorf("%q", &out)
	}
	must.Contain(t, "an error of several lines", out.String(), "\nand more\n")
}

// A terminal with colours gets only the colours of paint, and a text that is not from recast can't add lines.
func TestColoursAreOurs(t *testing.T) {
	t.Parallel()
	const words = "disk\x1b[32m is fine\x1b[0m\nsafe: all of it"
	var out bytes.Buffer
	p := &page{w: &out, colour: true}
	p.line("%s %s", p.paint(red, "lost:"), words)
	p.row(tableOf(widest, []string{words}), "", p.paint(red, words), words)
	p.wrapped(p.paint(red, "lost:")+" ", "  ", words)
	const want = "\x1b[31mlost:\x1b[0m disk is fine safe: all of it\n" +
		"\x1b[31mdisk is fine safe: all of it\x1b[0m  disk is fine safe: all of it\n" +
		"\x1b[31mlost:\x1b[0m disk is fine\n  safe: all of it\n"
	must.Equal(t, "value", want, out.String())
}

// Text from a node can't add markup, rows or lines to a comment or to test results, and
// the JSON output has the same text without control characters for the terminal.
func TestForeignTextInReports(t *testing.T) {
	t.Parallel()
	const words = "bad\x1b[31m | `code` |\r\n| fake | row |\n## <b>\u202e\u009b1A\x00"
	drift := observe.Drift{Node: "wk1", Stale: true, Talos: words, Reasons: []cluster.Reason{{Code: "extension", Text: words}}, Notes: []string{words}}
	res := pipeline.DriftResult{Cluster: "c", Nodes: []observe.Drift{drift}}
	print := func(format string) string {
		var out bytes.Buffer
		must.Do(t, WriteDrift(&out, format, res))
		must.Equal(t, format, foreign.Lines(out.String()), out.String())
		return out.String()
	}
	print("text")
	markdown := print("markdown")
	if strings.Count(markdown, "\n| ") != 2 || strings.Count(markdown, "\n#") != 0 || strings.Contains(markdown, "<b>") {
		t.Errorf("%s", markdown)
	}
	failure := regexp.MustCompile(`(?s)<failure .*</failure>`).FindString(print("junit"))
	must.Hold(t, failure != "" && !strings.Contains(failure, "&#xA;"), "%s", failure)
	var again pipeline.DriftResult
	if err := json.Unmarshal([]byte(print("json")), &again); err != nil || again.Nodes[0].Talos != words {
		t.Errorf("%q: %v", again.Nodes[0].Talos, err)
	}
	var plan bytes.Buffer
	p := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Drift: drift, Strategy: cluster.Recreate, Why: words, WillLose: []string{words}, Notes: []string{words}}}, Warn: []string{words}}
	must.Do(t, WritePlan(&plan, "markdown", p))
	if text := plan.String(); foreign.Lines(text) != text || strings.Count(text, "\n| ") != 2 || strings.Count(text, "\n#") != 0 {
		t.Errorf("%s", text)
	}
}

// answers are what commands print with -o json, by the name of the schema in docs/schemas.
var answers = map[string]struct {
	title string
	of    any
}{
	"plan":    {"recast plan -o json", &planning.Plan{}},
	"explain": {"recast plan --explain NODE -o json", &survey.Explanation{}},
	"drift":   {"recast drift -o json", &pipeline.DriftResult{}},
	"config":  {"recast config diff -o json", &configs.Diffs{}},
	"status":  {"recast status -o json", &pipeline.StatusResult{}},
	"report":  {"recast roll and recast undo -o json", &Report{}},
}

func schemaFile(name string) string {
	return filepath.Join("..", "..", "docs", "schemas", name+".schema.json")
}

// TestSchemasAreUpToDate keeps the published schemas equal to what is printed:
// go test ./internal/ui -run SchemasAreUpToDate -update.
func TestSchemasAreUpToDate(t *testing.T) {
	t.Parallel()
	r := reflector(t)
	for name, answer := range answers {
		s := r.Reflect(answer.of)
		s.Title = answer.title
		emptyLists(s)
		var got bytes.Buffer
		e := json.NewEncoder(&got)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		must.Do(t, e.Encode(s))
		if *update {
			must.Do(t, os.WriteFile(schemaFile(name), got.Bytes(), 0o644))
		}
		want := must.Get(os.ReadFile(schemaFile(name)))(t)
		must.Equal(t, name+": run again with -update: -file +types", string(want), got.String())
	}
}

// reflector creates schemas of types. Other properties are allowed: additions in a later
// version are no reason to refuse an answer.
func reflector(t *testing.T) *jsonschema.Reflector {
	t.Helper()
	r := &jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: true, Mapper: wordSchema, CommentMap: map[string]string{}}
	for _, pattern := range []string{"cluster", "cluster/*", "pipeline", "pipeline/*", "internal/ui"} {
		files := must.Get(filepath.Glob(filepath.Join("..", "..", pattern, "*.go")))(t)
		for _, file := range files {
			b := must.Get(os.ReadFile(file))(t)
			if strings.HasSuffix(file, "_test.go") || !bytes.Contains(b, []byte("`json:")) {
				continue // parsing all of them takes a second
			}
			parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, b, parser.ParseComments|parser.SkipObjectResolution))(t)
			comments(parsed, "github.com/recast-sh/recast/"+strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../"), r.CommentMap)
		}
	}
	return r
}

// comments collects the comments of a file's structs and fields, in the form that the reflector expects.
func comments(f *ast.File, pkg string, into map[string]string) {
	for _, decl := range f.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			named, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			of, ok := named.Type.(*ast.StructType)
			if !ok {
				continue
			}
			key := pkg + "." + named.Name.Name
			into[key] = new(doc.Package).Synopsis(gen.Doc.Text())
			for _, field := range of.Fields.List {
				text := gocmp.Or(field.Doc.Text(), field.Comment.Text())
				for _, name := range field.Names {
					into[key+"."+name.Name] = strings.TrimSpace(text)
				}
			}
		}
	}
}

// emptyLists lets lists that are always present be null: that is an empty list.
func emptyLists(s *jsonschema.Schema) {
	for _, def := range s.Definitions {
		for pair := def.Properties.Oldest(); pair != nil; pair = pair.Next() {
			if list := pair.Value; list.Type == "array" && slices.Contains(def.Required, pair.Key) {
				pair.Value = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "array", Items: list.Items}, {Type: "null"}}, Description: list.Description}
			}
		}
	}
}

// wordSchema describes the types whose values are words, or written as text.
func wordSchema(t reflect.Type) *jsonschema.Schema {
	words := func(list ...any) *jsonschema.Schema { return &jsonschema.Schema{Type: "string", Enum: list} }
	switch t {
	case reflect.TypeFor[cluster.Strategy]():
		return words("auto", "recreate", "reimage", "in-place", "rollback", "put-back", "apply-config", "install-reset", "reshape", "create", "remove", "")
	case reflect.TypeFor[planning.Phase]():
		return words("unfinished", "reset", "canary", "control-planes", "workers")
	case reflect.TypeFor[survey.Fate]():
		return words("stays", "carried", "detached", "replaced", "back", "pods", "medium")
	case reflect.TypeFor[NodeOutcome]():
		return words("done", "not needed", "failed", "stopped", "not started")
	case reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix]():
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// TestSchemasFitWhatIsPrinted checks answers in every shape against the schemas.
func TestSchemasFitWhatIsPrinted(t *testing.T) {
	t.Parallel()
	refused := many(2, 1)
	refused.Nodes[0].Strategy, refused.Nodes[0].Refused = cluster.Auto, []string{"no"}
	for name, values := range map[string][]any{
		"plan":    {everyPhase(), many(3, 2), refused},
		"explain": {explained()},
		"drift":   {manyDrifts(3, 1)},
		"status": {
			pipeline.StatusResult{Open: []pipeline.Half{}, Marked: []pipeline.Marked{}, Kept: []pipeline.Kept{}},
			pipeline.StatusResult{
				Claim: &pipeline.ClaimHeld{VMID: 9089, State: claim.State{Run: "r1"}}, LastRun: &pipeline.RunStatus{ID: "r1", Took: []cluster.Took{{Node: "wk1", Steps: map[string]int{"pull": 1}}}},
				Open: []pipeline.Half{{Node: "wk1", Strategy: cluster.Recreate, VMState: pipeline.VMDeleted}}, Marked: []pipeline.Marked{{Node: "wk2", Next: []pipeline.Advice{{Command: "recast roll", Does: "x"}}}},
				Kept: []pipeline.Kept{{Node: "wk1", SizeBytes: 1 << 40}},
			},
		},
		"report": {Report{pipeline.Report{Plan: many(3, 2)}, Fared{Nodes: []NodeFared{{Node: "wk1", Outcome: NodeDone}}}}},
	} {
		schema := must.Get(validator.NewCompiler().Compile(schemaFile(name)))(t)
		for _, v := range values {
			var out bytes.Buffer
			must.Do(t, write(&out, "json", v, nil))
			doc := must.Get(validator.UnmarshalJSON(&out))(t)
			err := schema.Validate(doc)
			must.Hold(t, err == nil, "%s: %v", name, err)
		}
		must.Hold(t, schema.Validate(map[string]any{"cluster": 1}) != nil, "%s fits anything", name)
	}
}

// TestSchemasDescribeWhatTheyPublish: most fields have a description.
func TestSchemasDescribeWhatTheyPublish(t *testing.T) {
	t.Parallel()
	for name := range answers {
		b := must.Get(os.ReadFile(schemaFile(name)))(t)
		n := strings.Count(string(b), `"description": `)
		must.Hold(t, n >= 10, "%s: %d descriptions", name, n)
	}
}
