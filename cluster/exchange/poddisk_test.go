package exchange

import (
	"context"
	"errors"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// A drive that a running VM has besides is a pod's if Kubernetes says so; where it can't be asked, nothing goes on.
func TestAddedDisksAreAskedFor(t *testing.T) {
	t.Parallel()
	before := cluster.VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0"}}
	now := before
	now.Running, now.Config = true, map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": "fast:vm-9999-media"}
	silent := errors.New("no answer")
	cases := map[string]struct {
		handles []string
		err     error
		alone   bool // there is nobody to ask
		pod     bool
	}{
		"a pod's":         {handles: []string{"lab/pve1/fast/vm-9999-media"}, pod: true},
		"nobody's":        {handles: []string{"lab/pve1/fast/vm-9999-other"}},
		"no answer":       {err: silent},
		"nobody is asked": {handles: []string{"lab/pve1/fast/vm-9999-media"}, alone: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := WiredReplace(&Replace{VM: before, Pods: func(context.Context) ([]string, error) { return c.handles, c.err }})
			if c.alone {
				r.Pods = nil
			}
			vm := now
			disks, err := before.Disks()
			if err != nil {
				t.Fatal(err)
			}
			if err := r.comparison.knowPods(t.Context(), &vm, disks); !errors.Is(err, c.err) {
				t.Fatalf("err = %v", err)
			}
			have, err := vm.Disks()
			if err != nil {
				t.Fatal(err)
			}
			if problems := added(vm, disks, have); (len(problems) == 0) != c.pod {
				t.Errorf("problems: %v", problems)
			}
		})
	}
}
