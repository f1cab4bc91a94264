// Every process of these tests shakes hands anew, and a third of that would be
// ML-KEM, which is not what they are about.
//
//go:debug tlsmlkem=0

package contract

import (
	"iter"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"testing"
)

// TestMain lets garbage lie: each test has a datacentre of its own, which is
// dropped as a whole, and a quarter of the time would go into sweeping up.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// slice picks from many cases that are alike the few for which there is time in a
// short run; the suite itself leaves out none.
type slice struct{ seen int }

func (s *slice) next() bool {
	s.seen++
	return !testing.Short() || s.seen%32 == 1
}

// inOrder goes through cases by name, so that a short run always has the same.
func inOrder[V any](cases map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			if !yield(name, cases[name]) {
				return
			}
		}
	}
}

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
