package cluster

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMovedInTheMiddle(t *testing.T) {
	t.Parallel()
	at := func(id VMID, host string, running bool) VM {
		return VM{ID: id, Name: "x", Host: host, Running: running}
	}
	away := &HostsAway{Hosts: []AwayHost{{"pve3", "is offline"}}, VMs: []VM{{ID: 101, Host: "pve3"}}}
	const moved = `it was begun on pve1, and %s was moved since: disks can be handed over on one host only. Bring it back (%s), then run the same command again; nothing was destroyed`
	cases := map[string]struct {
		vm   *VM
		park VM
		away *HostsAway
		want string
	}{
		"both there":                  {vm: new(at(101, "pve1", true)), park: at(9001, "pve1", false)},
		"deleted":                     {park: at(9001, "pve1", false)},
		"the VM":                      {vm: new(at(101, "pve2", false)), park: at(9001, "pve1", false), want: fmt.Sprintf(moved, `VM 101 "x" on pve2`, "on pve2: qm migrate 101 pve1")},
		"a VM that runs":              {vm: new(at(101, "pve2", true)), park: at(9001, "pve1", false), want: fmt.Sprintf(moved, `VM 101 "x" on pve2`, "on pve2: qm migrate 101 pve1 --online --with-local-disks")},
		"the parking VM":              {vm: new(at(101, "pve1", true)), park: at(9001, "pve2", false), want: fmt.Sprintf(moved, `VM 9001 "x" on pve2`, "on pve2: qm migrate 9001 pve1")},
		"deleted, and the parking VM": {park: at(9001, "pve2", false), want: fmt.Sprintf(moved, `VM 9001 "x" on pve2`, "on pve2: qm migrate 9001 pve1")},
		"both": {
			vm: new(at(101, "pve2", false)), park: at(9001, "pve2", false),
			want: fmt.Sprintf(moved, `VM 101 "x" on pve2 and VM 9001 "x" on pve2`, "on pve2: qm migrate 101 pve1; on pve2: qm migrate 9001 pve1"),
		},
		"to a host that is down": {park: at(9001, "pve1", false), away: away, want: "VM 101 is on pve3, and Proxmox host pve3 is offline: bring pve3 back first; nothing was destroyed"},
		"deleted while another host is down": {
			park: at(9001, "pve1", false), away: &HostsAway{Hosts: away.Hosts, VMs: []VM{{ID: 102, Host: "pve3"}}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, OnOtherHosts(tc.vm, tc.park, "pve1", tc.away, 101)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
