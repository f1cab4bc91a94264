package sim_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestLabComesUpAndGoesDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{Hosts: 2}, true)
		files, err := lab.Files()
		if err != nil {
			t.Fatal(err)
		}
		names := slices.Sorted(maps.Keys(files))
		if want := []string{"kubeconfig", "recast.yaml", "schematics/default.yaml", "schematics/storage.yaml", "talosconfig"}; !slices.Equal(names, want) {
			t.Errorf("files %q", names)
		}
		if v := lab.World.Violations(); len(v) > 0 {
			t.Errorf("promises broken before anything was done: %q", v)
		}
		must.Equal(t, "persistent disks", 2, len(lab.Disks()))
	})
}

func TestLabRefusesWhatItCannotHold(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]sim.Options{
		"hosts":  {Prefix: "127.42.7", Hosts: 10},
		"prefix": {Prefix: "lab"},
		"many":   {Prefix: "127.42.7", Workers: 1001},
		"end":    {Prefix: "127.42.254", Workers: 500},
	} {
		o.Network = network.Memory()
		if lab, err := sim.New(t.Context(), o); err == nil {
			t.Errorf("%s: %v", name, lab.Close())
		}
	}
}

// TestHostsReachTheFactory: a Proxmox node downloads from the lab's Image Factory, unless it has no route to it.
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
			must.Equal(t, name+": stored", want == "OK", lab.World.Media(sim.ISOStorage+":iso/"+name, "pve1") != nil)
		}
	})
}
