package cluster

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

// rebootingMachine answers once with the cluster's certificates, and then reboots.
type rebootingMachine struct {
	Talos
	looks int
}

func (r *rebootingMachine) Standing(context.Context, netip.Addr) (Machine, error) {
	if r.looks++; r.looks == 2 {
		return Machine{UUID: "u", Stage: "installing"}, nil
	}
	return Machine{}, errors.New("connection refused")
}

// TestConfiguredStaysSo: the reboot that ends an installation may come between
// the last look of configure and the one at its goal.
func TestConfiguredStaysSo(t *testing.T) {
	t.Parallel()
	n := &nodeRoll{Roller: &Roller{Talos: &rebootingMachine{}}, plan: NodePlan{UUID: "u"}}
	for look, want := range []string{"", "it answers with the cluster's certificates", "it answers with the cluster's certificates"} {
		if got, err := n.configured(t.Context()); err != nil || got != want {
			t.Errorf("look %d: %q, %v, want %q", look+1, got, err, want)
		}
	}
}

// TestBlankMachineOfAnotherKind: nothing is installed where the image that was
// booted does not say that it is for this machine, or keys were not enrolled.
func TestBlankMachineOfAnotherKind(t *testing.T) {
	t.Parallel()
	n := &nodeRoll{plan: NodePlan{UUID: "u1"}, want: Wanted{Build: wantedBuild()}}
	n.want.Build.SecureBoot = true
	for name, tc := range map[string]struct {
		change func(*Machine)
		want   string
	}{
		"as wanted":       {func(m *Machine) { m.SecureBoot = new(true) }, ""},
		"it does not say": {func(m *Machine) { m.Arch, m.Platform, m.SecureBoot = "", "", nil }, ""},
		"everything else": {func(m *Machine) { m.Arch, m.Platform = "arm64", "metal" }, "what it booted is not what is wanted: architecture arm64 → amd64\n" +
			"what it booted is not what is wanted: platform metal → nocloud\nwhat it booted is not what is wanted: Secure Boot off → on"},
	} {
		m := inSync()
		m.Disks = []MachineDisk{{Device: "sda", Serial: "s", Blank: true}}
		tc.change(&m)
		if got := message(n.checkBlank(m, memory{VM: VM{Config: map[string]string{"virtio0": "f:vm-1-disk-0"}}, SystemKey: "virtio0", DiskSerial: "s"}, false)); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
