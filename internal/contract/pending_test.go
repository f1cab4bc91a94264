package contract

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// waiting are the keys of a VM with pending changes.
func (s *server) waiting(id int) map[string]pendingRow {
	s.t.Helper()
	out := map[string]pendingRow{}
	for key, row := range s.pending(id) {
		if row.Pending != "" || row.Delete != "" && row.Delete != "0" {
			out[key] = row
		}
	}
	return out
}

func (s *server) wantWaiting(id int, want map[string]pendingRow) {
	s.t.Helper()
	same(s.t, want, s.waiting(id), cmpopts.EquateEmpty())
}

// now is a key's value without pending changes.
func (s *server) now(id int, key string) string {
	s.t.Helper()
	return text(object(s.t, s.get(s.vm(id, "config"), "current=1"))[key])
}

// TestPending: changes that a running VM can't take wait for its end.
func TestPending(t *testing.T) {
	story(t, "is shown merged, and beside the value", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		s.put(s.vm(id, "config"), "memory=128")
		s.wantWaiting(id, map[string]pendingRow{"memory": {Value: "64", Pending: "128"}})
		same(t, []string{"128", "64"}, []string{s.config(id)["memory"], s.now(id, "memory")})
		s.stop(id)
		if diff := cmp.Diff([]string{"128", "128"}, []string{s.config(id)["memory"], s.now(id, "memory")}); diff != "" {
			t.Error("after the stop: ", diff)
		}
	})
	story(t, "goes with revert, and is nothing that changes nothing", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		s.put(s.vm(id, "config"), "memory=64")
		s.wantWaiting(id, nil)
		s.put(s.vm(id, "config"), "memory=128", "sata0="+s.disk())
		s.put(s.vm(id, "config"), "revert=memory")
		if got := s.waiting(id); len(got) != 1 || got["sata0"].Pending == "" {
			t.Errorf("%v", got)
		}
		volid := s.volid(id, "sata0")
		s.put(s.vm(id, "config"), "revert=sata0")
		s.wantWaiting(id, nil)
		s.wantKey(id, "unused0", volid)
	})
}

// TestPendingDrives: media and drives.
func TestPendingDrives(t *testing.T) {
	story(t, "wait with the end of a CD-ROM drive, not with another medium", 0, func(t *testing.T, s *server) {
		iso := s.tinyISO()
		id := s.newVM("ide2="+iso+",media=cdrom", "boot=c")
		s.start(id)
		for _, value := range []string{"none,media=cdrom", iso + ",media=cdrom", "none,media=cdrom"} {
			s.put(s.vm(id, "config"), "ide2="+value)
			if got := s.now(id, "ide2"); !strings.HasPrefix(got, value) {
				t.Errorf("%s, want %s", got, value)
			}
			s.wantWaiting(id, nil)
		}
		s.put(s.vm(id, "config"), "delete=ide2")
		want := map[string]pendingRow{"ide2": {Value: "none,media=cdrom", Delete: "1"}}
		s.wantWaiting(id, want)
		s.stop(id)
		s.wantKey(id, "ide2", "")
	})
	story(t, "wait with a disk in the place of a CD-ROM drive, and say so", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=none,media=cdrom", "boot=c")
		s.start(id)
		want := map[string]string{"scsi0": "hotplug problem - unable to change media type"}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "scsi0="+s.disk()), refused, want)
		if got := s.waiting(id)["scsi0"].Pending; got == "" {
			t.Error("it is not pending")
		}
	})
}

// tinyISO is the volid of a minimal ISO.
func (s *server) tinyISO() (volid string) {
	s.t.Helper()
	name := s.isoName()
	s.uploadOK(iso(), file(name, strings.Repeat("\x00", 2048)))
	return s.place.isoStorage + ":iso/" + name
}

// TestHotplug: disks can be plugged and unplugged while a VM runs; a boot disk can't be
// unplugged.
func TestHotplug(t *testing.T) {
	story(t, "of a SCSI disk asks no guest", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "boot=order=scsi0")
		s.start(id)
		s.put(s.vm(id, "config"), "scsi1="+s.disk()+",serial=hot")
		volid := s.volid(id, "scsi1")
		same(t, volid+",serial=hot,size=1G", s.now(id, "scsi1"))
		s.put(s.vm(id, "config"), "delete=scsi1")
		if got := []string{s.now(id, "scsi1"), s.now(id, "unused0")}; !cmp.Equal(got, []string{"", volid}) {
			t.Errorf("%q", got)
		}
	})
	story(t, "refuses to unplug a boot disk, but does it when the VM stops", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "boot=order=scsi0;scsi1")
		volid := s.volid(id, "scsi0")
		s.start(id)
		want := map[string]string{"scsi0": "hotplug problem - can't unplug bootdisk 'scsi0'"}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "delete=scsi0"), refused, want)
		// It is also removed from the boot order, at once and for good.
		if got := s.waiting(id); len(got) != 2 || got["scsi0"].Delete != "1" || got["boot"].Pending != "order=scsi1" {
			t.Errorf("%+v", got)
		}
		s.put(s.vm(id, "config"), "description="+marker+" again") // does not retry it
		if s.now(id, "scsi0") == "" {
			t.Error("scsi0 is gone")
		}
		s.stop(id)
		s.wantKeys(id, map[string]string{"scsi0": "", "unused0": volid})
	})
	story(t, "that was refused is forgotten with revert, its boot order is not", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "boot=order=scsi0;scsi1")
		before := s.config(id)["scsi0"]
		s.start(id)
		if r := s.do(http.MethodPut, s.vm(id, "config"), "delete=scsi0"); r.Code != http.StatusBadRequest {
			t.Fatalf("%s %s", r.Status, r.Body)
		}
		s.put(s.vm(id, "config"), "revert=scsi0")
		s.wantWaiting(id, map[string]pendingRow{"boot": {Value: "order=scsi0;scsi1", Pending: "order=scsi1"}})
		s.put(s.vm(id, "config"), "revert=boot")
		s.stop(id)
		s.wantKeys(id, map[string]string{"scsi0": before, "boot": "order=scsi0;scsi1"})
	})
}

// TestUnplug: what Proxmox checks before it removes a device for good.
func TestUnplug(t *testing.T) {
	story(t, "of a network card asks the guest", 0, func(t *testing.T, s *server) {
		id := s.newVM("net0=virtio,bridge="+s.place.bridge, "boot=c")
		s.start(id)
		r := s.do(http.MethodPut, s.vm(id, "config"), "delete=net0")
		if r.Code == http.StatusOK && s.sim == nil {
			s.skipf("needs firmware that holds on to a network card: this one let go of it")
		}
		want := map[string]string{"net0": "hotplug problem - error on hot-unplugging device 'net0' - still busy in guest?"}
		wantRefusal(t, r, refused, want)
		same(t, "1", s.waiting(id)["net0"].Delete)
		s.put(s.vm(id, "config"), "revert=net0")
		s.wantWaiting(id, nil)
	})
	story(t, "by force frees the disk", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "boot=order=scsi0")
		volid := s.volid(id, "scsi1")
		s.start(id)
		s.put(s.vm(id, "config"), "delete=scsi1", "force=1")
		if s.row(volid) != nil || strings.Contains(s.now(id, "unused0"), volid) {
			t.Errorf("%s is still there", volid)
		}
	})
}
