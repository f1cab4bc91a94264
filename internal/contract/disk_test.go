package contract

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/must"
)

func (s *server) disk() string { return s.place.storage + ":1" }

// diskName is the last part of a volid, without extension: "vm-90000-disk-0".
func diskName(volid string) string {
	_, name, _ := strings.Cut(volid, ":")
	name, _, _ = strings.Cut(path.Base(name), ".")
	return name
}

// onFiles says whether a storage stores volumes as files, by one of its volids.
func onFiles(volid string) bool { return strings.Contains(volid, "/") }

// needsFiles skips a test on a storage whose volumes are not files.
func (s *server) needsFiles(volid, why string) {
	s.t.Helper()
	if !onFiles(volid) {
		s.skipf("needs PVE_STORAGE to be one of files: %s", why)
	}
}

// row is a volume in the listing of its storage; nil if it isn't there.
func (s *server) row(volid string) map[string]any {
	s.t.Helper()
	storage, _, _ := strings.Cut(volid, ":")
	for _, o := range s.rows("/nodes/" + s.place.node + "/storage/" + storage + "/content") {
		if text(o["volid"]) == volid {
			return o
		}
	}
	return nil
}

func (s *server) wantThere(volid string) {
	s.t.Helper()
	must.Hold(s.t, s.row(volid) != nil, "%s is gone", volid)
}

func (s *server) wantFreed(volid string) {
	s.t.Helper()
	must.Hold(s.t, s.row(volid) == nil, "%s is still there", volid)
}

func (s *server) wantVolumes(id int, want ...string) {
	s.t.Helper()
	same(s.t, want, s.volumes(s.place.storage, id))
}

func TestVolumeNames(t *testing.T) {
	story(t, "say whose a volume is", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		volid := s.volid(id, "scsi0")
		same(t, fmt.Sprintf("vm-%d-disk-0", id), diskName(volid))
		row := s.row(volid)
		got := []string{text(row["vmid"]), text(row["content"]), text(row["format"])}
		must.Hold(t, cmp.Equal(got, []string{itoa(id), "images", "raw"}), "listed as %v", row)
	})
	story(t, "carry the lowest free number, again after a removal or a reassign", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "scsi2="+s.disk()), s.newVM()
		gone := s.volid(id, "scsi1")
		s.put(s.vm(id, "config"), "delete=scsi1", "force=1")
		s.wantFreed(gone)
		s.put(s.vm(id, "config"), "scsi7="+s.disk())
		same(t, gone, s.volid(id, "scsi7"))
		s.reassigned(id, "scsi7", other)
		s.put(s.vm(id, "config"), "scsi8="+s.disk())
		same(t, gone, s.volid(id, "scsi8"))
	})
	story(t, "end in the format asked for, on files", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		s.needsFiles(s.volid(id, "scsi0"), "others have no formats to choose from")
		s.put(s.vm(id, "config"), "scsi1="+s.disk()+",format=qcow2")
		want := map[string]string{
			"scsi0": fmt.Sprintf("%s:%d/vm-%d-disk-0.raw,size=1G", s.place.storage, id, id),
			"scsi1": fmt.Sprintf("%s:%d/vm-%d-disk-1.qcow2,size=1G", s.place.storage, id, id),
		}
		c := s.config(id)
		same(t, want, map[string]string{"scsi0": c["scsi0"], "scsi1": c["scsi1"]})
	})
}

// TestOneDiskTwice: a disk may be in two VMs. For a file QEMU's own lock prevents the
// second one from starting; nothing does for a block device.
func TestOneDiskTwice(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		owner := s.newVM("scsi0=" + s.disk())
		other := s.newVM("scsi3=" + s.volid(owner, "scsi0"))
		s.start(owner)
		if onFiles(s.volid(owner, "scsi0")) {
			wantExit(t, s.task(http.MethodPost, s.vm(other, "status/start")), "start failed: QEMU exited with code 1")
			s.stop(owner)
			s.start(other)
		} else {
			s.start(other)
			s.stop(owner)
		}
		s.stop(other)
	})
}

