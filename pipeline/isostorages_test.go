package pipeline

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/config"
)

// TestUnknownStorages: publish would refuse them after the build; a plan reports them
// before.
func TestUnknownStorages(t *testing.T) {
	t.Parallel()
	p := Project{Config: &config.Config{Images: config.Images{ISO: config.ISO{Storage: []string{"local", "cefs"}}}}}
	o := observe.Observation{Storages: []cluster.Storage{{Name: "cephfs"}, {Name: "local"}}}
	want := []string{`images.iso.storage: storage "cefs" is unknown: Proxmox has none of that name, or the token lacks Datastore.Audit on /storage/cefs. recast publish and recast roll would refuse it; there are: cephfs, local`}
	if diff := cmp.Diff(want, unknownStorages(p.Config, o)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.Config.Images.Disk.Storage = []string{"local", "imports"}
	want = append(want, strings.ReplaceAll(strings.ReplaceAll(want[0], "cefs", "imports"), "images.iso", "images.disk"))
	if diff := cmp.Diff(want, unknownStorages(p.Config, o)); diff != "" {
		t.Errorf("with disk images (-want +got):\n%s", diff)
	}
	p.Config.Images.Disk.Storage = nil
	o.Storages = append(o.Storages, cluster.Storage{Name: "cefs"})
	if got := unknownStorages(p.Config, o); len(got) > 0 {
		t.Errorf("all are known: %q", got)
	}
}
