package simtest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/provenance"
	"github.com/recast-sh/recast/internal/imager"
	sim "github.com/recast-sh/recast/internal/sim/imager"
	"github.com/recast-sh/recast/pipeline"
)

// installerBase is an image on which an installer can be built.
func installerBase(t *testing.T) v1.ImageIndex {
	t.Helper()
	img, err := random.Image(512, 1)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	})
}

// TestRollWhatTheImagerBuilt: for one lock the factory builds one schematic and the imager
// the other. The provenance of a node with the imager's build is complete.
func TestRollWhatTheImagerBuilt(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		push(t, lab, ownRepository+":1.7.15", frr(t, "1.7.15", "frr"))
		push(t, lab, "127.0.0.1:5000/siderolabs/installer-base:v1.13.9", installerBase(t))
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
		lab.Replace("recast.yaml", "storage: schematics/storage.yaml", `storage: {file: schematics/storage.yaml, extensions: ["`+ownRepository+`:1.7.15"]}`)

		runs, err := 0, error(nil)
		client := lab.Client()
		// A process can't run in a bubble: the lab's imager is called directly.
		client.Imager, err = imager.New(imager.Options{
			Command: []string{"imager", "{out}"},
			Run: func(_ context.Context, args []string, profile []byte) error {
				runs++
				return sim.Build(profile, args[1], nil)
			},
		})
		must(t, err)
		_, err = client.Lock(t.Context(), pipeline.LockOptions{})
		must(t, err)
		_, err = client.Roll(t.Context(), planning.Policy{})
		must(t, err)
		requireInSync(t, lab)
		if runs != 2 {
			t.Errorf("the imager ran %d times", runs)
		}
		for name, e := range readLock(t, lab).Schematics {
			if !strings.HasPrefix(e.Installer, "127.0.0.1:5000/acme/talos@") || e.ISO.SHA256 == "" || (e.Signer == "") != (name == "storage") {
				t.Errorf("%s: installer %s, signer %q, ISO %+v", name, e.Installer, e.Signer, e.ISO)
			}
		}
		p, err := lab.Client().Provenance(t.Context(), "wk1")
		must(t, err)
		if p.Origin != provenance.FromLock || p.Build != p.Wanted || p.Contradicted() {
			t.Errorf("provenance: %+v", p)
		}
		left, err := os.ReadDir(filepath.Join(lab.Dir, ".recast", "cache", "imager"))
		if err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}
