package parking

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

// TestPodVolumesAreRememberedAndDropped: a new VM gets no pod's volume, and a run in another
// process knows which volumes were pods'.
func TestPodVolumesAreRememberedAndDropped(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 9031, Host: "pve1", Pods: []string{"fast:vm-9999-media"}, Config: map[string]string{
		"scsi0": "fast:vm-9031-disk-0", "scsi7": "fast:vm-9999-media,size=1G", "scsi8": "fast:vm-9999-pvc-0b5f",
	}}
	vm.DropCSI()
	if diff := cmp.Diff(map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi8": "fast:vm-9999-pvc-0b5f"}, vm.Config); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	packed, err := Memory{VM: vm}.Pack()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := UnpackMemory(packed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(vm.Pods, mem.VM.Pods); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
}
