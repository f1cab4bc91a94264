package ui

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
)

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
