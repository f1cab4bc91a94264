package ui

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

var update = flag.Bool("update", false, "write the golden files anew")

// drawn compares what a command prints with a golden file.
func drawn(t *testing.T, name string, draw func(*bytes.Buffer) error) {
	t.Helper()
	var out bytes.Buffer
	must.Do(t, draw(&out))
	file := filepath.Join("testdata", name+".golden")
	if *update {
		must.Do(t, os.WriteFile(file, out.Bytes(), 0o600))
	}
	want := must.Get(os.ReadFile(file))(t)
	must.Equal(t, "drawing", string(want), out.String())
}

var (
	system = &planning.DiskPlan{Key: "scsi0", Serial: "sys", Volid: "fast:vm-9031-disk-0", Size: "10G"}
	data   = planning.DiskPlan{Key: "scsi1", Serial: "data-wk1", Volid: "fast:vm-9031-disk-1", Size: "20G"}
	stale  = observe.Drift{Stale: true, Reasons: []cluster.Reason{
		{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:000000000000 → sha256:111111111111"},
	}}
)

func node(name string, id cluster.VMID, phase planning.Phase, s cluster.Strategy, seconds int) planning.NodePlan {
	n := planning.NodePlan{Node: name, Role: "worker", Phase: phase, Strategy: s, VMID: id, Host: "pve1", OutageSeconds: seconds, Drift: stale}
	if phase == planning.ControlPlanes {
		n.Role = "control-plane"
	}
	return n
}

func inSync(name string) planning.NodePlan {
	return planning.NodePlan{Node: name, Role: "worker", Phase: planning.Workers, Why: "runs v1.13.9 build abcdef012345"}
}

func everyPhase() planning.Plan {
	resumed := node("wk3", 9033, planning.Unfinished, cluster.PutBack, 180)
	resumed.Why = "run 20261120-0300-aaaa began to recreate it and did not finish; its old system disk is put back: " +
		"its machine configuration is only on the old system disk"
	resumed.System, resumed.Carried, resumed.Drift = system, []planning.DiskPlan{data}, observe.Drift{}
	canary := node("wk1", 9031, planning.Canary, cluster.Recreate, 240)
	canary.Why, canary.System, canary.Carried = "recreate: possible, every persistent disk can be carried over", system, []planning.DiskPlan{data}
	canary.Renewed, canary.System = []string{"vmgenid", "meta", "volid of scsi1"}, new(*system)
	canary.System.NewSize = "20G"
	cp := node("cp1", 9001, planning.ControlPlanes, cluster.InPlace, 120)
	cp.Why = "in-place: a new system disk is impossible (the only etcd member's data would be lost with the system disk)"
	cp.System, cp.Notes = system, []string{"it is the only control plane: the Kubernetes API is down meanwhile"}
	cp.Drift.Reasons = append(cp.Drift.Reasons, cluster.Reason{Code: "kubernetes-version", Text: "Kubernetes v1.34.0 → v1.35.4"})
	losing := node("wk2", 9032, planning.Workers, cluster.Reimage, 240)
	losing.System, losing.WillLose = system, []string{"PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost"}
	back := node("wk4", 9034, planning.Workers, cluster.Rollback, 180)
	back.System, back.Drift = system, observe.Drift{}
	kept := inSync("wk6")
	kept.Drift = observe.Drift{Stale: true, Reasons: []cluster.Reason{{Code: "kubernetes-version", Text: "Kubernetes v1.34.0 → v1.35.4"}}}
	unread := inSync("wk7")
	unread.Why, unread.Drift = "it could not be read", observe.Drift{Unread: []string{"read machine 10.0.0.7: no route"}}
	return planning.Plan{
		Run: "20261120-0300-aaaa", TotalSeconds: 16 * 60, MaxUnavailable: 2, PerHost: 1, Nodes: []planning.NodePlan{resumed, canary, cp, losing, back, kept, unread},
		Warn: []string{"the Proxmox cluster has no quorum: a roll will refuse to start"},
	}
}

func TestWritePlan(t *testing.T) {
	t.Parallel()
	every := everyPhase()
	canary, losing := every.Nodes[1], every.Nodes[3]
	proved := node("wk1", 9031, planning.Workers, cluster.Recreate, 240)
	proved.Found.VM = &cluster.VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi1": "bulk:vm-9031-disk-1", "scsi2": "held:vm-200-disk-0"}}
	refused := node("wk5", 9035, planning.Workers, cluster.Auto, 0)
	refused.Why, refused.Refused = "no strategy is possible", []string{"recreate, reimage: the VM has snapshots (before), whose disks can't leave it: delete them first", "in-place: x"}
	refused.ToRecreate = []cluster.Obstacle{{Text: "the VM has snapshots (before), whose disks can't leave it: delete them first", Command: "qm delsnapshot 9035 before"}}
	losing.ToRecreate = []cluster.Obstacle{
		{Text: "its setting hookscript can only be written by root@pam: use a resource mapping where there is one, or reimage", Command: "qm set 9032 --delete hookscript"},
		{Text: "the VM has 2 firewall rules, which a delete would drop or be refused for: remove it, or use reimage"},
		{Text: "the VM has replication job 9032-0, which a delete would drop or be refused for: remove it, or use reimage"},
	}

	left := inSync("wk8")
	left.Why, left.Paused, left.Drift = "paused: @ops | see #12 <b>*now*</b>\nor later", "x", stale

	made, over := node("wk-surge1", 9041, planning.Surge, cluster.Create, 240), node("wk-surge2", 9042, planning.SurgeEnd, cluster.Remove, 120)
	made.Drift, over.Carried = observe.Drift{}, []planning.DiskPlan{*system}

	for name, plan := range map[string]planning.Plan{
		"plan-surge": {
			Cluster: "c1", ID: "0123456789abcdef", Nodes: []planning.NodePlan{made, canary, over}, MaxUnavailable: 1, PerHost: 1, TotalSeconds: 600,
			Surge: &planning.SurgePlan{Nodes: []string{"wk-surge1"}, Make: []string{"wk-surge1"}, Remove: []string{"wk-surge2"}, Workers: 3, Least: 3},
		},
		"plan-paused": {
			Cluster: "c1", ID: "0123456789abcdef", Nodes: []planning.NodePlan{canary, losing, left}, MaxUnavailable: 1, PerHost: 1, TotalSeconds: 480,
			Batches: []planning.Batch{{Phase: planning.Canary, Nodes: []string{"wk1"}, Limit: 1}, {Phase: planning.Workers, Nodes: []string{"wk2"}, Limit: 1}},
		},
		"plan-nothing":     {Nodes: []planning.NodePlan{inSync("wk1"), inSync("wk2")}},
		"plan-every-phase": every,
		"plan-gates": {
			Nodes: []planning.NodePlan{node("wk1", 9031, planning.Workers, cluster.Recreate, 240)}, MaxUnavailable: 1, PerHost: 1, TotalSeconds: 240,
			Gates: []cluster.UserGate{
				{TimeoutSeconds: 3600, Description: "Ceph is whole", Objects: &cluster.ObjectGate{
					APIVersion: "ceph.rook.io/v1", Kind: "CephCluster", Expr: "now - timestamp(status.ceph.lastChecked) < duration('5m') &&\n(status.ceph.health == 'HEALTH_OK')",
				}},
				{TimeoutSeconds: 30, Command: &cluster.CommandGate{Args: []string{"./check.sh", "1"}}, BeforeOnly: true},
			},
			Storage: []planning.StorageSystem{{Name: "Longhorn", Volumes: 12, WaitSeconds: 600, Held: "Longhorn: replica-replenishment-wait-interval was 600 before recast set it to 1800, while wk3 is away"}, {Name: "Ceph"}},
		},
		"plan-rehearsal": {
			Cluster: "c1", Nodes: []planning.NodePlan{proved}, MaxUnavailable: 1, PerHost: 1, TotalSeconds: 240,
			Scratch: []planning.LeftScratch{{VMID: 9099, Name: "recast-rehearse-9099", Host: "pve2", Run: "20261120-0300-aaaa"}},
			Trials: []planning.Trial{
				{Host: "pve1", Firmware: "OVMF, q35, CPU host, disk on scsi (virtio-scsi-single)", Medium: planning.Medium{Disk: "recast-v1.13.9-abcdef012345-nocloud-amd64.qcow2"}, Schematic: "storage", Nodes: []string{"wk1", "wk2"}, Addr: netip.MustParsePrefix("192.0.2.250/24")},
				{Host: "pve2", Firmware: "SeaBIOS, i440fx, CPU kvm64", Medium: planning.Medium{ISO: "recast-v1.13.9-abcdef012345-nocloud-amd64.iso"}, Schematic: "storage", Nodes: []string{"wk3"}},
			},
		},
		"plan-refused": {Nodes: []planning.NodePlan{refused, inSync("wk1")}, MaxUnavailable: 1, PerHost: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drawn(t, name, func(b *bytes.Buffer) error { return WritePlan(b, "text", plan) })
			drawn(t, name+".md", func(b *bytes.Buffer) error { return WritePlan(b, "markdown", plan) })
		})
	}
}

