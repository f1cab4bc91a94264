package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// poorToken makes a token that may read everything and change no VM.
func (l *Lab) poorToken() cluster.Secret {
	const id, secret = "poor@pve!lab", "5ec0ffee-1ab0-4000-8000-000000000004"
	l.World.AddRole("Look", "Sys.Audit", "VM.Audit", "Datastore.Audit")
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	for _, who := range []string{"poor@pve", id} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: "Look", Propagate: true})
	}
	return cluster.Secret(id + "=" + secret)
}

// TestRollWithAClaimInKubernetes rolls in place with a token that may not make VMs, while
// another token tries to roll too.
func TestRollWithAClaimInKubernetes(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		lab.inPlace()
		c := lab.Client()
		c.Token = lab.poorToken()
		answer := atPrompt(t, t.Context(), c)
		status, err := lab.Client().Status(t.Context())
		if err != nil || status.Claim == nil || status.Claim.Run != c.Run || status.Claim.Lease != "kube-system/recast" {
			t.Errorf("status: %+v, %v", status.Claim, err)
		}
		_, err = lab.second().Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "(Lease kube-system/recast)") {
			t.Errorf("the token that may make VMs: %v", err)
		}
		if r := answer(); r.err != nil {
			t.Errorf("the one that may not: %v", r.err)
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		for _, task := range lab.World.Tasks() {
			if task.User == "poor@pve!lab" {
				t.Errorf("Proxmox did %s %s for it", task.Type, task.ID)
			}
		}
		if status, err := lab.Client().Status(t.Context()); err != nil || status.Claim != nil {
			t.Errorf("afterwards: %+v, %v", status.Claim, err)
		}
	})
}

// TestClaimInKubernetesOfAKilledRun: the claim is taken over by the same token, and
// removed by one that may make VMs.
func TestClaimInKubernetesOfAKilledRun(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, map[string]bool{"by the same": true, "by one that may make VMs": false}, func(t *testing.T, lab *Lab, poor bool) {
		lab.Patch(everywhere)
		lab.inPlace()
		token := lab.poorToken()
		killPoor(t, lab, token)
		next := lab.second()
		if poor {
			next.Token = token
		}
		must(t, next.roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		if status, err := lab.Client().Status(t.Context()); err != nil || status.Claim != nil {
			t.Errorf("afterwards: %+v, %v", status.Claim, err)
		}
	})
}

// killPoor kills a roll by that token when the first node gets the request to reboot.
func killPoor(t *testing.T, lab *Lab, token cluster.Secret) {
	t.Helper()
	c := lab.Client()
	c.Token = token
	lab.Recorder.Hooks(func(call record.Call) error {
		if strings.HasSuffix(call.Method, "/Reboot") {
			c.Kill()
		}
		return nil
	}, nil)
	if _, err := c.Roll(t.Context(), planning.Policy{}); err == nil {
		t.Fatal("it was not killed")
	}
	lab.Recorder.Hooks(nil, nil)
}

// TestLeaseOfTheOnlyControlPlane: the roll is refused, because its claim would be lost
// with the API.
func TestLeaseOfTheOnlyControlPlane(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		lab.inPlace()
		c := lab.Client()
		c.Token = lab.poorToken()
		_, err := c.Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "which is lost with the only control plane") {
			t.Errorf("all nodes: %v", err)
		}
		if _, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}}); err != nil {
			t.Errorf("the worker alone: %v", err)
		}
		requireNoClaim(t, lab)
	})
}
