package ui

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline/checkup"
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

// kubectl commands run anywhere; the others as root on the VM's host.
func TestToRecreateSaysWhereCommandsAreTyped(t *testing.T) {
	t.Parallel()
	evict := cluster.Obstacle{Text: "replicas", Command: "kubectl patch x"}
	snapshot := cluster.Obstacle{Text: "snapshots", Command: "qm delsnapshot 9032 before"}
	words := cluster.Obstacle{Text: "something else"}
	for name, tc := range map[string]struct {
		obstacles []cluster.Obstacle
		want      string
	}{
		"kubectl":           {[]cluster.Obstacle{evict, evict}, "kubectl patch x"},
		"the host":          {[]cluster.Obstacle{snapshot}, "as root on pve2: qm delsnapshot 9032 before"},
		"both":              {[]cluster.Obstacle{snapshot, evict}, "kubectl patch x; as root on pve2: qm delsnapshot 9032 before"},
		"kubectl and words": {[]cluster.Obstacle{evict, words}, "kubectl patch x; and something else"},
	} {
		must.Equal(t, name, tc.want, (toRecreate{node: "wk2", host: "pve2", obstacles: tc.obstacles}).line())
	}
}

// Every node has a row, whatever a roll would do with it.
func TestStrategiesOf(t *testing.T) {
	t.Parallel()
	snapshot := cluster.Obstacle{Text: "it has snapshots", Command: "qm delsnapshot 9032 before"}
	impossible := map[cluster.Strategy][]string{cluster.Recreate: {"it has snapshots", "and more"}}
	for name, tc := range map[string]struct {
		a    survey.Assessment
		want string
	}{
		"recreate":       {survey.Assessment{Strategy: cluster.Recreate}, "recreate: –"},
		"made":           {survey.Assessment{Strategy: cluster.Create}, "create: –"},
		"reimage":        {survey.Assessment{Strategy: cluster.Reimage, Host: "pve2", Against: impossible, ToRecreate: []cluster.Obstacle{snapshot}}, "reimage: as root on pve2: qm delsnapshot 9032 before"},
		"asked":          {survey.Assessment{Strategy: cluster.InPlace}, "in-place: in recast.yaml strategy: auto"},
		"asked, blocked": {survey.Assessment{Strategy: cluster.InPlace, Against: impossible}, "in-place: in recast.yaml strategy: auto; and it has snapshots"},
		"refused":        {survey.Assessment{Strategy: cluster.Recreate, Refused: []string{"it has snapshots"}, ToRecreate: []cluster.Obstacle{snapshot}}, "refused: as root on its host: qm delsnapshot 9032 before"},
		"nothing":        {survey.Assessment{Refused: []string{"no way"}}, "refused: no way"},
		"unread":         {survey.Assessment{Unread: true}, "not known: its machine could not be read: see above"},
	} {
		row := strategiesOf([]survey.Assessment{tc.a})[0]
		must.Equal(t, name, tc.want, row.strategy+": "+row.line())
	}
}

func TestWriteDoctor(t *testing.T) {
	t.Parallel()
	res := checkup.Result{
		Cluster: "c1",
		Checks: []checkup.Check{
			{Group: checkup.GroupProxmox, What: "quorum", State: checkup.OK, Seen: "the cluster is quorate", Remedy: []string{"not shown"}},
			{Group: checkup.GroupPrivileges, What: "VM.Audit on /vms", State: checkup.Problem, Seen: "missing; needed to see", Remedy: []string{"do that"}},
			{Group: checkup.GroupNodes, What: "wk1", State: checkup.OK, Seen: "VM 9011 on pve1: reimage"},
			{Group: checkup.GroupNodes, What: "wk2", State: checkup.Warning, Seen: "can't be seen"},
		},
		Caution: "Mind that.", Grants: []string{"pveum role add RecastVMs", "pveum acl modify /vms --roles RecastVMs"},
		Nodes: []survey.Assessment{
			{Node: "wk1", VMID: 9011, Host: "pve1", Strategy: cluster.Reimage, ToRecreate: []cluster.Obstacle{{Text: "snapshots", Command: "qm delsnapshot 9011 before"}}, Against: map[cluster.Strategy][]string{cluster.Recreate: {"it has a tie", "and another"}}},
			{Node: "wk2", Unread: true},
		},
	}
	want := `Proxmox
  ok      quorum: the cluster is quorate

privileges
  problem VM.Audit on /vms: missing; needed to see
            → do that

nodes
  ok      wk1: VM 9011 on pve1: reimage
            recreate: impossible: it has a tie; and another
            reimage, in-place: possible
  warning wk2: can't be seen

To grant what is missing, as root on any Proxmox node (the same for VE 8 and 9):
  pveum role add RecastVMs
  pveum acl modify /vms --roles RecastVMs
Mind that.
A token with privilege separation has only privileges that both it and its user have. An entry of the access control list replaces entries above it, so each path gets everything that is needed there, and by RecastKeep roles what was granted there before. It does not matter if a role exists already. Then run recast doctor again: it could not check what the token can't see yet.

What a roll would use today, and what makes it recreate (recast plan --explain NODE shows every reason):
  wk1  reimage    as root on pve1: qm delsnapshot 9011 before
  wk2  not known  its machine could not be read: see above

4 checks: 1 problem, 1 warning
`
	var b strings.Builder
	must.Do(t, WriteDoctor(&b, "text", res))
	must.Equal(t, "value", want, b.String())
	b.Reset()
	if err := WriteDoctor(&b, "json", res); err != nil || !strings.Contains(b.String(), `"grants": [`) {
		t.Errorf("%v: %s", err, b.String())
	}
}
