package ui

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
)

func explained() survey.Explanation {
	n := many(2, 1).Nodes[0]
	n.Slots = []string{"host/pve1"}
	n.System.NewSize = "20G"
	return survey.Explanation{
		Cluster: "c1", PlanID: "0123456789abcdef", Turn: 1, Of: 3, Batch: &planning.Batch{Phase: planning.Canary, Nodes: []string{"wk000"}, Limit: 1}, Plan: n, Asked: cluster.Recreate,
		Compared: []survey.Comparison{
			{What: "Talos", Found: "v1.13.9", Wanted: "v1.13.9", Same: true},
			{What: "build", Wanted: "abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789"},
			{What: "extension iscsi-tools", Found: "v0.2.0 sha256:000000000000", Wanted: "v0.2.0 sha256:111111111111"},
		},
		Strategies: []survey.StrategyChoice{
			{Strategy: cluster.Recreate, Taken: true, WillLose: []string{"PersistentVolume pvc-1 on the system disk will be lost"}},
			{Strategy: cluster.Reimage},
			{Strategy: cluster.InPlace, Against: []string{"build abcdef012345 came back as the old system once, and is never tried again with the same image"}},
		},
		Disks: []survey.DiskFate{
			{DiskPlan: *n.System, Owner: 10000, Fate: survey.FateReplaced, Does: "parked and kept; a blank disk takes its place"},
			{DiskPlan: n.Carried[0], Owner: 10000, Fate: survey.FateCarried, Does: "carried over"},
			{DiskPlan: planning.DiskPlan{Key: "ide2", Volid: "none"}, Fate: survey.FateMedium, Does: "a CD drive"},
		},
		Steps: []survey.StepOutline{
			{Path: "pull", Title: "have wk000 fetch the installer", Risk: "safe", Seconds: 12, SecondsFrom: "3 earlier rolls of it"},
			{Path: "take-down/drain", Title: "drain wk000", Risk: "disruptive", Seconds: 65, SecondsFrom: "3 earlier rolls of it", TimeoutSeconds: 600},
			{Path: "take-down/delete-vm", Title: "delete the VM, which owns no disk any more", Risk: "destructive", SecondsFrom: "3 earlier rolls of it"},
		},
	}
}

func TestWriteExplanation(t *testing.T) {
	t.Parallel()
	idle := survey.Explanation{Of: 1, Asked: cluster.Auto, Plan: inSync("wk1"), Strategies: explained().Strategies[1:2]}
	for name, e := range map[string]survey.Explanation{"explain": explained(), "explain-in-sync": idle} {
		drawn(t, name, func(b *bytes.Buffer) error { return WriteExplanation(b, "text", e) })
	}
}

func TestExplanationAtEveryWidth(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{40, 80} {
		var out bytes.Buffer
		p := &page{w: &out, columns: columns}
		drawExplanation(p, explained())
		drawn(t, fmt.Sprintf("explain-%d-columns", columns), func(b *bytes.Buffer) error { b.Write(out.Bytes()); return p.err })
		tooWide(t, out.String(), columns)
	}
}
