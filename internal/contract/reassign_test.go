package contract

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// reassign reassigns a disk to another VM.
func (s *server) reassign(id int, key string, target int, form ...string) reply {
	s.t.Helper()
	return s.do(http.MethodPost, s.vm(id, "move_disk"), append(form, "disk="+key, "target-vmid="+itoa(target))...)
}

// reassigned is a reassign that must succeed.
func (s *server) reassigned(id int, key string, target int, form ...string) ended {
	s.t.Helper()
	end := s.wait(s.reassign(id, key, target, form...))
	wantExit(s.t, end, "OK")
	return end
}

// wantKeys requires some keys of a VM's configuration, "" for unset ones.
func (s *server) wantKeys(id int, want map[string]string) {
	s.t.Helper()
	c, got := s.config(id), map[string]string{}
	for key := range want {
		got[key] = c[key]
	}
	same(s.t, want, got)
}

func (s *server) wantKey(id int, key, want string) {
	s.t.Helper()
	same(s.t, want, s.config(id)[key])
}

func TestReassign(t *testing.T) {
	story(t, "renames the volume and keeps the drive's options", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk()+",serial=data-1,discard=on,ssd=1,iothread=1,backup=0", "boot=order=scsi0;scsi1")
		other := s.newVM("scsi0=" + s.disk())
		volid, options, _ := strings.Cut(s.config(id)["scsi1"], ",")
		end := s.reassigned(id, "scsi1", other, "target-disk=scsi5")
		same(t, []string{"qmmove", fmt.Sprintf("%d-scsi1>%d-scsi5", id, other)}, strings.Split(end.UPID, ":")[5:7])
		same(t, fmt.Sprintf("vm-%d-disk-1", other), diskName(s.volid(other, "scsi5")))
		if _, got, _ := strings.Cut(s.config(other)["scsi5"], ","); got != options {
			t.Errorf("options %s, were %s", got, options)
		}
		s.wantFreed(volid)
		want := map[string]string{"scsi1": "", "unused0": "", "boot": "order=scsi0"}
		s.wantKeys(id, want)
	})
	story(t, "keeps the key unless told otherwise", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi4="+s.disk()), s.newVM()
		s.reassigned(id, "scsi4", other)
		same(t, fmt.Sprintf("vm-%d-disk-0", other), diskName(s.volid(other, "scsi4")))
		if got := s.config(id)["boot"]; strings.TrimSpace(got) != "" {
			t.Errorf("an empty boot order is %q", got)
		}
	})
	story(t, "to unusedN keeps the volume alone", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi4="+s.disk()+",serial=s"), s.newVM()
		s.reassigned(id, "scsi4", other, "target-disk=unused2")
		value := s.config(other)["unused2"]
		if diskName(value) != fmt.Sprintf("vm-%d-disk-0", other) || strings.Contains(value, ",") {
			t.Errorf("unused2: %s", value)
		}
	})
	story(t, "takes the firmware's volumes too", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("bios=ovmf", "efidisk0="+s.disk()+",efitype=4m", "tpmstate0="+s.disk()+",version=v2.0"), s.newVM()
		for _, key := range []string{"efidisk0", "tpmstate0"} {
			_, options, _ := strings.Cut(s.config(id)[key], ",")
			s.reassigned(id, key, other)
			if _, got, _ := strings.Cut(s.config(other)[key], ","); got != options {
				t.Errorf("%s: options %s, were %s", key, got, options)
			}
		}
	})
	story(t, "of another VM's volume leaves that one's configuration with nothing", 0, func(t *testing.T, s *server) {
		owner := s.newVM("scsi0=" + s.disk())
		volid := s.volid(owner, "scsi0")
		id, other := s.newVM("scsi3="+volid), s.newVM()
		s.reassigned(id, "scsi3", other)
		if got := s.volid(owner, "scsi0"); got != volid || s.row(volid) != nil {
			t.Errorf("the owner has %s, which is there: %v", got, s.row(volid) != nil)
		}
		if got := s.volid(other, "scsi3"); s.row(got) == nil {
			t.Errorf("%s is not there", got)
		}
		wantMissing(t, s.task(http.MethodPost, s.vm(owner, "status/start")), "", volid)
	})
}