func TestPlanAsJSONIsThePlan(t *testing.T) {
	t.Parallel()
	plan := planning.Plan{Cluster: "c1", Nodes: []planning.NodePlan{node("wk1", 9031, planning.Workers, cluster.Recreate, 240)}, MaxUnavailable: 1, PerHost: 1}
	var out bytes.Buffer
	must.Do(t, WritePlan(&out, "json", plan))
	var got planning.Plan
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Nodes[0].Strategy != cluster.Recreate || got.Nodes[0].OutageSeconds != 240 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestLossesAreRed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	n := node("wk2", 9032, planning.Workers, cluster.Reimage, 240)
	n.WillLose = []string{"PersistentVolume pvc-1 on the system disk will be lost"}
	drawPlan(&page{w: &out, colour: true}, planning.Plan{Nodes: []planning.NodePlan{n}, TotalSeconds: 240})
	must.Contain(t, "text", out.String(), "\x1b[31mwill be lost: PersistentVolume pvc-1 on the system disk\x1b[0m", "\x1b[31mdata will be lost on wk2\x1b[0m")
}

// drawnAt draws for a terminal with that many columns.
func drawnAt(columns int, colour bool, draw func(*page)) *bytes.Buffer {
	var out bytes.Buffer
	draw(&page{w: &out, columns: columns, colour: colour})
	return &out
}