// alloc makes a disk with the VM's number that no configuration names.
func (s *server) alloc(id int) (volid string) {
	s.t.Helper()
	name := fmt.Sprintf("vm-%d-disk-9", id)
	probe := s.newVM("scsi0=" + s.disk())
	if onFiles(s.volid(probe, "scsi0")) {
		name += ".raw"
	}
	r := s.do(http.MethodPost, "/nodes/"+s.place.node+"/storage/"+s.place.storage+"/content", "filename="+name, "vmid="+itoa(id), "size=1G")
	must.Be(s.t, r.Code == http.StatusOK, "allocate %s: %s %s", name, r.Status, r.Body)
	return text(r.Data)
}

func TestDeleteVM(t *testing.T) {
	const del = http.MethodDelete
	story(t, "frees every volume of its own, also a detached disk", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "bios=ovmf", "efidisk0="+s.disk()+",efitype=4m",
			"tpmstate0="+s.disk()+",version=v2.0", "ide2="+s.place.storage+":cloudinit")
		s.put(s.vm(id, "config"), "delete=scsi1")
		got := s.volumes(s.place.storage, id)
		must.Be(t, len(got) == 5, "%q", got)
		s.taskOK(del, s.vm(id, ""))
		s.wantVolumes(id)
	})
	story(t, "leaves another VM's volume, and frees what another VM refers to", 0, func(t *testing.T, s *server) {
		owner := s.newVM("scsi0=" + s.disk())
		volid := s.volid(owner, "scsi0")
		id, other := s.newVM("scsi0="+volid, "ide2=none,media=cdrom"), s.newVM("scsi0="+volid)
		s.taskOK(del, s.vm(id, ""))
		s.wantThere(volid)
		s.start(owner)
		s.stop(owner)
		s.taskOK(del, s.vm(owner, ""))
		s.wantFreed(volid)
		wantMissing(t, s.task(http.MethodPost, s.vm(other, "status/start")), "", volid)
	})
}

// TestDeleteVMByName: volumes that the VM's configuration does not name are freed only on request, and then
// whoever uses them.
func TestDeleteVMByName(t *testing.T) {
	const del = http.MethodDelete
	story(t, "leaves what nobody refers to", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		volid := s.alloc(id)
		s.taskOK(del, s.vm(id, ""))
		s.wantThere(volid)
	})
	story(t, "with destroy-unreferenced-disks frees by name, whoever refers to it", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		volid := s.alloc(id)
		other := s.newVM("scsi0=" + volid)
		s.taskOK(del, s.vm(id, ""), "destroy-unreferenced-disks=1")
		s.wantFreed(volid)
		wantMissing(t, s.task(http.MethodPost, s.vm(other, "status/start")), "", volid)
	})
}

// TestDeleteVMAround: the VM's state, its pool and its permissions.
func TestDeleteVMAround(t *testing.T) {
	const del = http.MethodDelete
	story(t, "refuses a running VM", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0=" + s.disk())
		s.start(id)
		wantRefusal(t, s.do(del, s.vm(id, "")), fmt.Sprintf("500 VM %d is running - destroy failed", id), nil)
	})
	story(t, "takes the VM out of its pool", pool, func(t *testing.T, s *server) {
		s.holds("/pool/"+s.place.pool, "Pool.Audit")
		id := s.newVM("pool=" + s.place.pool)
		same(t, s.place.pool, s.poolOf(id))
		s.taskOK(del, s.vm(id, ""))
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(id)...)
		same(t, "", s.poolOf(id))
	})
}

func (s *server) poolOf(id int) string {
	s.t.Helper()
	return text(s.inResources(id)["pool"])
}

func wantExit(t *testing.T, got ended, want string) {
	t.Helper()
	must.Hold(t, got.Exit == want, "the task ended with %q, want %q\n%s", got.Exit, want, strings.Join(got.Log, "\n"))
}

// wantMissing requires a task to have failed for a missing volume. The wording of block storages varies.
func wantMissing(t *testing.T, got ended, before, volid string) {
	t.Helper()
	if onFiles(volid) {
		wantExit(t, got, before+"volume '"+volid+"' does not exist")
	} else if got.Exit == "OK" {
		t.Errorf("the task ended well without %s", volid)
	}
}

