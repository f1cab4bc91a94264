package contract

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestParking is what recast does to a VM: it moves every disk to a parking VM, each with
// the digest just read, deletes the VM, recreates it under its number, and moves the disks
// back.
func TestParking(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		disks := []string{"scsi0", "scsi1", "efidisk0", "tpmstate0"}
		id := s.newVM("machine=q35", "bios=ovmf", "scsihw=virtio-scsi-single", "scsi0="+s.disk()+",serial=sys,iothread=1",
			"scsi1="+s.disk()+",serial=data,discard=on,ssd=1,iothread=1,backup=0", "efidisk0="+s.disk()+",efitype=4m,pre-enrolled-keys=0",
			"tpmstate0="+s.disk()+",version=v2.0", "net0=virtio,bridge="+s.place.bridge, "boot=order=scsi0;scsi1;net0")
		before := s.config(id)
		parking := s.freeID()
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(parking, "memory=16", "protection=1")...)
		begun := time.Now()
		for _, key := range disks {
			s.reassigned(id, key, parking, "digest="+s.digest(id))
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("four reassigns took %v", took)
		}
		parked := s.config(parking)
		for _, key := range disks {
			if _, options, _ := strings.Cut(parked[key], ","); !strings.HasSuffix(before[key], ","+options) {
				t.Errorf("%s is parked as %s, was %s", key, parked[key], before[key])
			}
		}
		if strings.TrimSpace(parked["boot"]) != "" || s.config(id)["boot"] != "order=net0" {
			t.Errorf("boot orders: %q and %q", parked["boot"], s.config(id)["boot"])
		}
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
		same(t, lasting(before), lasting(after))
		for i, key := range []string{"scsi0", "scsi1", "efidisk0", "tpmstate0"} {
			if got, want := diskName(after[key]), fmt.Sprintf("vm-%d-disk-%d", id, i); got != want {
				t.Errorf("%s is %s, want %s", key, got, want)
			}
		}
	})
}

// lasting is a configuration without what a recreated VM does not keep: the numbers of its
// volumes, and generated values.
func lasting(config map[string]string) map[string]string {
	out := maps.Clone(config)
	for _, key := range []string{"digest", "meta", "vmgenid"} {
		delete(out, key)
	}
	for key, value := range out {
		if strings.Contains(value, "-disk-") {
			_, options, _ := strings.Cut(value, ",")
			out[key] = options
		}
	}
	return out
}