func TestPlanAtEveryWidth(t *testing.T) {
	t.Parallel()
	plan := everyPhase()
	all := drawnAt(0, false, func(p *page) { drawPlan(p, plan) }).String()
	for _, columns := range []int{40, 80, 200} {
		name := fmt.Sprintf("plan-%d-columns", columns)
		drawn(t, name, func(b *bytes.Buffer) error {
			_, err := b.Write(drawnAt(min(columns, readable), false, func(p *page) { drawPlan(p, plan) }).Bytes())
			return err
		})
		out := drawnAt(min(columns, readable), false, func(p *page) { drawPlan(p, plan) }).String()
		tooWide(t, out, columns)
		// A comma may stand between what is a column elsewhere.
		must.Equal(t, fmt.Sprintf("text of %d columns", columns), spaced(all), spaced(out))
	}
}

// tooWide finds lines that a terminal would break, except lines of a single word.
func tooWide(t *testing.T, out string, limit int) {
	t.Helper()
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, "\n"); columns(line) > limit && len(strings.Fields(line)) > 2 {
			t.Errorf("%d of %d columns: %s", columns(line), limit, line)
		}
	}
}

func spaced(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, ",", " ")), " ")
}

// Colours add no information to the words.
func TestPlanInColours(t *testing.T) {
	t.Parallel()
	plan := everyPhase()
	coloured := drawnAt(0, true, func(p *page) { drawPlan(p, plan) }).String()
	drawn(t, "plan-colours", func(b *bytes.Buffer) error { b.WriteString(coloured); return nil })
	sequences := regexp.MustCompile("\x1b\\[[0-9]+m")
	if plain := drawnAt(0, false, func(p *page) { drawPlan(p, plan) }).String(); sequences.ReplaceAllString(coloured, "") != plain {
		t.Error("in colours the plan is another one")
	}
}

func many(nodes, changing int) planning.Plan {
	plan := planning.Plan{Cluster: "c1", ID: "0123456789abcdef", MaxUnavailable: 5, PerHost: 1, TotalSeconds: 240 * ((changing + 4) / 5)}
	batch := planning.Batch{Phase: planning.Workers, Limit: 5}
	for i := range nodes {
		name := fmt.Sprintf("wk%03d", i)
		if i >= changing {
			plan.Nodes = append(plan.Nodes, inSync(name))
			continue
		}
		n := node(name, cluster.VMID(10000+i), planning.Workers, cluster.Recreate, 240)
		n.Host, n.Why, n.OutageFrom = fmt.Sprintf("pve%d", 1+i%12), "recreate: possible, every persistent disk can be carried over", assumed
		n.Carried = []planning.DiskPlan{{Key: "scsi1", Serial: "data-" + name, Volid: fmt.Sprintf("fast:vm-%d-disk-1", n.VMID), Size: "20G"}}
		n.System = &planning.DiskPlan{Key: "scsi0", Serial: "sys", Volid: fmt.Sprintf("fast:vm-%d-disk-0", n.VMID), Size: "10G"}
		n.Renewed = []string{"vmgenid", "meta", "volid of scsi1"}
		plan.Nodes, batch.Nodes = append(plan.Nodes, n), append(batch.Nodes, name)
	}
	plan.Batches = []planning.Batch{batch}
	return plan
}

