package contract

import (
	"net/http"
	"slices"
	"testing"
)

// migratable is a VM whose disk both nodes see.
func (s *server) migratable(form ...string) int {
	s.t.Helper()
	s.holds("/vms", "VM.Migrate")
	return s.newVM(append(form, "scsi0="+s.place.sharedStorage+":1")...)
}

// on2 is the path of a VM on the other node.
func (s *server) on2(id int, what string) string {
	return "/nodes/" + s.place.node2 + "/qemu/" + itoa(id) + "/" + what
}

func strs(v any) []string {
	var out []string
	list, _ := v.([]any)
	for _, one := range list {
		out = append(out, text(one))
	}
	return out
}

// TestMigrationPreconditions: what recast reads before it migrates a VM.
func TestMigrationPreconditions(t *testing.T) {
	read := func(s *server, id int) map[string]any {
		return object(s.t, s.get(s.vm(id, "migrate"), "target="+s.place.node2))
	}
	story(t, "allow a VM on a shared storage to go", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		got := read(s, id)
		if !slices.Contains(strs(got["allowed_nodes"]), s.place.node2) || len(strs(got["local_resources"])) > 0 || text(got["running"]) != "0" {
			t.Errorf("%v", got)
		}
		if disks, _ := got["local_disks"].([]any); len(disks) > 0 {
			t.Errorf("local disks: %v", disks)
		}
	})
	story(t, "name local disks", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable("scsi1=" + s.disk())
		if s.sim == nil && s.place.storage == s.place.sharedStorage {
			s.skipf("needs another PVE_STORAGE than PVE_SHARED_STORAGE")
		}
		disks, _ := read(s, id)["local_disks"].([]any)
		if len(disks) != 1 {
			t.Fatalf("%v", disks)
		}
		same(t, s.volid(id, "scsi1"), text(object(t, disks[0])["volid"]))
	})
	story(t, "need VM.Migrate", secondNode|poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		wantRefusal(t, s.poor(http.MethodGet, s.vm(id, "migrate"), "target="+s.place.node2), "403 Permission check failed (/vms/"+itoa(id)+", VM.Migrate)", nil)
	})
}

// TestMigrate: a VM moves with its configuration, which keeps its digest.
func TestMigrate(t *testing.T) {
	story(t, "moves a VM that is off, and one that runs", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		before := s.config(id)
		e := s.taskOK(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2)
		same(t, "qmigrate", e.kind())
		after := object(t, s.get(s.on2(id, "config")))
		for _, key := range []string{"digest", "scsi0", "smbios1"} {
			same(t, before[key], text(after[key]))
		}
		s.taskOK(http.MethodPost, s.on2(id, "migrate"), "target="+s.place.node)
		s.start(id)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2), "500 can't migrate running VM without --online", nil)
		s.taskOK(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2, "online=1")
		same(t, "running", text(object(t, s.get(s.on2(id, "status/current")))["status"]))
		s.taskOK(http.MethodPost, s.on2(id, "migrate"), "target="+s.place.node, "online=1")
		s.stop(id)
	})
	story(t, "refuses at once", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node), refused, map[string]string{"target": "target is local node."})
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target=recast-no-such-node"), "500 no such cluster node 'recast-no-such-node'", nil)
	})
	story(t, "needs VM.Migrate", secondNode|poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		wantRefusal(t, s.poor(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2), "403 Permission check failed (/vms/"+itoa(id)+", VM.Migrate)", nil)
	})
	story(t, "without quorum it does nothing", simulated, func(t *testing.T, s *server) {
		id := s.migratable()
		s.sim.world.SetQuorum(false)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "migrate")), "500 cluster not ready - no quorum?", nil)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2), "500 cluster not ready - no quorum?", nil)
		s.sim.world.SetQuorum(true)
	})
}
