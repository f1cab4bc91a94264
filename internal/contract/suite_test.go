// Every process of these tests does its own handshakes, and a third of their cost would be
// ML-KEM, which is not under test.
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

// TestMain makes garbage collection rarer: each test's datacentre is dropped as a whole,
// and collecting would take a quarter of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// slice selects a few of many similar cases in a short run; the full suite runs all.
type slice struct{ seen int }

func (s *slice) next() bool {
	s.seen++
	return !testing.Short() || s.seen%32 == 1
}

// story is one of those cases.
func (s *slice) story(t *testing.T, name string, n needs, test func(t *testing.T, s *server)) {
	t.Helper()
	if s.next() {
		story(t, name, n, test)
	}
}

func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
}

// inOrder yields cases by name, so that short runs always select the same.
func inOrder[V any](cases map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			if !yield(name, cases[name]) {
				return
			}
		}
	}
}

// TestSuite checks the suite's own promise: everything that it makes is removed, even
// volumes that no VM refers to.
func TestSuite(t *testing.T) {
	story(t, "removes what it made", 0, func(t *testing.T, s *server) {
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
}