// TestReassignOfRunning: one of the two VMs runs.
func TestReassignOfRunning(t *testing.T) {
	story(t, "the source keeps what is attached", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk()), s.newVM()
		s.start(id)
		want := "500 Cannot move disk to another VM while the source VM is running - detach first"
		wantRefusal(t, s.reassign(id, "scsi1", other), want, nil)
	})
	story(t, "the source gives what is detached, without its options", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk()+",serial=lost,ssd=1", "boot=order=scsi0"), s.newVM()
		s.start(id)
		s.put(s.vm(id, "config"), "delete=scsi1")
		value := s.config(id)["unused0"]
		if diskName(value) != fmt.Sprintf("vm-%d-disk-1", id) || strings.Contains(value, ",") {
			t.Errorf("unused0: %s", value)
		}
		s.reassigned(id, "unused0", other, "target-disk=scsi1")
		if got, want := s.config(other)["scsi1"], s.volid(other, "scsi1")+",size=1G"; got != want && got != s.volid(other, "scsi1") {
			t.Errorf("%s, want %s", got, want)
		}
		s.wantKey(id, "unused0", "")
	})
	story(t, "the target is given it at once", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()+",serial=hot"), s.newVM("scsi0="+s.disk())
		s.start(other)
		s.reassigned(id, "scsi1", other)
		row := s.pending(other)["scsi1"]
		if !strings.Contains(row.Value, "serial=hot") || row.Pending != "" {
			t.Errorf("%+v", row)
		}
	})
}

// TestReassignRefused: everything is checked before the task begins.
func TestReassignRefused(t *testing.T) {
	const digest = "500 VM %d: detected modified configuration - file changed by other user? Try again."
	tests := map[string]struct {
		form   []string // of a VM with scsi1 and ide2 (%d), to one with scsi2
		want   string   // %d is the source, %[2]d the target
		params map[string]string
	}{
		"with a digest that is not the source's":      {form: []string{"disk=scsi1", "digest=da39a3ee5e6b4b0d3255bfef95601890afd80709"}, want: digest},
		"with a digest that is not the target's":      {form: []string{"disk=scsi1", "target-digest=da39a3ee5e6b4b0d3255bfef95601890afd80709"}, want: strings.Replace(digest, "%d", "%[2]d", 1)},
		"of a disk that is not there":                 {form: []string{"disk=scsi9"}, want: "500 Disk 'scsi9' for VM '%d' does not exist"},
		"to a key that is taken":                      {form: []string{"disk=scsi1", "target-disk=scsi2"}, want: "500 Target disk key 'scsi2' is already in use for VM '%[2]d'"},
		"of a CD-ROM drive":                           {form: []string{"disk=ide2"}, want: "500 CD drive contents can't be moved to another VM"},
		"to the VM itself":                            {form: []string{"target-vmid=%d", "disk=scsi1"}, want: "400 Parameter verification failed.", params: map[string]string{"target-vmid": "must be different than source VMID to reassign disk"}},
		"to another storage and another VM in one go": {form: []string{"disk=scsi1", "storage=local"}, want: "400 Parameter verification failed.", params: map[string]string{"storage": "either set 'storage' or 'target-vmid', but not both", "target-vmid": "either set 'storage' or 'target-vmid', but not both"}},
	}
	for name, test := range tests {
		story(t, name, 0, func(t *testing.T, s *server) {
			id, other := s.newVM("scsi1="+s.disk(), "ide2=none,media=cdrom"), s.newVM("scsi2="+s.disk())
			form := []string{"target-vmid=" + itoa(other)}
			for _, f := range test.form {
				if strings.Contains(f, "%") {
					f, form = fmt.Sprintf(f, id), nil
				}
				form = append(form, f)
			}
			want := strings.NewReplacer("%d", itoa(id), "%[2]d", itoa(other)).Replace(test.want)
			wantRefusal(t, s.do(http.MethodPost, s.vm(id, "move_disk"), form...), want, test.params)
			if got := s.volumes(s.place.storage, id); len(got) != 1 {
				t.Errorf("volumes %q", got)
			}
		})
	}
}

