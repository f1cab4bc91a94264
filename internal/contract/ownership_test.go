package contract

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// disk is a new disk of 1 GiB: "data:1".
func (s *server) disk() string { return s.place.storage + ":1" }

// diskName is the last part of a volid, without extension: "vm-90000-disk-0".
func diskName(volid string) string {
	_, name, _ := strings.Cut(volid, ":")
	name, _, _ = strings.Cut(path.Base(name), ".")
	return name
}

// onFiles says whether a storage stores volumes as files, by one of its volids.
func onFiles(volid string) bool { return strings.Contains(volid, "/") }

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

// wantThere requires a volume to be on its storage, wantFreed that it is not.
func (s *server) wantThere(volid string) {
	s.t.Helper()
	if s.row(volid) == nil {
		s.t.Errorf("%s is gone", volid)
	}
}

func (s *server) wantFreed(volid string) {
	s.t.Helper()
	if s.row(volid) != nil {
		s.t.Errorf("%s is still there", volid)
	}
}

// wantVolumes requires these volumes with a VM's number, and no others.
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
		if got := []string{text(row["vmid"]), text(row["content"]), text(row["format"])}; !cmp.Equal(got, []string{itoa(id), "images", "raw"}) {
			t.Errorf("listed as %v", row)
		}
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
		if !onFiles(s.volid(id, "scsi0")) {
			s.skipf("needs PVE_STORAGE to be one of files: others have no formats to choose from")
		}
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
	if r.Code != http.StatusOK {
		s.t.Fatalf("allocate %s: %s %s", name, r.Status, r.Body)
	}
	return text(r.Data)
}

func TestDeleteVM(t *testing.T) {
	const del = http.MethodDelete
	story(t, "frees every volume of its own, also a detached disk", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.disk(), "scsi1="+s.disk(), "bios=ovmf", "efidisk0="+s.disk()+",efitype=4m",
			"tpmstate0="+s.disk()+",version=v2.0", "ide2="+s.place.storage+":cloudinit")
		s.put(s.vm(id, "config"), "delete=scsi1")
		if got := s.volumes(s.place.storage, id); len(got) != 5 {
			t.Fatalf("%q", got)
		}
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
	story(t, "may not be asked for by anybody", poorToken, func(t *testing.T, s *server) {
		id := s.newVM()
		wantRefusal(t, s.poor(del, s.vm(id, "")), fmt.Sprintf("403 Permission check failed (/vms/%d, VM.Allocate)", id), nil)
	})
}

// poolOf is the pool in a VM's listing.
func (s *server) poolOf(id int) string {
	s.t.Helper()
	return text(s.inResources(id)["pool"])
}

// wantExit compares the exit status of a task.
func wantExit(t *testing.T, got ended, want string) {
	t.Helper()
	if got.Exit != want {
		t.Errorf("the task ended with %q, want %q\n%s", got.Exit, want, strings.Join(got.Log, "\n"))
	}
}

// wantMissing requires a task to have failed for a missing volume. The wording of block
// storages varies.
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
		if !onFiles(volid) {
			s.skipf("needs PVE_STORAGE to be one of files: elsewhere a running VM has its device open")
		}
		s.start(id)
		s.taskOK(http.MethodDelete, s.content(volid))
		s.wantFreed(volid)
	})
	story(t, "is done when there is none", 0, func(t *testing.T, s *server) {
		s.holds("/storage/"+s.place.storage, "Datastore.Allocate")
		id := s.newVM("scsi0=" + s.disk())
		volid := s.volid(id, "scsi0")
		if !onFiles(volid) {
			s.skipf("needs PVE_STORAGE to be one of files: others say so in other words")
		}
		end := s.taskOK(http.MethodDelete, s.content(strings.Replace(volid, "disk-0", "disk-7", 1)))
		if !strings.Contains(strings.Join(end.Log, "\n"), "does not exist") {
			t.Errorf("%q", end.Log)
		}
	})
	story(t, "takes Datastore.Allocate", 0, func(t *testing.T, s *server) {
		s.lacks("/storage/"+s.place.storage, "Datastore.Allocate")
		id := s.newVM("scsi0=" + s.disk())
		want := "403 Permission check failed (/storage/" + s.place.storage + ", Datastore.Allocate)"
		wantRefusal(t, s.do(http.MethodDelete, s.content(s.volid(id, "scsi0"))), want, nil)
	})
}
