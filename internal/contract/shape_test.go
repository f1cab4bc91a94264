package contract

import (
	"net/http"
	"strings"
	"testing"
)

// TestResize: what recast needs of it to grow a disk.
func TestResize(t *testing.T) {
	story(t, "grows a disk of a VM that is off, and of one that runs", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		volid := s.volid(id, "scsi0")
		e := s.taskOK(http.MethodPut, s.vm(id, "resize"), "disk=scsi0", "size=2G", "digest="+s.config(id)["digest"])
		same(t, "resize", e.kind())
		same(t, volid+",size=2G", s.now(id, "scsi0"))
		s.start(id)
		s.taskOK(http.MethodPut, s.vm(id, "resize"), "disk=scsi0", "size=+1G")
		same(t, volid+",size=3G", s.now(id, "scsi0"))
		s.stop(id)
	})
	story(t, "checks in its task, not before it", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "ide2=none,media=cdrom")
		for _, c := range []struct{ disk, size, digest, exit string }{
			{"scsi0", "512M", "", "shrinking disks is not supported"},
			{"scsi1", "2G", "", "disk 'scsi1' does not exist"},
			{"ide2", "2G", "", "you can't resize a cdrom"},
			{"scsi0", "2G", strings.Repeat("0", 40), "checksum mismatch (file change by other user?)"},
			{"scsi0", "1G", "", "OK"}, // it has that
		} {
			form := []string{"disk=" + c.disk, "size=" + c.size}
			if c.digest != "" {
				form = append(form, "digest="+c.digest)
			}
			wantExit(t, s.task(http.MethodPut, s.vm(id, "resize"), form...), c.exit)
		}
	})
	story(t, "needs VM.Config.Disk", poorToken, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		wantRefusal(t, s.poor(http.MethodPut, s.vm(id, "resize"), "disk=scsi0", "size=2G"), "403 Permission check failed (/vms/"+itoa(id)+", VM.Config.Disk)", nil)
	})
}

// TestJoinPool: a VM that is there is put into a pool, or moved to it.
func TestJoinPool(t *testing.T) {
	story(t, "adds a VM once", 0, func(t *testing.T, s *server) {
		s.holds("/pool/"+s.place.pool, "Pool.Allocate")
		id := s.newVM()
		if s.poolOf(id) != "" {
			s.put("/pools", "poolid="+s.place.pool, "vms="+itoa(id), "delete=1")
		}
		s.put("/pools", "poolid="+s.place.pool, "vms="+itoa(id), "allow-move=1")
		same(t, s.place.pool, s.poolOf(id))
		wantRefusal(t, s.do(http.MethodPut, "/pools", "poolid="+s.place.pool, "vms="+itoa(id), "allow-move=1"), "500 update pools failed: VM "+itoa(id)+" is already a pool member", nil)
	})
	story(t, "needs Pool.Allocate", poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		wantRefusal(t, s.poor(http.MethodPut, "/pools", "poolid="+s.place.pool, "vms="+itoa(id)), "403 Permission check failed (/pool/"+s.place.pool+", Pool.Allocate)", nil)
	})
}

// TestChangeHA: settings of a resource that is there.
func TestChangeHA(t *testing.T) {
	story(t, "changes what is given and leaves the rest", 0, func(t *testing.T, s *server) {
		s.managesHA()
		id := s.newManaged("ignored")
		sid := haResources + "/vm:" + itoa(id)
		s.put(sid, "max_restart=3")
		got := object(t, s.get(sid))
		same(t, "ignored", text(got["state"]))
		same(t, "3", text(got["max_restart"]))
		s.put(sid, "max_restart=3") // twice is no error
	})
}
