package ui

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/pipeline"
)

func TestWriteDoctor(t *testing.T) {
	t.Parallel()
	res := pipeline.DoctorResult{
		Cluster: "c1",
		Checks: []pipeline.Check{
			{Group: pipeline.GroupProxmox, What: "quorum", State: pipeline.OK, Seen: "the cluster is quorate", Remedy: []string{"not shown"}},
			{Group: pipeline.GroupPrivileges, What: "VM.Audit on /vms", State: pipeline.Problem, Seen: "missing; needed to see", Remedy: []string{"do that"}},
			{Group: pipeline.GroupNodes, What: "wk1", State: pipeline.OK, Seen: "VM 9011 on pve1: reimage"},
			{Group: pipeline.GroupNodes, What: "wk2", State: pipeline.Warning, Seen: "can't be seen"},
		},
		Caution: "Mind that.", Grants: []string{"pveum role add RecastVMs", "pveum acl modify /vms --roles RecastVMs"},
		Nodes: []cluster.Assessment{
			{Node: "wk1", VMID: 9011, Host: "pve1", Against: map[cluster.Strategy][]string{cluster.Recreate: {"it has a tie", "and another"}}},
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
            reimage: possible
            in-place: possible
  warning wk2: can't be seen

To grant what is missing, as root on any Proxmox node (VE 8 and 9 take the same):
  pveum role add RecastVMs
  pveum acl modify /vms --roles RecastVMs
Mind that.
A token with privilege separation has what both it and its user were granted. An entry of the access control list takes the place of those above it, so each path gets all that is needed there, and by RecastKeep roles what was held there before. That a role exists already is no problem. Then run recast doctor again: what can't be seen now could not be checked.

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
