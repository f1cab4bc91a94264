package pveapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func (l *lab) putOK(path string, form ...string) string {
	l.t.Helper()
	if r := l.do("PUT", path, form...); r.Status != "200 OK" {
		l.t.Fatalf("PUT %s %v: %+v", path, form, r)
	}
	return "OK"
}

func (l *lab) volumes(storage string) []string { return l.volumesOn("pve1", storage) }

func TestCreateFailsCleanly(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.Preallocate("fast")
		before := l.world.Dump(nil, world.Renewed{Name: "tasks"})
		tests := map[string]struct{ want, disk string }{
			"no room":   {"unable to create VM 9012 - unable to create image: qemu-img: fast:9012/vm-9012-disk-1.raw: Could not preallocate data for the new file: No space left on device", "scsi1=fast:900"},
			"no volume": {"unable to create VM 9012 - volume 'fast:7/vm-7-disk-0.raw' does not exist", "scsi1=fast:7/vm-7-disk-0.raw"},
		}
		for name, test := range tests {
			if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:1", test.disk); got != test.want {
				t.Errorf("%s: %s", name, got)
			}
		}
		l.world.FailNext("qmcreate", "no luck")
		if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:1"); got != "unable to create VM 9012 - no luck" {
			t.Error(got)
		}
		if diff := cmp.Diff(before, l.world.Dump(nil, world.Renewed{Name: "tasks"})); diff != "" {
			t.Error(diff)
		}
	})
}

// TestDestroyTakesPendingVolumes: even those that a failed change has left pending.
func TestDestroyTakesPendingVolumes(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.FillStorage("thin")
		if got := l.do("PUT", vm+"/config", "scsi2=fast:1", "scsi3=thin:1").Status; !strings.HasPrefix(got, "500 unable to create image") {
			t.Fatal(got)
		}
		if got := l.do("GET", vm+"/config?current=1").Data.(map[string]any)["scsi2"]; got != nil {
			t.Fatalf("not pending: %v", got)
		}
		if got := l.task("DELETE", vm); got != "OK" {
			t.Fatal(got)
		}
		if got := l.volumes("fast"); got != nil {
			t.Errorf("left: %v", got)
		}
	})
}

// TestNumbersOnNetworkFileSystems: each format is numbered separately.
func TestNumbersOnNetworkFileSystems(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "nas", Type: "nfs", Shared: true, Content: []string{"images"}})
		l.putOK(vm+"/config", "scsi5=nas:1", "scsi6=nas:1,format=qcow2", "scsi7=fast:1,format=qcow2")
		want := []string{"nas:9011/vm-9011-disk-0.qcow2", "nas:9011/vm-9011-disk-0.raw"}
		if diff := cmp.Diff(want, l.volumes("nas")); diff != "" {
			t.Error(diff)
		}
		if got := l.config(9011)["scsi7"]; got != "fast:9011/vm-9011-disk-3.qcow2,size=1G" {
			t.Error(got)
		}
	})
}

// TestDeleteOfABaseVolume: base volumes of linked clones can't be deleted.
func TestDeleteOfABaseVolume(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("All", append(talosRole(), "VM.Clone", "Datastore.Allocate")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "All", Propagate: true})
		must(t, l.world.DefineVM("pve1", 400, map[string]string{"scsi0": "fast:1", "net0": "virtio=BC:24:11:00:04:00,bridge=vmbr0"}, nil))
		for _, step := range [][]string{{"/template"}, {"/clone", "newid=401"}, {"/clone", "newid=402", "full=1", "name=copy"}} {
			if got := l.task("POST", "/nodes/pve1/qemu/400"+step[0], step[1:]...); got != "OK" {
				t.Fatalf("%v: %s", step, got)
			}
		}
		linked, full := l.config(401), l.config(402)
		got := []any{linked["scsi0"], linked["name"], full["scsi0"], full["name"], full["template"], linked["net0"] == full["net0"]}
		want := []any{
			"fast:400/base-400-disk-0.raw/401/vm-401-disk-0.qcow2,size=1G", "Copy-of-VM-400", "fast:402/vm-402-disk-0.raw,size=1G", "copy", nil, false,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		end := l.task("DELETE", "/nodes/pve1/storage/fast/content/fast:400%2Fbase-400-disk-0.raw")
		if want := "base volume '400/base-400-disk-0.raw' is still in use by linked clones"; end != want {
			t.Errorf("%s, want %s", end, want)
		}
	})
}
