package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// wholeFirewall has one of everything that a VM's firewall can have; its rules refer to
// earlier entries.
func wholeFirewall() world.Firewall {
	return world.Firewall{
		Options: map[string]string{"enable": "1", "policy_in": "DROP", "log_level_in": "info"},
		Aliases: []world.FirewallAlias{{Name: "Desk", CIDR: "192.0.2.7", Comment: "Alice's"}},
		IPSets:  []world.FirewallSet{{Name: "admins", Comment: "may see apid", Members: []world.FirewallMember{{CIDR: "192.0.2.0/28", Comment: "office"}, {CIDR: "192.0.2.9", NoMatch: true}, {CIDR: "desk"}}}},
		Rules: []world.FirewallRule{
			{"type": "in", "action": "DROP", "source": "192.0.2.66", "enable": "1", "comment": "before the next"},
			{"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "50000", "source": "+admins", "enable": "1", "log": "nolog", "iface": "net0"},
			{"type": "group", "action": "kubernetes", "enable": "1"},
			{"type": "out", "action": "REJECT", "dest": "desk", "enable": "0"},
		},
	}
}

// behindFirewall makes wk1 stale and gives it that firewall.
func (l *Lab) behindFirewall(f world.Firewall) {
	l.t.Helper()
	l.Patch(sim.PatchedExtension)
	strategy(cluster.Recreate)(l)
	l.World.SetFirewall(wk1, f)
}

func requireFirewall(t *testing.T, lab *Lab, want world.Firewall) {
	t.Helper()
	if diff := cmp.Diff(want, lab.World.FirewallOf(wk1)); diff != "" {
		t.Errorf("wk1's firewall (-want +got):\n%s", diff)
	}
}

// TestAFirewallIsCarriedOver, with its rules in order, before the VM is started.
func TestAFirewallIsCarriedOver(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.behindFirewall(wholeFirewall())
		started := false
		lab.Recorder.Hooks(func(call record.Call) error {
			if strings.HasSuffix(call.Path, "/qemu/9031/status/start") {
				started = true
				requireFirewall(t, lab, wholeFirewall())
			}
			return nil
		}, nil)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		if !started {
			t.Error("it was not started")
		}
		requireInSync(t, lab)
		requireFirewall(t, lab, wholeFirewall())
	})
}

// TestAnInvalidFirewallIsDetected: an invalid firewall is detected before the node is
// touched: by the plan if Proxmox reports it, else when the parking VM gets it.
func TestAnInvalidFirewallIsDetected(t *testing.T) {
	long(t)
	stale := wholeFirewall()
	stale.Rules = append(stale.Rules, world.FirewallRule{"type": "in", "action": "ACCEPT", "source": "gone", "enable": "1"})
	type story struct {
		of     world.Firewall
		refuse bool
		want   string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"its alias is gone":           {of: stale, want: `a firewall that Proxmox would not take again (rule 4: {"source":"no such alias 'gone'"})`},
		"a set that the token has no": {of: wholeFirewall(), refuse: true, want: "no such ipset 'zone-all'"},
	}, func(t *testing.T, lab *Lab, tc story) {
		lab.behindFirewall(tc.of)
		if tc.refuse {
			lab.World.FailNext("POST /nodes/pve1/qemu/9002/firewall/rules", "no such ipset 'zone-all'")
		}
		began := lab.boots()
		err := lab.Client().roll(planning.Policy{})(t.Context())
		if !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("err = %v, want %q", err, tc.want)
		}
		if !slices.Equal(lab.boots(), began) {
			t.Error("the node was touched")
		}
		requireFirewall(t, lab, tc.of)
	})
}

// TestAFirewallThatChangesMeanwhile is not lost: the VM stays.
func TestAFirewallThatChangesMeanwhile(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]int{"the VM's": wk1, "the parking VM's": 9002}, func(t *testing.T, lab *Lab, of int) {
		lab.behindFirewall(wholeFirewall())
		other := wholeFirewall()
		other.Rules = other.Rules[1:]
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if strings.HasSuffix(call.Path, "/status/shutdown") {
				lab.World.SetFirewall(of, other)
			}
		})
		requireRefused(t, lab.Client().roll(planning.Policy{})(t.Context()), "the firewall of ")
		lab.Recorder.Hooks(nil, nil)
		lab.World.SetFirewall(of, wholeFirewall())
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		requireFirewall(t, lab, wholeFirewall())
	})
}

// TestALateRule is added when the firewall is complete already: after its sender was
// killed, the next run has written all of it. Proxmox puts it before all others.
func TestALateRule(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]int{"the new VM": wk1, "the parking VM": 9002}, func(t *testing.T, lab *Lab, of int) {
		lab.behindFirewall(wholeFirewall())
		x := lab.rollKilledBy(toVM("POST", fmt.Sprintf("/qemu/%d/firewall/rules", of)), planning.Policy{})
		x.deliverBefore(toVM("POST", "/qemu/9031/status/"), exchange.LateQueue)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		time.Sleep(exchange.LateQueue)
		if !strings.HasSuffix(x.said, ": 200") {
			t.Errorf("the late rule: %q", x.said)
		}
		requireDrift(t, lab)
		requireFirewall(t, lab, wholeFirewall())
	})
}
