package contract

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestLinkedClone: the name of a linked clone's volume is prefixed with its base's.
func TestLinkedClone(t *testing.T) {
	template := func(s *server, form ...string) (id int) {
		s.holds("/vms", "VM.Clone")
		id = s.newVM(form...)
		s.taskOK(http.MethodPost, s.vm(id, "template"))
		return id
	}
	clone := func(s *server, id int) (clone int) {
		clone = s.freeID()
		s.taskOK(http.MethodPost, s.vm(id, "clone"), "newid="+itoa(clone), "full=0")
		return clone
	}
	story(t, "keeps the template", 0, func(t *testing.T, s *server) {
		id := template(s, "scsi0="+s.disk())
		base := s.volid(id, "scsi0")
		same(t, fmt.Sprintf("base-%d-disk-0", id), diskName(base))
		linked := clone(s, id)
		if !onFiles(base) {
			s.skipf("needs PVE_STORAGE to be one of files: elsewhere a name does not always tell")
		}
		_, name, _ := strings.Cut(base, ":")
		want := fmt.Sprintf("%s:%s/%d/vm-%d-disk-0.qcow2", s.place.storage, name, linked, linked)
		same(t, want, s.volid(linked, "scsi0"))
		same(t, itoa(linked), text(s.row(want)["vmid"]))
		wantExit(t, s.task(http.MethodDelete, s.vm(id, "")), "base volume '"+base+"' is still in use by linked cloned")
		s.taskOK(http.MethodDelete, s.vm(linked, ""))
		if s.row(base) == nil {
			t.Fatal("the base volume went with the clone")
		}
		s.taskOK(http.MethodDelete, s.vm(id, ""))
	})
	story(t, "can be reassigned and keeps its base", 0, func(t *testing.T, s *server) {
		id := template(s, "scsi0="+s.disk())
		linked, other := clone(s, id), s.newVM()
		s.taskOK(http.MethodPost, s.vm(linked, "move_disk"), "disk=scsi0", "target-vmid="+itoa(other))
		base := s.volid(id, "scsi0")
		if !onFiles(base) {
			s.skipf("needs PVE_STORAGE to be one of files: elsewhere a name does not always tell")
		}
		_, name, _ := strings.Cut(base, ":")
		want := fmt.Sprintf("%s:%s/%d/vm-%d-disk-0.qcow2", s.place.storage, name, other, other)
		same(t, want, s.volid(other, "scsi0"))
	})
	story(t, "of a template cannot have its disk reassigned", 0, func(t *testing.T, s *server) {
		id, other := template(s, "scsi0="+s.disk()), s.newVM()
		r := s.do(http.MethodPost, s.vm(id, "move_disk"), "disk=scsi0", "target-vmid="+itoa(other))
		wantRefusal(t, r, "500 Can't move disks from or to template VMs", nil)
	})
}

// TestSnapshot: what a snapshot blocks.
func TestSnapshot(t *testing.T) {
	take := func(s *server, id int) ended {
		return s.task(http.MethodPost, s.vm(id, "snapshot"), "snapname=before")
	}
	story(t, "is not to be had of a raw file", 0, func(t *testing.T, s *server) {
		s.holds("/vms", "VM.Snapshot")
		id := s.newVM("scsi0=" + s.disk())
		if !onFiles(s.volid(id, "scsi0")) {
			s.skipf("needs PVE_STORAGE to be one of files: others may well take one")
		}
		wantExit(t, take(s, id), "snapshot feature is not available")
	})
	story(t, "keeps its disk from being freed or reassigned", 0, func(t *testing.T, s *server) {
		s.holds("/vms", "VM.Snapshot")
		id, other := s.newVM("scsi0="+s.disk()), s.newVM()
		if onFiles(s.volid(id, "scsi0")) {
			s.put(s.vm(id, "config"), "delete=scsi0", "force=1")
			s.put(s.vm(id, "config"), "scsi0="+s.disk()+",format=qcow2")
		}
		wantExit(t, take(s, id), "OK")
		r := s.do(http.MethodPost, s.vm(id, "move_disk"), "disk=scsi0", "target-vmid="+itoa(other))
		wantRefusal(t, r, "500 Can't move disk used by a snapshot to another VM", nil)
		s.put(s.vm(id, "config"), "delete=scsi0")
		volid := s.volid(id, "unused0")
		want := "500 unable to delete '" + volid + "' - volume is still in use (snapshot?)"
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "delete=unused0"), want, nil)
		s.taskOK(http.MethodDelete, s.vm(id, "snapshot/before"))
		s.put(s.vm(id, "config"), "delete=unused0")
		s.wantFreed(volid)
	})
}