// TestReassignNeeds: a VM and permissions at both ends.
func TestReassignNeeds(t *testing.T) {
	story(t, "a target", 0, func(t *testing.T, s *server) {
		id, none := s.newVM("scsi1="+s.disk()), s.freeID()
		wantRefusal(t, s.reassign(id, "scsi1", none), fmt.Sprintf("500 could not find target VM %d", none), nil)
	})
	story(t, "the same node", secondNode, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVMOn(s.place.node2)
		want := fmt.Sprintf("500 Both VMs need to be on the same node (%s != %s)", s.place.node, s.place.node2)
		wantRefusal(t, s.reassign(id, "scsi1", other), want, nil)
	})
	story(t, "the right to change the source", poorToken, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVM()
		r := s.poor(http.MethodPost, s.vm(id, "move_disk"), "disk=scsi1", "target-vmid="+itoa(other))
		wantRefusal(t, r, fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Config.Disk)", id), nil)
	})
	story(t, "the right to space on the storage", simulated, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVM()
		s.lacks("/storage/"+s.place.storage, "Datastore.AllocateSpace")
		want := "403 Permission check failed (/storage/" + s.place.storage + ", Datastore.AllocateSpace)"
		wantRefusal(t, s.reassign(id, "scsi1", other), want, nil)
	})
	story(t, "no lock on either", simulated, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVM()
		for _, locked := range []int{id, other} {
			s.sim.world.SetLock(locked, "backup")
			wantRefusal(t, s.reassign(id, "scsi1", other), "500 VM is locked (backup)", nil)
			s.sim.world.SetLock(locked, "")
		}
	})
	story(t, "both configurations' locks, in time", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVM()
		release := s.holdLock(other)
		begun := time.Now()
		end := s.wait(s.reassign(id, "scsi1", other))
		wantExit(t, end, fmt.Sprintf("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", other))
		if took := time.Since(begun); took < 9*time.Second {
			t.Errorf("it waited only %v", took)
		}
		release()
		s.reassigned(id, "scsi1", other)
	})
	story(t, "a quorum, but finds out only when the volume has its new name", simulated, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVM()
		volid := s.volid(id, "scsi1")
		s.sim.world.SetQuorum(false)
		end := s.wait(s.reassign(id, "scsi1", other))
		want := fmt.Sprintf("unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.", s.place.node, id)
		if !strings.HasPrefix(end.Exit, want) || !strings.HasSuffix(end.Exit, " - Permission denied") {
			t.Errorf("the task ended with %q", end.Exit)
		}
		if got := s.volid(id, "scsi1"); got != volid || s.row(volid) != nil || len(s.volumes(s.place.storage, other)) != 1 {
			t.Errorf("%s is named %s; the target owns %q", volid, got, s.volumes(s.place.storage, other))
		}
		s.sim.world.SetQuorum(true)
	})
}

// holdLock holds the lock of a VM's configuration with a shutdown that the guest ignores;
// release waits for its end.
func (s *server) holdLock(id int) (release func()) {
	s.t.Helper()
	s.start(id)
	r := s.do(http.MethodPost, s.vm(id, "status/shutdown"), "timeout=40")
	time.Sleep(3 * time.Second) // the worker has it by then
	return func() {
		s.t.Helper()
		wantExit(s.t, s.wait(r), "VM quit/powerdown failed - got timeout")
	}
}
