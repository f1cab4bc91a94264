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

func (r *rebootingMachine) Machine(context.Context, netip.Addr) (Machine, error) {
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
