package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestMovedInTheMiddle(t *testing.T) {
	t.Parallel()
	at := func(id VMID, host string, running bool) VM {
		return VM{ID: id, Name: "x", Host: host, Running: running}
	}
	away := &HostsAway{Hosts: []AwayHost{{"pve3", "is offline"}}, VMs: []VM{{ID: 101, Host: "pve3"}}}
	const moved = `it was begun on pve1, and %s was moved since: disks can be handed over on one host only. Bring it back (%s), then run the same command again; nothing was destroyed`
	type testCase struct {
		vm   *VM
		park VM
		away *HostsAway
		want string
	}
	must.Each(t, map[string]testCase{
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
	}, func(t *testing.T, tc testCase) {
		must.Equal(t, "got", tc.want, OnOtherHosts(tc.vm, tc.park, "pve1", tc.away, 101))
	})
}

// quorum answers for the hosts of a Proxmox cluster.
type quorum struct {
	HostReader
	has bool
	err error
}

func (q quorum) Quorate(context.Context) (bool, error) { return q.has, q.err }

func TestRequireQuorum(t *testing.T) {
	t.Parallel()
	silent := errors.New("no answer")
	must.Pass(t, RequireQuorum(t.Context(), quorum{has: true}))
	must.FailAs(t, RequireQuorum(t.Context(), quorum{}), fault.Refused)
	must.FailIs(t, RequireQuorum(t.Context(), quorum{has: true, err: silent}), silent)
}

func TestRequireRemakeable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config  map[string]string
		refused bool
	}{
		"what a token may set":   {map[string]string{"memory": "4096", "scsi0": "fast:vm-1-disk-0", "arch": "x86_64"}, false},
		"only root may set":      {map[string]string{"args": "-S"}, true},
		"another's architecture": {map[string]string{"arch": "aarch64"}, true},
		"a device of the host":   {map[string]string{"serial0": "/dev/ttyS0"}, true},
	} {
		if err := RequireRemakeable(VM{ID: 1, Config: c.config}, "x86_64"); (fault.KindOf(err) == fault.Refused) != c.refused || (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRequireBooted: one difference from the build is enough.
func TestRequireBooted(t *testing.T) {
	t.Parallel()
	b := Build{TalosVersion: "v1.13.9", SchematicID: "id", LockHash: "sha256-lock", Arch: "amd64", Platform: "nocloud"}
	for name, c := range map[string]struct {
		change   func(*RunningSystem)
		problems int
	}{
		"as built":           {func(*RunningSystem) {}, 0},
		"another lock":       {func(m *RunningSystem) { m.Schematic.YAML = "recast.lock=sha256-other" }, 1},
		"another schematic":  {func(m *RunningSystem) { m.Schematic.ID = "other" }, 1},
		"another Talos":      {func(m *RunningSystem) { m.TalosVersion = "v1.13.8" }, 1},
		"for other machines": {func(m *RunningSystem) { m.Arch, m.Platform = "arm64", "metal" }, 2},
	} {
		m := RunningSystem{TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", Schematic: SchematicEntry{ID: "id", YAML: "recast.lock=sha256-lock"}}
		c.change(&m)
		must.Equal(t, name+": problems", c.problems, len(b.CheckBooted(m)))
	}
}
