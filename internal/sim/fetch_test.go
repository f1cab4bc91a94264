package sim_test

import (
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestHostsReachTheFactory: a Proxmox node downloads from the lab's Image Factory, unless it has no route to
// it.
func TestHostsReachTheFactory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{}, false)
		for name, want := range map[string]string{"open.iso": "OK", "walled.iso": "download failed: failed: Network is unreachable."} {
			lab.World.SetOutbound("pve1", want == "OK")
			upid, err := lab.World.Download("", "pve1", world.DownloadRequest{
				Storage: sim.ISOStorage, Content: "iso", Filename: name, URL: "http://127.0.0.1:8080/versions",
			})
			if err != nil {
				t.Fatal(err)
			}
			if task, _ := lab.World.WaitTask(upid); task.ExitStatus != want {
				t.Errorf("%s: %s, want %s", name, task.ExitStatus, want)
			}
			if stored := lab.World.Media(sim.ISOStorage+":iso/"+name, "pve1") != nil; stored != (want == "OK") {
				t.Errorf("%s stored: %v", name, stored)
			}
		}
	})
}
