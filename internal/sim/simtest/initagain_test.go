package simtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/setup"
)

// TestInitAfterARoll: the cluster was rolled with another recast.yaml; a second one gets
// the same numbers, or none. The nodes' present schematic contains a secret.
func TestInitAfterARoll(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Write("schematics/storage.yaml", append(lab.Read("schematics/storage.yaml"), "  extraKernelArgs: [talos.environment=http_proxy=http://me:hunter2@proxy.example]\n"...))
		lab.Patch(sim.PatchedExtension)
		requireMode(t, lab.Dir, "recast.lock", 0o600)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireMode(t, lab.Dir, ".recast/.gitignore", 0o600)

		for vmids, want := range map[string]string{"": "recast has run on these nodes before (its own: VM 9002", "9100-9199": "is recast's own: it belongs to a recast.yaml with other proxmox.vmids"} {
			dir := filepath.Join(t.TempDir(), "new")
			_, err := lab.Client().Init(t.Context(), dir, setup.InitOptions{VMIDs: vmids})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("--vmids %q: %v, want %q", vmids, err, want)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("--vmids %q: it has made a directory", vmids)
			}
		}
		me := lab.Client()
		res, err := me.Init(t.Context(), t.TempDir(), setup.InitOptions{VMIDs: "9000-9099"})
		if err != nil {
			t.Fatal(err, fault.Hints(err))
		}
		if said := strings.Join(res.Warnings, "\n"); !strings.Contains(said, "schematics/worker.yaml and recast.lock hold secrets, as the image of wk1 does (the kernel argument talos.environment): commit neither") ||
			strings.Contains(said, "hunter2") || strings.Join(res.Secret, " ") != "recast.lock schematics/worker.yaml" {
			t.Errorf("it warns %q, and calls %q secret", said, res.Secret)
		}
		for name, mode := range map[string]os.FileMode{"recast.lock": 0o600, "schematics/worker.yaml": 0o600, "schematics/control-plane.yaml": 0o644, "recast.yaml": 0o644} {
			requireMode(t, me.Dir, name, mode)
		}
		requireInitInSync(t, me)
	})
}

func requireMode(t *testing.T, dir, name string, want os.FileMode) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		t.Error(err)
	} else if info.Mode() != want {
		t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
	}
}

// TestContainersHaveNumbers: they are listed with the VMs, and a claim can't use their numbers.
func TestContainersHaveNumbers(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		for id, name := range map[int]string{9000: "dns", 9099: "proxy", 9100: "mail"} {
			must(t, lab.World.DefineContainer(world.Container{ID: id, Name: name, Host: "pve1"}))
		}
		found := map[string]checkup.State{}
		for _, c := range diagnosis(t, lab.Client()).Checks {
			if strings.Contains(c.Seen, "container") {
				found[c.What+": "+c.Seen] = c.State
			}
		}
		if len(found) != 2 || found[`claim: container 9000 "dns" on pve1 has its number`] != checkup.Problem ||
			found[`proxmox.vmids: container 9099 "proxy" on pve1 has one of its numbers: a roll that needs that number stops`] != checkup.Warning {
			t.Errorf("doctor says of containers: %v", found)
		}
		me := lab.Client()
		if _, err := me.Init(t.Context(), t.TempDir(), setup.InitOptions{}); err != nil {
			t.Fatal(err, fault.Hints(err))
		}
		if text := read(t, me.Dir, "recast.yaml"); !strings.Contains(text, "vmids: 9200-9299") {
			t.Errorf("it proposes numbers of containers:\n%s", text)
		}
		_, err := lab.Client().Init(t.Context(), t.TempDir(), setup.InitOptions{VMIDs: "9100-9199"})
		if err == nil || !strings.Contains(err.Error(), `container 9100 "mail" on pve1 has the first number of 9100-9199`) {
			t.Errorf("a range that begins with a container: %v", err)
		}
	})
}
