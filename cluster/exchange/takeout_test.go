package exchange

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestTakeOut: a drive is to be taken out only of a VM that is off, and so that its volume stays.
func TestTakeOut(t *testing.T) {
	t.Parallel()
	own, theirs := cluster.Disk{Key: "scsi3", Volid: "fast:vm-101-disk-3", Owner: 101}, cluster.Disk{Key: "scsi4", Volid: "fast:vm-200-disk-0", Owner: 200}
	off, protected, on := map[string]string{}, map[string]string{"protection": "1"}, map[string]string{}
	for name, c := range map[string]struct {
		disk    cluster.Disk
		config  map[string]string
		running bool
		want    string
	}{
		"its own":           {own, off, false, "qm disk move 101 scsi3 --target-vmid OTHER"},
		"another's":         {theirs, off, false, "qm set 101 --delete scsi4 leaves fast:vm-200-disk-0 with its owner"},
		"of a protected VM": {theirs, protected, false, "qm set 101 --protection 0 && qm set 101 --delete scsi4 leaves"},
		"of one that runs":  {theirs, on, true, "qm config 101 shows it; it may be in use while the VM runs"},
		"its own, it runs":  {own, on, true, "qm disk move 101 scsi3"}, // Proxmox moves none of a VM that runs
	} {
		if got := takeOut(cluster.VM{ID: 101, Host: "pve1", Config: c.config, Running: c.running}, c.disk); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}
