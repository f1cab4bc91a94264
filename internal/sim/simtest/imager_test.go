package simtest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/imager"
	world "github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	sim "github.com/recast-sh/recast/internal/sim/imager"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// installerBase is an image on which an installer can be built.
func installerBase(t *testing.T) v1.ImageIndex {
	t.Helper()
	img := valueOf(random.Image(512, 1))(t)
	config := valueOf(img.ConfigFile())(t)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	img = valueOf(mutate.ConfigFile(img, config))(t)
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	})
}

// imagerBuilds has the imager build one schematic, storage. runs is what it has built.
func imagerBuilds(t *testing.T, lab *Lab, talos string) (client *Client, runs *[]string) {
	t.Helper()
	push(t, lab, ownRepository+":1.7.15", frr(t, "1.7.15", "frr"))
	push(t, lab, "127.0.0.1:5000/siderolabs/installer-base:"+talos, installerBase(t))
	lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
	lab.Replace("recast.yaml", "storage: schematics/storage.yaml", `storage: {file: schematics/storage.yaml, extensions: ["`+ownRepository+`:1.7.15"]}`)
	client, runs = lab.Client(), new([]string)
	// A process can't run in a bubble: the lab's imager is called directly.
	client.Imager = valueOf(imager.New(imager.Options{
		Command: []string{"imager", "{out}"},
		Run: func(_ context.Context, args []string, profile []byte) error {
			return sim.Build(profile, args[1], func(kind string, _ *artefact.Image) { *runs = append(*runs, kind) })
		},
	}))(t)
	must(t, errOf(client.Lock(t.Context(), pipeline.LockOptions{})))
	return client, runs
}

// TestPreparedByImager: the imager makes the disk image of a schematic, too, from which a system disk is prepared. The imager
// of an older Talos can't: with auto the node boots the ISO, with disk it is refused.
func TestPreparedByImager(t *testing.T) {
	type story struct {
		talos, boot, refused string
		doctor               checkup.State
	}
	const old = "before Talos v1.13 the imager needs loop devices for one, and recast gives it none"
	eachIn(t, func(s story) world.Options { return world.Options{Workers: 1, TalosVersion: s.talos} }, map[string]story{
		"a disk":            {world.TalosVersion, "disk", "", checkup.OK},
		"auto":              {world.TalosVersion, "auto", "", checkup.OK},
		"an older Talos":    {talos12, "disk", old, checkup.Problem},
		"older, by the ISO": {talos12, "auto", old, checkup.Warning},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks(s.boot)
		client, runs := imagerBuilds(t, lab, s.talos)
		checks := diagnosis(t, client).Checks
		i := slices.IndexFunc(checks, func(c checkup.Check) bool { return c.What == "disk image of storage on local" })
		require(t, i >= 0 && checks[i].State == s.doctor && strings.Contains(checks[i].Seen, s.refused),
			"doctor: %+v", checks)
		before := lab.Disks()
		rep, err := client.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		if s.doctor == checkup.Problem {
			requireFault(t, err, fault.Refused, "no disk image of schematic storage is made: "+s.refused)
			return
		}
		must(t, err)
		want := []string{sim.Installer, sim.ISO}
		if s.refused == "" {
			want = append(want, sim.Disk)
		}
		n, e := rep.Plan.Nodes[0], readLock(t, lab).Schematics["storage"]
		diff := cmp.Diff(want, *runs)
		require(t, diff == "" && n.Prepared == e.Disk.Name && (n.Prepared == "") == (s.refused != ""),
			"prepared from %q, the lock has %+v; the imager built (-want +got):\n%s", n.Prepared, e.Disk, diff)
		notes := strings.Join(n.Notes, "; ")
		require(t, strings.Contains(notes, s.refused), "notes: %s", notes)
		lab.requireRolledFrom(t, before)
	})
}

// TestRollWhatTheImagerBuilt: for one lock the factory builds one schematic and the imager
// the other. The provenance of a node with the imager's build is complete.
func TestRollWhatTheImagerBuilt(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		client, runs := imagerBuilds(t, lab, world.TalosVersion)
		client.mustRoll(planning.Policy{})
		requireInSync(t, lab)
		require(t, len(*runs) == 2, "the imager built %q", *runs)
		for name, e := range readLock(t, lab).Schematics {
			if !strings.HasPrefix(e.Installer, "127.0.0.1:5000/acme/talos@") || e.ISO.SHA256 == "" || (e.Signer == "") != (name == "storage") {
				t.Errorf("%s: installer %s, signer %q, ISO %+v", name, e.Installer, e.Signer, e.ISO)
			}
		}
		p := valueOf(lab.Client().Provenance(t.Context(), "wk1"))(t)
		require(t, p.Origin == observe.FromLock && p.Build == p.Wanted && !p.Contradicted(), "provenance: %+v", p)
		left := valueOf(os.ReadDir(filepath.Join(lab.Dir, ".recast", "cache", "imager")))(t)
		require(t, len(left) == 0, "left: %v", left)
	})
}