// For a large cluster a plan shows what changes, and shows once what all changes have in common.
func TestPlanOfManyNodes(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]planning.Plan{"plan-of-500": many(500, 3), "plan-of-30": many(30, 30)} {
		drawn(t, name, func(b *bytes.Buffer) error { return WritePlan(b, "text", plan) })
		drawn(t, name+".md", func(b *bytes.Buffer) error { return WritePlan(b, "markdown", plan) })
	}
	all := many(500, 500)
	var text, md bytes.Buffer
	must.Do(t, WritePlan(&text, "text", all))
	lines := strings.Count(text.String(), "\n")
	must.Hold(t, lines <= 3*500+20, "%d lines", lines)
	must.Do(t, WritePlan(&md, "markdown", all))
	if md.Len() > largest || !strings.Contains(md.String(), "- 500 on 500 nodes") || strings.Count(md.String(), "wk000…wk499") != 2 {
		t.Errorf("%d bytes of Markdown:\n%.2000s", md.Len(), md.String())
	}
}

// Each form of a plan for people has all its facts.
func TestEveryFormHasEveryFact(t *testing.T) {
	t.Parallel()
	plan := everyPhase()
	var text, md bytes.Buffer
	must.Do(t, WritePlan(&text, "text", plan))
	must.Do(t, WritePlan(&md, "markdown", plan))
	facts := 0
	for _, n := range plan.Nodes {
		for _, f := range factsOf(n) {
			facts++
			must.Contain(t, "the text", spaced(text.String()), spaced(f.Text))
			must.Contain(t, "the Markdown", md.String(), escape(f.Text))
		}
	}
	must.Hold(t, facts >= 15, "only %d facts", facts)
}

func TestAfterPlan(t *testing.T) {
	t.Parallel()
	every := everyPhase()
	work := many(2, 1)
	refused := many(2, 1)
	refused.Nodes[0].Refused = []string{"no"}
	for name, c := range map[string]struct {
		plan planning.Plan
		want string
	}{
		"nothing":    {many(2, 0), ""},
		"work":       {work, "recast roll does it; recast plan --explain wk000"},
		"refused":    {refused, "recast plan --explain wk000 shows the reasons against each strategy"},
		"unfinished": {every, "recast status shows where every disk is"},
	} {
		got := strings.Join(afterPlan(c.plan), "\n")
		must.Hold(t, strings.HasPrefix(got, c.want) && (c.want == "") == (got == ""), "%s: %q, want %q", name, got, c.want)
	}
}

func TestPlanDrawsHooks(t *testing.T) {
	t.Parallel()
	run := func(args ...string) cluster.Hook {
		return cluster.Hook{TimeoutSeconds: 60, Command: cluster.CommandGate{Args: args}}
	}
	told := run("./freeze.sh", "on")
	told.Description = "freeze deployments"
	drawn(t, "plan-hooks", func(b *bytes.Buffer) error {
		return WritePlan(b, "text", planning.Plan{
			Nodes: []planning.NodePlan{node("wk1", 9031, planning.Workers, cluster.InPlace, 120)}, TotalSeconds: 120,
			Hooks: cluster.Hooks{BeforeRun: []cluster.Hook{told, run("date")}, AfterBatch: []cluster.Hook{run("sync")}, AfterNode: []cluster.Hook{run("sh", "-c", "a\nb\n")}},
		})
	})
}

// A step of a batch belongs to no node, and a node whose hook failed is not touched, or done.
func TestReportDrawsHooks(t *testing.T) {
	t.Parallel()
	p := NewProgress(&bytes.Buffer{})
	bad := fault.Refusedf("bad")
	for _, e := range []step.Event{
		{Path: "roll/workers/hooks_before", Status: step.Started, Title: "run the hooks"},
		{Path: "roll/workers/hooks_before", Status: step.Done},
		{Path: "roll/workers/wk1", Status: step.Started, Title: "in-place wk1"},
		{Path: "roll/workers/wk1/run-hooks-again", Status: step.Failed, Err: bad},
		{Path: "roll/workers/wk1", Status: step.Failed, Title: "in-place wk1", Err: bad},
		{Path: "roll/workers/wk2", Status: step.Started, Title: "in-place wk2"},
		{Path: "roll/workers/wk2/run-hooks", Status: step.Failed, Err: bad},
		{Path: "roll/workers/wk2", Status: step.Failed, Title: "in-place wk2", Err: bad},
		{Path: "roll/unfinished/wk3", Status: step.Started, Title: "recreate wk3"},
		{Path: "roll/unfinished/wk3/run-hooks", Status: step.Failed, Err: bad},
		{Path: "roll/unfinished/wk3", Status: step.Failed, Title: "recreate wk3", Err: bad},
	} {
		p.Emit(e)
	}
	nodes := cluster.Each(p.Fared().Nodes, func(n NodeFared) string { return n.Node })
	must.Equal(t, "nodes", "wk1 wk2 wk3", strings.Join(nodes, " "))
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	drawn(t, "report-hooks", func(b *bytes.Buffer) error {
		return WriteReport(b, "text", pipeline.Report{
			Run: "r1", Started: began, Ended: began.Add(time.Minute), Outcome: "failed: bad",
			Hooks: []planning.HookRun{
				{Point: cluster.BeforeRun, Seconds: 1.5},
				{Point: cluster.BeforeBatch, Batch: planning.Workers, Seconds: 2, Error: "a ended with 3"},
				{Point: cluster.AfterNode, Batch: planning.Workers, Node: "wk1", Seconds: 3, Error: "b ended with 4"},
			},
			Unsent: []string{"webhook h.example: notice of end: no answer within 10s"},
		}, p.Fared())
	})
}

