package simtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline"
)

// TestPruneTheMirror mirrors the builds of three locks, and removes those of the first
// with their signatures once they are an hour old: neither the present nor the previous
// lock needs them. The rest is complete: with it a node is rolled, whose machine
// configuration names the copy in the mirror, and which pulls that.
func TestPruneTheMirror(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const repository = "127.0.0.1:5000/acme/talos"
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: "+repository+"\n")
		for range 3 {
			lab.Patch(sim.PatchedExtension)
			must(t, lab.Client().Publish(t.Context()))
		}
		since := 0
		asked := func(method, of string) (list []string) {
			for _, c := range lab.Recorder.Calls()[since:] {
				if c.Method == method && strings.HasPrefix(c.Path, "/v2/acme/talos/"+of) {
					list = append(list, c.Path)
				}
			}
			return list
		}
		deletes := func() []string { return asked("DELETE", "manifests/") }
		prune := func() (pipeline.PruneReport, error) {
			return lab.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneMirror, OlderThan: time.Hour})
		}
		rep, err := prune()
		if err != nil || len(rep.Mirror) == 0 || len(rep.GoingMirror()) != 0 {
			t.Errorf("at once: %v, %d of %d go", err, len(rep.GoingMirror()), len(rep.Mirror))
		}
		for _, v := range rep.Mirror {
			if !slices.Contains(v.Keep, "it was built less than 1h ago") || time.Since(v.Built) > time.Hour {
				t.Errorf("%s, built at %s, is kept by %q", v, v.Built, v.Keep)
			}
		}
		time.Sleep(time.Hour)
		rep, err = prune()
		must(t, err)
		removed := 0
		for _, v := range rep.Mirror {
			if v.Removed != slices.Contains(deletes(), "/v2/acme/talos/manifests/"+v.Digest) || v.Removed != (len(v.Keep) == 0) {
				t.Errorf("%s: removed is %t, kept by %q", v, v.Removed, v.Keep)
			}
			if v.Removed {
				removed++
			}
		}
		// Of each: the index, its two images, the signature.
		if got := len(deletes()); removed == 0 || removed == len(rep.Mirror) || got != 4*removed {
			t.Errorf("%d of %d removed by %d requests: %q", removed, len(rep.Mirror), got, deletes())
		}
		before := len(deletes())
		if rep, err = prune(); err != nil || len(deletes()) != before || len(rep.GoingMirror()) != 0 {
			t.Errorf("again: %v, %d more requests, %d go", err, len(deletes())-before, len(rep.GoingMirror()))
		}
		since = len(lab.Recorder.Calls())
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		installer := readLock(t, lab).Schematics["storage"].Installer
		_, digest, _ := strings.Cut(installer, "@")
		if installer != repository+"@"+digest {
			t.Errorf("the lock names %s", installer)
		}
		// A roll itself reads no blob of the copy.
		if len(asked("GET", "manifests/"+digest)) == 0 || len(asked("GET", "blobs/")) == 0 {
			t.Error("no manifest or no blob was pulled from the mirror")
		}
	})
}
