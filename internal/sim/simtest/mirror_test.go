package simtest

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/schematics"
)

// TestRollFromAMirror: with a mirror configured, the machine configuration names the copy,
// and the node pulls it.
func TestRollFromAMirror(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const mirror = "127.0.0.1:5000/acme/talos"
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: "+mirror+"\n")
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		lock, err := schematics.ReadLock(filepath.Join(lab.Dir, "recast.lock"))
		must(t, err)
		_, digest, _ := strings.Cut(lock.Schematics["storage"].Installer, "@")
		if got := lock.Schematics["storage"].Installer; got != mirror+"@"+digest {
			t.Errorf("the lock names %s", got)
		}
		pulled, blobs := 0, 0
		for _, c := range lab.Recorder.Calls() {
			if c.Method == "GET" && c.Path == "/v2/acme/talos/manifests/"+digest {
				pulled++
			}
			if c.Method == "GET" && strings.HasPrefix(c.Path, "/v2/acme/talos/blobs/") {
				blobs++
			}
		}
		if pulled == 0 || blobs == 0 { // recast itself reads no blob of the copy
			t.Errorf("%d manifests and %d blobs were pulled from the mirror", pulled, blobs)
		}
	})
}