func TestWriteStatus(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 21, 0, 0, time.UTC)
	build := strings.Repeat("b1", 32)
	roll := []pipeline.Advice{{Command: "recast roll", Does: "finishes it"}, {Command: "recast undo wk1", Does: "cancels it: puts the old system disk back"}}
	open := pipeline.Half{
		Node: "wk1", Run: "20261121-0421-3f2a", Strategy: cluster.Recreate, Build: build, Talos: "v1.13.9", VMID: 9031,
		VMState: pipeline.VMDeleted, VM: "deleted", Parking: 9090, Next: roll,
		Disks: []pipeline.DiskStatus{
			{Disk: "scsi0", System: true, Place: pipeline.OnParking, Volid: "fast:vm-9090-disk-0", Where: "scsi30 of parking VM 9090"},
			{Disk: "scsi1", Place: pipeline.Unnamed, Volid: "fast:vm-9031-disk-1", Where: "without a name, on the way from scsi1 of VM 9031 to scsi1 of VM 9090; recast roll finds it"},
			{Disk: "scsi2", Place: pipeline.Detached, Volid: "fast:vm-9201-disk-0", Where: "with VM 9201, which owns it; detached from VM 9031"},
		},
	}
	going := pipeline.Half{
		Node: "cp1", Run: "r2", Strategy: cluster.Rollback, Build: "sha256-" + build, Talos: "v1.13.8", LeftEtcd: true, VMID: 9001,
		VMState: pipeline.VMRestored, VM: "the same one, with its kept system disk", Running: true, Parking: 9091,
		Disks: []pipeline.DiskStatus{
			{Disk: "scsi0", System: true, Place: pipeline.OnParking, Volid: "fast:vm-9091-disk-0", Where: "scsi30 of parking VM 9091"},
			{Disk: "scsi0", System: true, Kept: true, Place: pipeline.OnVM, Volid: "fast:vm-9001-disk-4", Where: "scsi0 of VM 9001"},
		},
		Next: []pipeline.Advice{{Command: "recast roll", Does: "finishes the rollback"}},
	}
	givenUp := pipeline.Half{
		Node: "wk2", Run: "r2", Strategy: cluster.Reimage, Build: build, GivenUp: true, VMID: 9032, VMState: pipeline.VMStranger,
		VM: `a stranger: VM 9032 "db" on pve2`, Next: []pipeline.Advice{{Command: "qm config 9032", Does: "shows which VM has the number"}},
	}
	for name, res := range map[string]pipeline.StatusResult{
		"status-quiet": {
			Cluster: "c1", LastRun: &pipeline.RunStatus{ID: "20261121-0421-3f2a", Started: at, Finished: at.Add(10 * time.Minute), Outcome: "done", Took: []cluster.Took{{Node: "wk1", OutageSeconds: 251, Expected: 240}}},
			Kept: []pipeline.Kept{
				{
					Node: "wk1", Run: "20261114-0421-3f2a", Volid: "fast:vm-9090-disk-0", Parking: 9090, Host: "pve1", Key: "scsi30", SizeBytes: 10 << 30,
					Replaced: at.AddDate(0, 0, -7), Talos: "v1.13.8", Lock: "sha256-" + build,
					Next: []pipeline.Advice{{Command: "recast prune", Does: "frees it: node wk1 has 1 newer"}},
				},
				{
					Node: "wk1", Run: "r1", Volid: "fast:vm-9090-disk-1", Parking: 9090, Key: "scsi29", SizeBytes: 20 << 30, Talos: "v1.13.9",
					Next: []pipeline.Advice{{Command: "recast undo wk1", Does: "boots it if nothing relevant has changed since"}},
				},
			},
		},
		"status-elsewhere": {
			Cluster: "c1",
			Claim:   &pipeline.ClaimHeld{VMID: 9089, State: claim.State{Run: "20261121-0421-3f2a", Holder: claim.Holder{Host: "ci-7", PID: 12}, Since: at, Beat: 41}},
			Open:    []pipeline.Half{open}, Kubernetes: "read the kubeconfig: open /root/.kube/config: no such file or directory",
		},
		"status-killed": {
			Cluster: "c1", LastRun: &pipeline.RunStatus{ID: "r2", Started: at},
			Claim: &pipeline.ClaimHeld{VMID: 9089, State: claim.State{Run: "r2", Holder: claim.Holder{Host: "ci-7", PID: 12}, Since: at, Beat: 41}, Dead: true},
		},
		"status-half-done": {
			Cluster: "c1", LastRun: &pipeline.RunStatus{ID: "r2", Started: at},
			Open: []pipeline.Half{going, givenUp},
			Marked: []pipeline.Marked{
				{Node: "wk3", Run: "r2", Strategy: cluster.InPlace, Build: build, Installed: true, Next: []pipeline.Advice{{Command: "recast roll", Does: "finishes the upgrade"}}},
				{Node: "wk4", Run: "r2", Strategy: cluster.Recreate, Build: build, Ready: true, Foreign: true, Next: []pipeline.Advice{{Command: "recast roll", Does: "cleans that up"}}},
			},
			Surge:    []string{"wk-surge1"},
			Problems: []string{`VM 9091 "edited" on pve1: record in its description can't be read: unexpected end of JSON input`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drawn(t, name, func(b *bytes.Buffer) error { return WriteStatus(b, "text", res) })
		})
	}
}