// TestProtection: it keeps the VM and its disks from being removed, not from being reassigned.
func TestProtection(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk()), s.newVM()
		s.put(s.vm(id, "config"), "delete=scsi0")
		s.put(s.vm(id, "config"), "protection=1")
		const mode = " - protection mode enabled"
		wantRefusal(t, s.do(http.MethodDelete, s.vm(id, "")), fmt.Sprintf("500 can't remove VM %d", id)+mode, nil)
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "delete=scsi1"), "500 can't remove drive 'scsi1'"+mode, nil)
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "delete=scsi1", "force=1"), "500 can't remove drive 'scsi1'"+mode, nil)
		detached := s.volid(id, "unused0")
		wantRefusal(t, s.do(http.MethodPut, s.vm(id, "config"), "delete=unused0"), "500 can't remove unused disk '"+detached+"'"+mode, nil)
		s.reassigned(id, "scsi1", other)
		s.wantVolumes(id, detached)
	})
}

func (s *server) content(volid string) string {
	storage, _, _ := strings.Cut(volid, ":")
	return "/nodes/" + s.place.node + "/storage/" + storage + "/content/" + escape(volid)
}

func TestDeleteVolume(t *testing.T) {
	story(t, "frees the disk of a running VM", 0, func(t *testing.T, s *server) {
		s.holds("/storage/"+s.place.storage, "Datastore.Allocate")
		id := s.newVM("scsi0=" + s.disk())
		volid := s.volid(id, "scsi0")
		s.needsFiles(volid, "elsewhere a running VM has its device open")
		s.start(id)
		s.taskOK(http.MethodDelete, s.content(volid))
		s.wantFreed(volid)
	})
	story(t, "is done when there is none", 0, func(t *testing.T, s *server) {
		s.holds("/storage/"+s.place.storage, "Datastore.Allocate")
		id := s.newVM("scsi0=" + s.disk())
		volid := s.volid(id, "scsi0")
		s.needsFiles(volid, "others say so in other words")
		end := s.taskOK(http.MethodDelete, s.content(strings.Replace(volid, "disk-0", "disk-7", 1)))
		must.Contain(t, "what was said", strings.Join(end.Log, "\n"), "does not exist")
	})
	story(t, "takes Datastore.Allocate", 0, func(t *testing.T, s *server) {
		s.lacks("/storage/"+s.place.storage, "Datastore.Allocate")
		id := s.newVM("scsi0=" + s.disk())
		want := "403 Permission check failed (/storage/" + s.place.storage + ", Datastore.Allocate)"
		wantRefusal(t, s.do(http.MethodDelete, s.content(s.volid(id, "scsi0"))), want, nil)
	})
}

