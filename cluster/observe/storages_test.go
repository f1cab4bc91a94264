package observe

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

// TestUnknownStorages: publish would refuse them after the build; a plan reports them
// before.
func TestUnknownStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []cluster.Storage{{Name: "cephfs"}, {Name: "local"}}}
	want := []string{`images.iso.storage: storage "cefs" is unknown: Proxmox has none of that name, or the token lacks Datastore.Audit on /storage/cefs. recast publish and recast roll would refuse it; there are: cephfs, local`}
	if diff := cmp.Diff(want, o.UnknownStorages("images.iso.storage", []string{"local", "cefs"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o.Storages = append(o.Storages, cluster.Storage{Name: "cefs"})
	if got := o.UnknownStorages("images.iso.storage", []string{"local", "cefs"}); len(got) > 0 {
		t.Errorf("all are known: %q", got)
	}
}
