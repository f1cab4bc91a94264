package exchange

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestAddedDisksAreLookedUp: an added drive of a running VM is a pod's only if Kubernetes lists it.
// If Kubernetes does not answer, the comparison fails.
func TestAddedDisksAreLookedUp(t *testing.T) {
	t.Parallel()
	before := cluster.VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0"}}
	now := before
	now.Running, now.Config = true, map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": "fast:vm-9999-media"}
	silent := errors.New("no answer")
	type row struct {
		handles []string
		err     error
		alone   bool // Pods is nil
		pod     bool
	}
	must.Each(t, map[string]row{
		"a pod's":     {handles: []string{"lab/pve1/fast/vm-9999-media"}, pod: true},
		"not a pod's": {handles: []string{"lab/pve1/fast/vm-9999-other"}},
		"no answer":   {err: silent},
		"Pods is nil": {handles: []string{"lab/pve1/fast/vm-9999-media"}, alone: true},
	}, func(t *testing.T, c row) {
		r := &Replace{VM: before, Pods: func(context.Context) ([]string, error) { return c.handles, c.err }}
		if c.alone {
			r.Pods = nil
		}
		vm := now
		disks := must.Get(before.Disks())(t)
		must.FailIs(t, r.knowPods(t.Context(), &vm, disks), c.err)
		have := must.Get(vm.Disks())(t)
		must.Equal(t, "a pod's", c.pod, len((&Replace{}).addedDrives(vm, disks, have)) == 0)
	})
}

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

func TestForeignDisks(t *testing.T) {
	t.Parallel()
	before := map[string]string{"scsi0": "fast:vm-9031-disk-0,size=10G", "ide2": "none,media=cdrom", "name": "wk1"}
	type row struct {
		now  map[string]string
		want string
	}
	must.Each(t, map[string]row{
		"as before":               {before, ""},
		"a pod's, by its name":    {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-pvc-0b5f"}, "scsi7 (fast:vm-9999-pvc-0b5f)"},
		"named otherwise":         {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9999-data-1"}, "scsi7 (fast:vm-9999-data-1)"},
		"under the VM's own name": {map[string]string{"scsi0": before["scsi0"], "scsi7": "fast:vm-9031-disk-9"}, "scsi7 (fast:vm-9031-disk-9)"},
		"a CD":                    {map[string]string{"scsi0": before["scsi0"], "ide0": "isos:iso/talos.iso,media=cdrom"}, ""},
	}, func(t *testing.T, c row) {
		got := must.Get(ForeignDisks(cluster.VM{ID: 9031, Config: c.now}, parking.Memory{VM: cluster.VM{ID: 9031, Config: before}}))(t)
		must.Equal(t, "-want +got", c.want, DiskNames(got))
	})
}
