package ui

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/pipeline/checkup"
)

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
	if err := WriteDoctor(&b, "text", res); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := WriteDoctor(&b, "json", res); err != nil || !strings.Contains(b.String(), `"grants": [`) {
		t.Errorf("%v: %s", err, b.String())
	}
}
