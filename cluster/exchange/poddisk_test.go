package exchange

import (
	"context"
	"errors"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestAddedDisksAreLookedUp: an added drive of a running VM is a pod's only if Kubernetes lists it.
// If Kubernetes does not answer, the comparison fails.
func TestAddedDisksAreLookedUp(t *testing.T) {
	t.Parallel()
	before := cluster.VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0"}}
	now := before
	now.Running, now.Config = true, map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": "fast:vm-9999-media"}
	silent := errors.New("no answer")
	cases := map[string]struct {
		handles []string
		err     error
		alone   bool // Pods is nil
		pod     bool
	}{
		"a pod's":     {handles: []string{"lab/pve1/fast/vm-9999-media"}, pod: true},
		"not a pod's": {handles: []string{"lab/pve1/fast/vm-9999-other"}},
		"no answer":   {err: silent},
		"Pods is nil": {handles: []string{"lab/pve1/fast/vm-9999-media"}, alone: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Replace{VM: before, Pods: func(context.Context) ([]string, error) { return c.handles, c.err }}
			if c.alone {
				r.Pods = nil
			}
			vm := now
			disks, err := before.Disks()
			if err != nil {
				t.Fatal(err)
			}
			if err := r.knowPods(t.Context(), &vm, disks); !errors.Is(err, c.err) {
				t.Fatalf("err = %v", err)
			}
			have, err := vm.Disks()
			if err != nil {
				t.Fatal(err)
			}
			if problems := (&Replace{}).addedDrives(vm, disks, have); (len(problems) == 0) != c.pod {
				t.Errorf("problems: %v", problems)
			}
		})
	}
}
