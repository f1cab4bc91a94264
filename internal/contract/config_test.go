package contract

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	mismatch = "500 checksum mismatch (file change by other user?)"
	someSum  = "da39a3ee5e6b4b0d3255bfef95601890afd80709" // of nothing
)

func TestConfigDigest(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		story(t, "of another configuration is refused at once by "+method, 0, func(t *testing.T, s *server) {
			id := s.newVM()
			wantRefusal(t, s.do(method, s.vm(id, "config"), "memory=128", "digest="+someSum), mismatch, nil)
			s.wantKey(id, "memory", "64")
		})
	}
	story(t, "changes with pending changes", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.start(id)
		before := s.digest(id)
		s.put(s.vm(id, "config"), "memory=128", "digest="+before)
		if s.digest(id) == before {
			t.Error("the digest is the same")
		}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=256", "digest="+before), mismatch, nil)
	})
}

func TestConfigAnswers(t *testing.T) {
	story(t, "PUT with nothing and POST with a task", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		if r := s.do(http.MethodPut, s.vm(id, "config"), "memory=128"); r.Code != http.StatusOK || r.Data != nil {
			t.Errorf("PUT: %s %s", r.Status, r.Body)
		}
		end := s.taskOK(http.MethodPost, s.vm(id, "config"), "memory=256")
		same(t, "qmconfig", end.kind())
		s.wantKey(id, "memory", "256")
	})
	story(t, "that nothing was asked for, or something that there is not", 0, func(t *testing.T, s *server) {
		config := s.vm(s.newVM(), "config")
		wantRefusal(t, s.do(http.MethodPut, config), "500 no options specified", nil)
		wantRefusal(t, s.do(http.MethodPut, config, "nosuch=1"), refused, map[string]string{"nosuch": unknown})
		wantRefusal(t, s.do(http.MethodPut, config, "delete=nosuch"), refused, map[string]string{"delete": "unknown option 'nosuch'"})
	})
	story(t, "that the VM is not there", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		want := fmt.Sprintf("500 Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.place.node, id)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "config")), want, nil)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "status/current")), want, nil)
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=128"), want, nil)
	})
	story(t, "that the VM is locked", simulated, func(t *testing.T, s *server) {
		id := s.newVM()
		s.sim.world.SetLock(id, "backup")
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=128"), "500 VM is locked (backup)", nil)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "config"), "memory=128"), "500 VM is locked (backup)", nil)
		wantExit(t, s.task(http.MethodPost, s.vm(id, "status/stop")), "VM is locked (backup)")
		wantExit(t, s.task(http.MethodDelete, s.vm(id, "")), "VM is locked (backup)")
		s.sim.world.SetLock(id, "")
	})
	story(t, "that only root skips locks", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		want := map[string]string{"skiplock": "Only root may use this option."}
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "memory=128", "skiplock=1"), refused, want)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "status/stop"), "skiplock=1"), refused, want)
		wantRefusal(t, s.do(http.MethodDelete, s.vm(id, ""), "skiplock=1"), refused, want)
	})
}

// TestConfigLock: the lock file of a configuration.
func TestConfigLock(t *testing.T) {
	story(t, "that the lock is taken, after ten seconds", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		release := s.holdLock(id)
		want := fmt.Sprintf("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			begun := time.Now()
			r := s.do(method, s.vm(id, "config"), "memory=128")
			if strings.HasPrefix(text(r.Data), "UPID:") { // since qemu-server 9.1.19 the worker takes it
				wantExit(t, s.wait(r), want)
			} else {
				wantRefusal(t, r, "500 "+want, nil)
			}
			if took := time.Since(begun); took < 9*time.Second {
				t.Errorf("%s waited only %v", method, took)
			}
		}
		release()
	})
	story(t, "that the digest is another one, before the lock (since qemu-server 9.1.19) or after it", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		release := s.holdLock(id)
		locked := fmt.Sprintf("500 can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			got := s.do(method, s.vm(id, "config"), "memory=128", "digest="+someSum)
			if s.sim != nil || got.Status != locked {
				wantRefusal(t, got, mismatch, nil)
			}
		}
		release()
	})
}

func TestConfigDelete(t *testing.T) {
	story(t, "keeps a disk of the VM's own as unusedN", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk()+",serial=lost,ssd=1", "boot=order=scsi1;scsi0")
		volid := s.volid(id, "scsi1")
		s.put(s.vm(id, "config"), "delete=scsi1")
		want := map[string]string{"scsi1": "", "unused0": volid, "boot": "order=scsi0"}
		s.wantKeys(id, want)
		s.put(s.vm(id, "config"), "scsi3="+volid+",serial=again")
		s.wantKeys(id, map[string]string{"scsi3": volid + ",serial=again,size=1G", "unused0": ""})
	})
	story(t, "drops the key of another VM's disk", 0, func(t *testing.T, s *server) {
		owner := s.newVM("scsi0=" + s.disk())
		volid := s.volid(owner, "scsi0")
		id := s.newVM("scsi5=" + volid)
		s.put(s.vm(id, "config"), "delete=scsi5", "force=1")
		s.wantKeys(id, map[string]string{"scsi5": "", "unused0": ""})
		s.wantThere(volid)
	})
	story(t, "keeps nothing of a CD-ROM drive", 0, func(t *testing.T, s *server) {
		s.holds("/vms", "VM.Config.Cloudinit")
		id := s.newVM("ide2=none,media=cdrom", "ide0="+s.place.storage+":cloudinit")
		s.put(s.vm(id, "config"), "delete=ide2,ide0")
		s.wantKeys(id, map[string]string{"ide2": "", "ide0": "", "unused0": ""})
		s.wantVolumes(id)
	})
}

