package roll

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
)

// rebootingMachine answers once with the cluster's certificates, and then reboots.
type rebootingMachine struct {
	cluster.Talos
	looks int
}

func (r *rebootingMachine) Standing(context.Context, netip.Addr) (cluster.MachineStanding, error) {
	if r.looks++; r.looks == 2 {
		return cluster.MachineStanding{UUID: "u", Stage: "installing"}, nil
	}
	return cluster.MachineStanding{}, errors.New("connection refused")
}

// TestConfiguredStaysTrue: the reboot that ends an installation may come between configure's last
// check and the check of its goal.
func TestConfiguredStaysTrue(t *testing.T) {
	t.Parallel()
	n := (&Roller{Roll: &rolling.Roll{Talos: &rebootingMachine{}}}).node(rolling.Node{Plan: planning.NodePlan{UUID: "u"}})
	for look, want := range []string{"", "it answers with the cluster's certificates", "it answers with the cluster's certificates"} {
		if got, err := n.configured(t.Context()); err != nil || got != want {
			t.Errorf("look %d: %q, %v, want %q", look+1, got, err, want)
		}
	}
}

// TestBlankMachineOfAnotherKind: a machine that reports another architecture, platform or Secure
// Boot state than wanted is refused. What it does not report is not compared.
func TestBlankMachineOfAnotherKind(t *testing.T) {
	t.Parallel()
	n := (&Roller{}).node(rolling.Node{Plan: planning.NodePlan{UUID: "u1"}, Want: cluster.Wanted{Build: clustertest.WantedBuild()}})
	n.Want.Build.SecureBoot = true
	for name, tc := range map[string]struct {
		change func(*cluster.Machine)
		want   string
	}{
		"as wanted":    {func(m *cluster.Machine) { m.SecureBoot = new(true) }, ""},
		"not reported": {func(m *cluster.Machine) { m.Arch, m.Platform, m.SecureBoot = "", "", nil }, ""},
		"all different": {func(m *cluster.Machine) { m.Arch, m.Platform = "arm64", "metal" }, "what it booted is not what is wanted: architecture arm64 → amd64\n" +
			"what it booted is not what is wanted: platform metal → nocloud\nwhat it booted is not what is wanted: Secure Boot off → on"},
	} {
		m := clustertest.InSync()
		m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "s", Blank: true}}
		tc.change(&m)
		if got := clustertest.Message(n.checkBlank(m, parking.Memory{VM: cluster.VM{Config: map[string]string{"virtio0": "f:vm-1-disk-0"}}, SystemKey: "virtio0", DiskSerial: "s"}, parking.Record{})); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