func TestWritePrune(t *testing.T) {
	t.Parallel()
	iso := func(name string, mib int64) images.StoredISO {
		return images.StoredISO{Host: "pve1", Storage: "local", Name: name, SizeBytes: mib << 20}
	}
	kept := images.Verdict{StoredISO: iso("a.iso", 100), Keep: []string{`VM 7 "x" on pve1 refers to it`, "recast.lock has it"}}
	gone := images.Verdict{StoredISO: iso("b.iso", 200), Removed: true}
	goes := images.Verdict{StoredISO: iso("c.iso", 300)}
	disk := func(key string, keep ...string) prune.KeptVerdict {
		return prune.KeptVerdict{
			Node: "wk1", Run: "20261114-0421-3f2a", Replaced: time.Date(2026, 11, 14, 4, 21, 0, 0, time.UTC), Talos: "v1.13.8",
			Parking: 9900, Host: "pve1", Key: key, Volid: "fast:vm-9900-disk-0", SizeBytes: 10 << 30, Keep: keep,
		}
	}
	staying, going, entry, freed := disk("scsi30", "the way back: recast undo wk1"), disk("scsi29"), disk("scsi28"), disk("scsi29")
	going.Goes, entry.Goes, entry.Volid, entry.SizeBytes, entry.Replaced = "node wk1 has 1 newer", "VM 9900 has no scsi28 any more: only its entry in the record goes", "", 0, time.Time{}
	freed.Goes, freed.Removed = going.Goes, true
	park := prune.ParkingVerdict{VMID: 9901, Name: "recast-parking-wk3", Host: "pve2", Node: "wk3", Goes: "it owns nothing any more"}
	odd := prune.ParkingVerdict{VMID: 9902, Name: "x", Host: "pve2", Keep: []string{"record in its description can't be read"}}
	for name, tc := range map[string]struct {
		rep  pipeline.PruneReport
		want string
	}{
		"an empty mirror": {pipeline.PruneReport{Mirror: []images.MirrorVerdict{}}, "0 mirrored installers, none to remove\n"},
		"the mirror": {
			pipeline.PruneReport{Mirror: []images.MirrorVerdict{
				{MirrorTag: images.MirrorTag{Repository: "r.acme/talos", Tag: "v1.13.9-aaaaaaaaaaaa", Digest: "sha256:1", Built: going.Replaced}, Keep: []string{"recast.lock has it"}},
				{MirrorTag: images.MirrorTag{Repository: "r.acme/talos", Tag: "v1.13.9-bbbbbbbbbbbb", Digest: "sha256:2"}},
			}},
			"stays    r.acme/talos:v1.13.9-aaaaaaaaaaaa (sha256:1, built on 2026-11-14)\n         recast.lock has it\n" +
				"goes     r.acme/talos:v1.13.9-bbbbbbbbbbbb (sha256:2, build date unknown)\n1 of 2 mirrored installers can go\n",
		},
		"disk images": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone, {StoredISO: iso("d.qcow2", 50)}, {StoredISO: iso("e.qcow2", 60), Removed: true}}},
			"removed  b.iso on storage local on pve1 (200 MiB)\ngoes     d.qcow2 on storage local on pve1 (50 MiB)\nremoved  e.qcow2 on storage local on pve1 (60 MiB)\n" +
				"1 of 1 ISOs removed, 200 MiB\n1 of 2 disk images removed, 60 MiB; 1 that could be removed are still there\n",
		},
		"nothing there": {pipeline.PruneReport{}, "0 ISOs, none to remove\n"},
		"before": {
			pipeline.PruneReport{ISOs: []images.Verdict{kept, goes}, Unseen: []string{"pve2 is offline"}},
			"stays    a.iso on storage local on pve1 (100 MiB)\n         VM 7 \"x\" on pve1 refers to it; recast.lock has it\n" +
				"goes     c.iso on storage local on pve1 (300 MiB)\nnote: pve2 is offline\n1 of 2 ISOs can go, 300 MiB\n",
		},
		"after": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone}},
			"removed  b.iso on storage local on pve1 (200 MiB)\n1 of 1 ISOs removed, 200 MiB\n",
		},
		"cut off": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone, goes}},
			"removed  b.iso on storage local on pve1 (200 MiB)\ngoes     c.iso on storage local on pve1 (300 MiB)\n" +
				"1 of 2 ISOs removed, 200 MiB; 1 that could be removed are still there\n",
		},
		"disks, before": {
			pipeline.PruneReport{Disks: []prune.KeptVerdict{staying, going, entry}, VMs: []prune.ParkingVerdict{park, odd}},
			"stays    old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi30 of VM 9900 on pve1\n" +
				"         the way back: recast undo wk1\n" +
				"goes     old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi29 of VM 9900 on pve1\n" +
				"         node wk1 has 1 newer\n" +
				"goes     old system disk of wk1 (of unknown size, Talos v1.13.8), replaced by run 20261114-0421-3f2a: no volume, scsi28 of VM 9900 on pve1\n" +
				"         VM 9900 has no scsi28 any more: only its entry in the record goes\n" +
				"goes     parking VM 9901 \"recast-parking-wk3\" on pve2 of node wk3\n         it owns nothing any more\n" +
				"stays    parking VM 9902 \"x\" on pve2\n         record in its description can't be read\n" +
				"2 of 3 old system disks can go, 10 GiB\n1 of 2 parking VMs can go\n",
		},
		"disks, after": {
			pipeline.PruneReport{Disks: []prune.KeptVerdict{staying, freed}, ISOs: []images.Verdict{kept}},
			"stays    old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi30 of VM 9900 on pve1\n" +
				"         the way back: recast undo wk1\n" +
				"removed  old system disk of wk1 (10 GiB, Talos v1.13.8), replaced by run 20261114-0421-3f2a on 2026-11-14: fast:vm-9900-disk-0, scsi29 of VM 9900 on pve1\n" +
				"stays    a.iso on storage local on pve1 (100 MiB)\n         VM 7 \"x\" on pve1 refers to it; recast.lock has it\n" +
				"1 of 2 old system disks removed, 10 GiB\n1 ISO, none to remove\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writesPrune(t, tc.rep, tc.want)
		})
	}
}

