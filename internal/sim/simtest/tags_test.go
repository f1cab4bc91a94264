package simtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestRestrictedTags: where datacenter.cfg restricts tags, Proxmox refuses a VM that is created with
// any. The new VM, and an old one that comes back, get theirs all the same.
func TestRestrictedTags(t *testing.T) {
	eachInLab(t, oneWorker(), map[string]renewal{
		"recreated": {strategy: cluster.Recreate},
		"given up":  {strategy: cluster.Recreate, killed: before("bring-up/configure"), recover: true},
	}, func(t *testing.T, lab *Lab, tc renewal) {
		strategy(tc.strategy)(lab)
		lab.World.RestrictTags(world.TagAccess{Allow: "existing"})
		lab.Patch(everywhere)
		if tc.killed != (moment{}) {
			c := lab.Client()
			c.killedAt(t, tc.killed, c.roll(onlyWorker))
		}
		if tc.recover {
			must(t, lab.Client().giveUp("wk1")(t.Context()))
		} else {
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
			requireDrift(t, lab, "cp1")
		}
		lab.RequireIntact()
		if got := lab.vmConfig(wk1)["tags"]; got != "talos" {
			t.Errorf("tags = %q", got)
		}
	})
}

// TestTagThatGoesWithItsVM: a tag that no other VM has exists no more once its VM is deleted. A token
// that may only set existing ones could not give it back.
func TestTagThatGoesWithItsVM(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		change("tags=talos;wk1-only")(lab)
		lab.World.RestrictTags(world.TagAccess{Allow: "existing"})
		lab.Patch(everywhere)
		before := fmt.Sprint(lab.vmConfig(wk1))
		err := lab.Client().roll(onlyWorker)(t.Context())
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "the Proxmox token lacks privileges: Sys.Modify on /") {
			t.Errorf("err = %v", err)
		}
		if now := fmt.Sprint(lab.vmConfig(wk1)); now != before {
			t.Errorf("%s\nwas\n%s", now, before)
		}
	})
}