// TestConfigDeleteForGood: what frees a disk, and what has no effect.
func TestConfigDeleteForGood(t *testing.T) {
	story(t, "with force, or of unusedN, frees the disk", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi1="+s.disk(), "scsi2="+s.disk())
		s.put(s.vm(id, "config"), "delete=scsi1", "force=1")
		s.wantVolumes(id, s.volid(id, "scsi2"))
		s.put(s.vm(id, "config"), "delete=scsi2")
		s.put(s.vm(id, "config"), "delete=unused0")
		s.wantVolumes(id)
		s.wantKey(id, "unused0", "")
	})
	story(t, "of what is not set is done", 0, func(t *testing.T, s *server) { s.put(s.vm(s.newVM(), "config"), "delete=scsi9,onboot") })
	story(t, "takes a network card out of the boot order", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "net0=virtio,bridge="+s.place.bridge, "boot=order=net0;scsi0")
		s.put(s.vm(id, "config"), "delete=net0")
		s.wantKey(id, "boot", "order=scsi0")
	})
}

func TestConfigSet(t *testing.T) {
	story(t, "of a drive keeps the disk that was there", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		old := s.volid(id, "scsi0")
		s.put(s.vm(id, "config"), "scsi0="+s.disk())
		if got := s.config(id); got["unused0"] != old || s.volid(id, "scsi0") == old {
			t.Errorf("scsi0 %s, unused0 %s, was %s", got["scsi0"], got["unused0"], old)
		}
	})
	story(t, "adds a CD-ROM drive to the boot order", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "boot=order=scsi0")
		s.put(s.vm(id, "config"), "ide2=none,media=cdrom")
		s.wantKey(id, "boot", "order=scsi0;ide2")
	})
	story(t, "of a volume that is not there is refused at once", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		volid := strings.Replace(s.volid(id, "scsi0"), "disk-0", "disk-7", 1)
		r := s.do(http.MethodPut, s.vm(id, "config"), "scsi5="+volid)
		if want := "500 volume '" + volid + "' does not exist"; onFiles(volid) && r.Status != want || r.Code == http.StatusOK {
			t.Errorf("%s, want %s", r.Status, want)
		}
		wantMissing(t, s.task(http.MethodPost, s.vm(id, "config"), "scsi5="+volid), "", volid)
	})
	story(t, "of an ISO that is not there is refused at once", 0, func(t *testing.T, s *server) {
		volid := s.place.isoStorage + ":iso/recast-contract-nosuch.iso"
		r := s.do(http.MethodPut, s.vm(s.newVM(), "config"), "ide2="+volid+",media=cdrom")
		wantRefusal(t, r, "500 volume '"+volid+"' does not exist", nil)
	})
}

// TestConfigSetNeeds: permissions. It also needs a quorum: see TestNoQuorum.
func TestConfigSetNeeds(t *testing.T) {
	story(t, "rights", poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		r := s.poor(http.MethodPut, s.vm(id, "config"), "memory=128")
		if want := fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Config.Disk|", id); !strings.HasPrefix(r.Status, want) {
			t.Errorf("%s, want %s…", r.Status, want)
		}
	})
	story(t, "root itself, for some options", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		for form, want := range map[string]string{
			"vmgenid=1": "only root can set 'vmgenid' config", "delete=vmgenid": "only root can set 'vmgenid' config",
			"serial0=/dev/ttyS0": "only root can modify 'serial0' config for real devices",
		} {
			wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), form), "500 "+want, nil)
		}
		s.put(s.vm(id, "config"), "smbios1=uuid=11111111-2222-4333-8444-555555555555", "serial0=socket")
	})
	story(t, "the privilege of each option", simulated, func(t *testing.T, s *server) {
		id := s.newVM("scsi1=" + s.disk())
		for privilege, form := range map[string]string{
			"VM.Config.Memory": "memory=128", "VM.Config.CPU": "cores=2", "VM.Config.HWType": "machine=q35", "VM.Config.Options": "onboot=1",
			"VM.Config.Disk": "delete=scsi1", "VM.Config.CDROM": "ide2=none,media=cdrom", "VM.Config.Network": "net0=virtio",
		} {
			poorer := s.without(privilege)
			want := fmt.Sprintf("403 Permission check failed (/vms/%d, %s)", id, privilege)
			wantRefusal(t, s.as(poorer, http.MethodPut, s.vm(id, "config"), form), want, nil)
		}
	})
}
