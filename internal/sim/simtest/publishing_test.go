package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// TestPublishAndPrune delivers ISOs to the storage in every way, and removes the one that
// neither the present nor the previous lock needs.
func TestPublishAndPrune(t *testing.T) {
	long(t)
	t.Parallel()
	for _, delivery := range []string{"upload", "download-url"} {
		t.Run(delivery, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "iso: {storage", "iso: {delivery: "+delivery+", storage")
				lab.World.AddRole("Publishes", "Sys.AccessNetwork", "Datastore.Allocate")
				for _, who := range lab.World.ACLs() {
					lab.World.Grant(world.ACL{Path: "/", Who: who.Who, Role: "Publishes", Propagate: true})
				}
				for range 3 { // the previous lock is for rollback and stays
					lab.Patch(sim.PatchedExtension)
					must(t, lab.Client().Publish(t.Context()))
				}
				if lab.asked("POST", "/"+delivery) == 0 {
					t.Errorf("nothing was published by %s", delivery)
				}
				rep, err := lab.Client().prune(t.Context(), pipeline.PruneOptions{})
				must(t, err)
				removed := 0
				for _, v := range rep.ISOs {
					if v.Removed {
						removed++
					}
				}
				if deletes := lab.asked("DELETE", "/content/"); removed == 0 || removed != deletes {
					t.Errorf("%d removed by %d requests: %q", removed, deletes, rep.ISOs)
				}
				lab.RequireIntact()
			})
		})
	}
}

// asked counts the requests to Proxmox with that method and with part in their path.
func (l *Lab) asked(method, part string) int {
	n := 0
	for _, c := range l.Recorder.Calls() {
		if c.Proto == "proxmox" && c.Method == method && strings.Contains(c.Path, part) {
			n++
		}
	}
	return n
}

// TestPublishWithoutThePrivilege: Proxmox would receive the whole upload first.
func TestPublishWithoutThePrivilege(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return p == "Datastore.AllocateTemplate" })...)
		err := lab.Client().Publish(t.Context())
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "lacks privileges: Datastore.AllocateTemplate on /storage/isos") {
			t.Errorf("error %v", err)
		}
		if n := lab.asked("POST", "/upload"); n > 0 {
			t.Errorf("%d uploads", n)
		}
	})
}