func TestWritePruneCache(t *testing.T) {
	t.Parallel()
	file := func(name string, mib int64) images.CachedFile {
		return images.CachedFile{Name: name, SizeBytes: mib << 20, Changed: time.Date(2026, 11, 14, 4, 21, 0, 0, time.UTC)}
	}
	left := images.CacheVerdict{CachedFile: file(".verify-7", 5), Goes: "a killed build has left it"}
	left.Partial = true
	writesPrune(t, pipeline.PruneReport{Cache: []images.CacheVerdict{
		left, {CachedFile: file("a.iso", 100), Keep: []string{"recast.lock has it"}}, {CachedFile: file("b.iso", 200)}, {CachedFile: file("c.iso", 300), Removed: true},
	}}, "goes     .verify-7 in the cache (5 MiB)\n         a killed build has left it\n"+
		"stays    a.iso in the cache (100 MiB)\n         recast.lock has it\n"+
		"goes     b.iso in the cache (200 MiB)\nremoved  c.iso in the cache (300 MiB)\n"+
		"1 of 4 cached files removed, 300 MiB; 2 that could be removed are still there\n")
}

func TestWritePruneScratch(t *testing.T) {
	t.Parallel()
	left := func(id cluster.VMID, host string) planning.LeftScratch {
		return planning.LeftScratch{VMID: id, Name: fmt.Sprintf("recast-rehearse-%d", id), Host: host, Run: "20261114-0421-3f2a"}
	}
	writesPrune(t, pipeline.PruneReport{Scratch: []roll.ScratchVerdict{
		{LeftScratch: left(9099, "pve1")}, {LeftScratch: left(9098, "pve2"), Keep: []string{"it has snapshots: a"}},
	}}, "goes     scratch VM 9099 \"recast-rehearse-9099\" on pve1, which run 20261114-0421-3f2a made to try an image out\n         it holds no data\n"+
		"stays    scratch VM 9098 \"recast-rehearse-9098\" on pve2, which run 20261114-0421-3f2a made to try an image out\n         it has snapshots: a\n"+
		"1 of 2 scratch VMs can go\n")
}