func (s *server) reassign(id int, key string, target int, form ...string) reply {
	s.t.Helper()
	return s.do(http.MethodPost, s.vm(id, "move_disk"), append(form, "disk="+key, "target-vmid="+itoa(target))...)
}

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
		_, got, _ := strings.Cut(s.config(other)["scsi5"], ",")
		must.Hold(t, got == options, "options %s, were %s", got, options)
		s.wantFreed(volid)
		s.wantKeys(id, map[string]string{"scsi1": "", "unused0": "", "boot": "order=scsi0"})
	})
	story(t, "keeps the key unless told otherwise", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi4="+s.disk()), s.newVM()
		s.reassigned(id, "scsi4", other)
		same(t, fmt.Sprintf("vm-%d-disk-0", other), diskName(s.volid(other, "scsi4")))
		same(t, "", strings.TrimSpace(s.config(id)["boot"]))
	})
	story(t, "to unusedN keeps the volume alone", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi4="+s.disk()+",serial=s"), s.newVM()
		s.reassigned(id, "scsi4", other, "target-disk=unused2")
		value := s.config(other)["unused2"]
		must.Hold(t, diskName(value) == fmt.Sprintf("vm-%d-disk-0", other) && !strings.Contains(value, ","),
			"unused2: %s", value)
	})
	story(t, "takes the firmware's volumes too", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("bios=ovmf", "efidisk0="+s.disk()+",efitype=4m", "tpmstate0="+s.disk()+",version=v2.0"), s.newVM()
		for _, key := range []string{"efidisk0", "tpmstate0"} {
			_, options, _ := strings.Cut(s.config(id)[key], ",")
			s.reassigned(id, key, other)
			_, got, _ := strings.Cut(s.config(other)[key], ",")
			must.Hold(t, got == options, "%s: options %s, were %s", key, got, options)
		}
	})
	story(t, "of another VM's volume leaves that one's configuration with nothing", 0, func(t *testing.T, s *server) {
		owner := s.newVM("scsi0=" + s.disk())
		volid := s.volid(owner, "scsi0")
		id, other := s.newVM("scsi3="+volid), s.newVM()
		s.reassigned(id, "scsi3", other)
		got := s.volid(owner, "scsi0")
		must.Hold(t, got == volid && s.row(volid) == nil, "the owner has %s, which is there: %v", got, s.row(volid) != nil)
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
		must.Hold(t, diskName(value) == fmt.Sprintf("vm-%d-disk-1", id) && !strings.Contains(value, ","), "unused0: %s", value)
		s.reassigned(id, "unused0", other, "target-disk=scsi1")
		got, want := s.config(other)["scsi1"], s.volid(other, "scsi1")+",size=1G"
		must.Hold(t, got == want || got == s.volid(other, "scsi1"), "%s, want %s", got, want)
		s.wantKey(id, "unused0", "")
	})
	story(t, "the target is given it at once", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()+",serial=hot"), s.newVM("scsi0="+s.disk())
		s.start(other)
		s.reassigned(id, "scsi1", other)
		row := s.pending(other)["scsi1"]
		must.Hold(t, strings.Contains(row.Value, "serial=hot") && row.Pending == "", "%+v", row)
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
			same(t, 1, len(s.volumes(s.place.storage, id)))
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
		wantTook(t, begun, 9*time.Second, 0)
		release()
		s.reassigned(id, "scsi1", other)
	})
	story(t, "a quorum, but finds out only when the volume has its new name", simulated, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi1="+s.disk()), s.newVM()
		volid := s.volid(id, "scsi1")
		s.sim.world.SetQuorum(false)
		end := s.wait(s.reassign(id, "scsi1", other))
		want := fmt.Sprintf("unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.", s.place.node, id)
		must.Hold(t, strings.HasPrefix(end.Exit, want) && strings.HasSuffix(end.Exit, " - Permission denied"),
			"the task ended with %q", end.Exit)
		if got := s.volid(id, "scsi1"); got != volid || s.row(volid) != nil || len(s.volumes(s.place.storage, other)) != 1 {
			t.Errorf("%s is named %s; the target owns %q", volid, got, s.volumes(s.place.storage, other))
		}
		s.sim.world.SetQuorum(true)
	})
}

// holdLock holds the lock of a VM's configuration with a shutdown that the guest ignores; release waits for its end.
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
		s.needsFiles(base, "elsewhere a name does not always tell")
		_, name, _ := strings.Cut(base, ":")
		want := fmt.Sprintf("%s:%s/%d/vm-%d-disk-0.qcow2", s.place.storage, name, linked, linked)
		same(t, want, s.volid(linked, "scsi0"))
		same(t, itoa(linked), text(s.row(want)["vmid"]))
		wantExit(t, s.task(http.MethodDelete, s.vm(id, "")), "base volume '"+base+"' is still in use by linked cloned")
		s.taskOK(http.MethodDelete, s.vm(linked, ""))
		must.Be(t, s.row(base) != nil, "the base volume went with the clone")
		s.taskOK(http.MethodDelete, s.vm(id, ""))
	})
	story(t, "can be reassigned and keeps its base", 0, func(t *testing.T, s *server) {
		id := template(s, "scsi0="+s.disk())
		linked, other := clone(s, id), s.newVM()
		s.taskOK(http.MethodPost, s.vm(linked, "move_disk"), "disk=scsi0", "target-vmid="+itoa(other))
		base := s.volid(id, "scsi0")
		s.needsFiles(base, "elsewhere a name does not always tell")
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
		s.needsFiles(s.volid(id, "scsi0"), "others may well take one")
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
