package exchange

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

func TestForeignDisks(t *testing.T) {
	t.Parallel()
	before := map[string]string{"scsi0": "fast:vm-9031-disk-0,size=10G", "ide2": "none,media=cdrom", "name": "wk1"}
	cases := map[string]struct {
		now  map[string]string
		want string
	}{
		"as before":               {before, ""},
		"a pod's, by its name":    {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-pvc-0b5f"}, "scsi7 (fast:vm-9999-pvc-0b5f)"},
		"named otherwise":         {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-data-1"}, "scsi7 (fast:vm-9999-data-1)"},
		"under the VM's own name": {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9031-disk-9"}, "scsi7 (fast:vm-9031-disk-9)"},
		"a CD":                    {map[string]string{"scsi0": before["scsi0"], "ide0": "isos:iso/talos.iso,media=cdrom"}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ForeignDisks(cluster.VM{ID: 9031, Config: c.now}, parking.Memory{VM: cluster.VM{ID: 9031, Config: before}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, DiskNames(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
