package contract

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
		same(t, []string{"128", "128"}, []string{s.config(id)["memory"], s.now(id, "memory")})
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
			wantPrefix(t, value, s.now(id, "ide2"))
			s.wantWaiting(id, nil)
		}
		s.put(s.vm(id, "config"), "delete=ide2")
		s.wantWaiting(id, map[string]pendingRow{"ide2": {Value: "none,media=cdrom", Delete: "1"}})
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

func (s *server) tinyISO() (volid string) {
	s.t.Helper()
	name := s.isoName()
	s.uploadOK(iso(), file(name, strings.Repeat("\x00", 2048)))
	return s.place.isoStorage + ":iso/" + name
}

// TestHotplug: disks can be plugged and unplugged while a VM runs; a boot disk can't be unplugged.
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
}

// TestMigrate: a VM moves with its configuration, which keeps its digest.
func TestMigrate(t *testing.T) {
	story(t, "moves a VM that is off, and one that runs", secondNode|sharedStorage, func(t *testing.T, s *server) {
		id := s.migratable()
		before := s.config(id)
		same(t, "qmigrate", s.taskOK(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2).kind())
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
	story(t, "without quorum it does nothing", simulated, func(t *testing.T, s *server) {
		id := s.migratable()
		s.sim.world.SetQuorum(false)
		wantRefusal(t, s.do(http.MethodGet, s.vm(id, "migrate")), "500 cluster not ready - no quorum?", nil)
		wantRefusal(t, s.do(http.MethodPost, s.vm(id, "migrate"), "target="+s.place.node2), "500 cluster not ready - no quorum?", nil)
		s.sim.world.SetQuorum(true)
	})
}

// TestParking is what recast does to a VM: it moves every disk to a parking VM, each with the digest just read, deletes
// the VM, recreates it under its number, and moves the disks back.
func TestParking(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		disks := []string{"scsi0", "scsi1", "efidisk0", "tpmstate0"}
		id := s.newVM("machine=q35", "bios=ovmf", "scsihw=virtio-scsi-single", "scsi0="+s.disk()+",serial=sys,iothread=1",
			"scsi1="+s.disk()+",serial=data,discard=on,ssd=1,iothread=1,backup=0", "efidisk0="+s.disk()+",efitype=4m,pre-enrolled-keys=0",
			"tpmstate0="+s.disk()+",version=v2.0", "net0=virtio,bridge="+s.place.bridge, "boot=order=scsi0;scsi1;net0")
		before, was := s.config(id), s.machine(id)
		parking := s.freeID()
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(parking, "memory=16", "protection=1")...)
		begun := time.Now()
		for _, key := range disks {
			s.reassigned(id, key, parking, "digest="+s.digest(id))
		}
		wantTook(t, begun, 0, 30*time.Second)
		parked := s.config(parking)
		for _, key := range disks {
			if _, options, _ := strings.Cut(parked[key], ","); !strings.HasSuffix(before[key], ","+options) {
				t.Errorf("%s is parked as %s, was %s", key, parked[key], before[key])
			}
		}
		same(t, []any{"", "order=net0"}, []any{strings.TrimSpace(parked["boot"]), s.config(id)["boot"]})
		if left := s.volumes(s.place.storage, id); left != nil {
			t.Fatalf("the VM still owns %q", left)
		}
		s.taskOK(http.MethodDelete, s.vm(id, ""))

		again := []string{"vmid=" + itoa(id)}
		for key, value := range before {
			if !strings.Contains(" scsi0 scsi1 efidisk0 tpmstate0 boot digest meta vmgenid ", " "+key+" ") {
				again = append(again, key+"="+value)
			}
		}
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", again...)
		for _, key := range disks {
			s.reassigned(parking, key, id, "digest="+s.digest(parking))
		}
		s.put(s.vm(id, "config"), "boot="+before["boot"])
		after := s.config(id)
		if before["vmgenid"] == after["vmgenid"] {
			t.Error("vmgenid is the same")
		}
		same(t, was, s.machine(id), settled)
		for i, key := range []string{"scsi0", "scsi1", "efidisk0", "tpmstate0"} {
			same(t, fmt.Sprintf("vm-%d-disk-%d", id, i), diskName(after[key]))
		}
	})
}
