package rolling_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// volumes are the files that a host sees.
type volumes struct {
	cluster.StorageReader
	has []string
	err error
}

func (v volumes) HasVolume(_ context.Context, host, volid string) (bool, error) {
	return slices.Contains(v.has, host+" "+volid), v.err
}

// TestImages: the boot ISO is on the first storage that has it; without one the node is refused.
func TestImages(t *testing.T) {
	t.Parallel()
	w := cluster.Wanted{Build: cluster.Build{ISOName: "new.iso", DiskName: "new.qcow2"}, ISOStorages: []string{"a", "b"}, DiskStorages: []string{"c"}}
	images := func(v volumes, host string) rolling.Published {
		return rolling.Published{Proxmox: v, Wanted: w, Host: host}
	}
	for host, want := range map[string]string{"pve1": "b:iso/new.iso", "pve2": "a:iso/new.iso"} {
		i := images(volumes{has: []string{"pve1 b:iso/new.iso", "pve2 a:iso/new.iso", "pve2 b:iso/new.iso"}}, host)
		must.Equal(t, host, want, must.Get(i.ISO(t.Context()))(t))
	}
	must.FailAs(t, must.Err(images(volumes{has: []string{"pve2 a:iso/new.iso", "pve1 a:iso/old.iso"}}, "pve1").ISO(t.Context())), fault.Refused)
	silent := errors.New("no answer")
	must.FailIs(t, must.Err(images(volumes{has: []string{"pve1 a:iso/new.iso"}, err: silent}, "pve1").ISO(t.Context())), silent)
	must.Equal(t, "disk image", "c:import/new.qcow2", must.Get(images(volumes{has: []string{"pve1 c:import/new.qcow2"}}, "pve1").Disk(t.Context()))(t))
}
