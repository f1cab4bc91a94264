package contract

import (
	"net/http"
	"testing"
)

// TestSuite holds the suite to its own promise: what it makes is gone afterwards,
// also volumes that no VM refers to.
func TestSuite(t *testing.T) {
	t.Run("removes what it made", func(t *testing.T) {
		run(t, 0, func(t *testing.T, s *server) {
			id := s.newVM("scsi0="+s.place.storage+":1,serial=a", "protection=1", "kvm=0")
			s.start(id)
			orphan := s.newVM("scsi0=" + s.place.storage + ":1")
			s.taskOK(http.MethodPost, s.vm(orphan, "move_disk"), "disk=scsi0", "target-vmid="+itoa(id), "target-disk=scsi1")
			s.removeAll()
			for _, vm := range []int{id, orphan} {
				if node, found := s.where(vm); found {
					t.Errorf("VM %d is still on %s", vm, node)
				}
				if left := s.volumes(s.place.storage, vm); len(left) > 0 {
					t.Errorf("VM %d has left %q", vm, left)
				}
			}
		})
	})
}
