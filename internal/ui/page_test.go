package ui

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
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
	must.Do(t, WriteDrift(&out, "junit", res))
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
	must.Equal(t, "elements", want, counts)
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

// changes are differences of every kind, and then more of one.
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
		Summary: []string{"contradicted: files: what the node shows does not fit together", "it claims the build that recast.lock wants"},
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
