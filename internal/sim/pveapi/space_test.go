package pveapi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// Images take their whole size, or what was written, depending on their storage.
func TestRoomByStorage(t *testing.T) {
	t.Parallel()
	const gib = int64(1) << 30
	images := []string{"images"}
	type row struct {
		storage world.Storage
		used    int64  // after allocating 10 GiB
		tooMuch string // error of allocating more than the free space; "": none
	}
	tests := map[string]row{
		"directory":             {world.Storage{Type: "dir"}, 4 << 10, "OK"},
		"directory, falloc":     {world.Storage{Type: "dir", Preallocation: "falloc"}, 10 * gib, "unable to create image: qemu-img: st:9020/vm-9020-disk-1.raw: Could not preallocate data for the new file: No space left on device"},
		"directory, metadata":   {world.Storage{Type: "dir", Preallocation: "metadata"}, 4 << 10, "OK"},
		"LVM":                   {world.Storage{Type: "lvm"}, 10 * gib, "not enough free space (15728640 < 104857600)"},
		"thin pool":             {world.Storage{Type: "lvmthin"}, 4 << 10, "OK"},
		"ZFS":                   {world.Storage{Type: "zfspool"}, 10 * gib, "unable to create image: qemu-img: st:vm-9020-disk-1: Could not preallocate data for the new file: No space left on device"},
		"ZFS that is sparse":    {world.Storage{Type: "zfspool", Sparse: true}, 4 << 10, "OK"},
		"Ceph":                  {world.Storage{Type: "rbd", Shared: true}, 4 << 10, "OK"},
		"a share, all of it":    {world.Storage{Type: "nfs", Shared: true, Preallocation: "full"}, 10 * gib, "unable to create image: qemu-img: st:9020/vm-9020-disk-1.raw: Could not preallocate data for the new file: No space left on device"},
		"a share as by default": {world.Storage{Type: "nfs", Shared: true}, 4 << 10, "OK"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, tc row) {
		tc.storage.ID, tc.storage.Content, tc.storage.Capacity = "st", images, 25*gib
		l.world.AddStorage(tc.storage)
		if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9020", "scsi0=st:10"); got != "OK" {
			t.Fatal(got)
		}
		s := l.do("GET", "/nodes/pve1/storage/st/status").Data.(map[string]any)
		want := []any{float64(tc.used), float64(25 * gib), float64(25*gib - tc.used)}
		if diff := cmp.Diff(want, []any{s["used"], s["total"], s["avail"]}); diff != "" {
			t.Error(diff)
		}
		if got := l.task("POST", "/nodes/pve1/qemu/9020/config", "scsi1=st:100"); got != tc.tooMuch {
			t.Errorf("allocating more than there is: %s, want %s", got, tc.tooMuch)
		}
	})
}