// writesPrune checks a report as text, and that it is the same after a round trip through JSON.
func writesPrune(t *testing.T, rep pipeline.PruneReport, want string) {
	t.Helper()
	var text, data bytes.Buffer
	must.Do(t, WritePrune(&text, "text", rep))
	must.Equal(t, "text", want, text.String())
	must.Do(t, WritePrune(&data, "json", rep))
	var back pipeline.PruneReport
	must.Do(t, json.Unmarshal(data.Bytes(), &back))
	must.Equal(t, "JSON", rep, back)
}

func TestPruneQuestion(t *testing.T) {
	t.Parallel()
	stays := []string{"why"}
	gib := func(keep ...string) prune.KeptVerdict {
		return prune.KeptVerdict{SizeBytes: 10 << 30, Keep: keep}
	}
	for want, rep := range map[string]pipeline.PruneReport{
		"Free 1 old system disk (10 GiB) for good?": {Disks: []prune.KeptVerdict{gib(), gib(stays...)}, ISOs: []images.Verdict{{Keep: stays}}},
		"Free 2 old system disks (20 GiB) for good, delete 1 parking VM, delete 2 ISOs (3 MiB)?": {
			Disks: []prune.KeptVerdict{gib(), gib()}, VMs: []prune.ParkingVerdict{{}, {Keep: stays}},
			ISOs: []images.Verdict{{StoredISO: images.StoredISO{SizeBytes: 1 << 20}}, {StoredISO: images.StoredISO{SizeBytes: 2 << 20}}},
		},
		"Delete 1 mirrored installer for good?": {Mirror: []images.MirrorVerdict{{}, {Keep: stays}}},
		"Delete 2 cached files (3 MiB)?": {Cache: []images.CacheVerdict{
			{CachedFile: images.CachedFile{SizeBytes: 1 << 20}}, {CachedFile: images.CachedFile{SizeBytes: 2 << 20}}, {Keep: stays},
		}},
		"Delete 1 scratch VM?":  {Scratch: []roll.ScratchVerdict{{}, {Keep: stays}}},
		"Delete 2 parking VMs?": {VMs: []prune.ParkingVerdict{{}, {}}},
	} {
		must.Equal(t, "PruneQuestion", want, PruneQuestion(rep))
	}
}

func TestPlanShowsWhatItFrees(t *testing.T) {
	t.Parallel()
	plan := planning.Plan{Nodes: []planning.NodePlan{{
		Node: "wk1", Role: "worker", Phase: planning.Workers, Strategy: cluster.Reimage, VMID: 101, Host: "pve1",
		Frees: []parking.FreePlan{
			{Parking: 9900, Key: "scsi29", Run: "r1", Talos: "v1.13.8", Volid: "fast:vm-9900-disk-0", Size: "10G"},
			{Parking: 9900, Key: "scsi28", Run: "r0"},
		},
	}}}
	var text bytes.Buffer
	must.Do(t, WritePlan(&text, "text", plan))
	must.Contain(t, "the text", text.String(),
		"      frees: scsi29 of VM 9900: the system disk that run r1 replaced, Talos v1.13.8 (fast:vm-9900-disk-0, 10G)\n",
		"      frees: scsi28 of VM 9900: the entry of the system disk that run r0 replaced, Talos none\n",
	)
}

// TestPruneOfARemovedNode: the disks of a node that was removed may have data, and are not called system disks.
func TestPruneOfARemovedNode(t *testing.T) {
	t.Parallel()
	disks := []prune.KeptVerdict{
		{Node: "wk3", Run: "r1", Key: "scsi0", Parking: 9090, Host: "pve1", Talos: "v1.13.9", SizeBytes: 10 << 30, OfRemoved: true},
		{Node: "wk3", Run: "r1", Key: "scsi1", Parking: 9090, Host: "pve1", SizeBytes: 20 << 30, OfRemoved: true},
	}
	var text bytes.Buffer
	must.Do(t, WritePrune(&text, "text", pipeline.PruneReport{Disks: disks}))
	question := PruneQuestion(pipeline.PruneReport{Disks: disks})
	if question != "Free 2 removed node's disks (30 GiB) for good?" || !strings.HasSuffix(text.String(), "\n2 of 2 removed node's disks can go, 30 GiB\n") {
		t.Errorf("%s\n%s", question, &text)
	}
	for _, d := range disks {
		if text := keptDisk(d); strings.Contains(text, "system disk") {
			t.Error(text)
		}
	}
	disks[1].OfRemoved = false
	if question := PruneQuestion(pipeline.PruneReport{Disks: disks}); question != "Free 1 old system disk (20 GiB) for good, free 1 removed node's disk (10 GiB) for good?" {
		t.Error(question)
	}
}
