package kubernetes

import (
	"strconv"
	"testing"
)

// TestRoll rolls three control planes and two workers whose objects a real
// control plane has.
func TestRoll(t *testing.T) {
	plane := startControlPlane(t)
	u := startLab(t, plane, "--control-planes", "3")
	u.must(0, "drift", "5 nodes in sync")
	u.must(0, "lab patch qemu-guest-agent --dir .")
	u.must(0, "lock --update")
	u.must(2, "drift")
	u.must(0, "roll --yes")
	u.must(0, "drift", "5 nodes in sync")
	u.must(0, "lab check --dir .", "persistent disks intact")
	t.Attr("commands", strconv.Itoa(u.count))
}
