package simtest

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// poorToken makes a token that may read everything and change no VM.
func (l *Lab) poorToken() cluster.Secret {
	l.World.AddRole("Look", "Sys.Audit", "VM.Audit", "Datastore.Audit")
	return l.token("poor", "Look")
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
		requireClaimed(t, lab.second().roll(planning.Policy{})(t.Context()), "(Lease kube-system/recast)") // its token may make VMs
		must(t, answer().err)
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
		c, next := lab.Client(), lab.second()
		c.Token = lab.poorToken()
		c.killedAt(t, onServer("/Reboot"), c.roll(planning.Policy{}))
		if poor {
			next.Token = c.Token
		}
		must(t, next.roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		requireNoClaim(t, lab)
		if status, err := lab.Client().Status(t.Context()); err != nil || status.Claim != nil {
			t.Errorf("afterwards: %+v, %v", status.Claim, err)
		}
	})
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
		requireRefused(t, c.roll(planning.Policy{})(t.Context()), "which is lost with the only control plane")
		must(t, c.roll(onlyWorker)(t.Context()))
		requireNoClaim(t, lab)
	})
}
