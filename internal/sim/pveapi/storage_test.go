package pveapi_test

import (
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestStorageConfig(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "san", Type: "iscsi", Shared: true, Content: []string{"images"}, Hosts: []string{"pve1", "pve2"}})
		l.world.AddStorage(world.Storage{ID: "z", Type: "zfspool", Content: []string{"images"}, Sparse: true})
		l.world.AddStorage(world.Storage{ID: "d", Type: "dir", Content: []string{"images"}, Preallocation: "full"})
		l.world.AddStorage(world.Storage{ID: "v", Type: "lvm", Content: []string{"images"}})
		want := []any{
			map[string]any{"storage": "d", "type": "dir", "content": "images", "path": "/mnt/pve/d", "preallocation": "full"},
			map[string]any{"storage": "fast", "type": "dir", "content": "images", "path": "/mnt/pve/fast"},
			map[string]any{"storage": "isos", "type": "cephfs", "content": "iso", "shared": 1.0, "path": "/mnt/pve/isos"},
			map[string]any{"storage": "san", "type": "iscsi", "content": "images", "shared": 1.0, "nodes": "pve1,pve2"},
			map[string]any{"storage": "thin", "type": "lvmthin", "content": "images", "vgname": "pve", "thinpool": "thin"},
			map[string]any{"storage": "v", "type": "lvm", "content": "images", "vgname": "pve"},
			map[string]any{"storage": "z", "type": "zfspool", "content": "images", "sparse": 1.0, "pool": "rpool/data"},
		}
		same(t, want, l.do("GET", "/storage").Data)
		same(t, want[4:5], l.do("GET", "/storage?type=lvmthin").Data)
	})
}

// TestMoveByStorageType: volume_has_feature's answer to "rename", and the names of volumes.
func TestMoveByStorageType(t *testing.T) {
	t.Parallel()
	const refused = "500 Storage does not support moving of this disk to another VM"
	tests := map[string]struct{ want, volid string }{
		"dir":     {want: "OK", volid: "st:9090/vm-9090-disk-0.raw"},
		"nfs":     {want: "OK", volid: "st:9090/vm-9090-disk-0.raw"},
		"btrfs":   {want: "OK", volid: "st:9090/vm-9090-disk-0.raw"},
		"lvm":     {want: "OK", volid: "st:vm-9090-disk-0"},
		"lvmthin": {want: "OK", volid: "st:vm-9090-disk-0"},
		"zfspool": {want: "OK", volid: "st:vm-9090-disk-0"},
		"rbd":     {want: "OK", volid: "st:vm-9090-disk-0"},
		"zfs":     {want: refused, volid: "st:vm-9011-disk-0"}, // ZFS over iSCSI
		"iscsi":   {want: refused, volid: "st:0.0.0.scsi-3600"},
	}
	for kind, test := range tests {
		t.Run(kind, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				l.world.AddStorage(world.Storage{ID: "st", Type: kind, Content: []string{"images"}})
				must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
				if kind == "iscsi" {
					must.Do(t, l.world.AddLUN("st", "pve1", "0.0.0.scsi-3600", 1<<30, world.NewMedia(nil)))
					must.Do(t, l.world.SetConfig("", "pve1", world.ChangeRequest{ID: 9011, Set: map[string]string{"scsi5": test.volid}}))
				} else {
					l.putOK(vm+"/config", "scsi5=st:1")
				}
				same(t, test.want, l.outcome(l.do("POST", vm+"/move_disk", "disk=scsi5", "target-vmid=9090")))
				same(t, []string{test.volid}, l.volumes("st"))
			})
		})
	}
}

func TestLUNs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "san", Type: "iscsi", Content: []string{"images"}})
		must.Do(t, l.world.AddLUN("san", "pve1", "0.0.1.scsi-3601", 1<<30, world.NewMedia(nil)))
		same(t, "500 missing privileges to access san:0.0.1.scsi-3601", l.do("PUT", vm+"/config", "scsi5=san:0.0.1.scsi-3601").Status)
		same(t, "200 OK", l.root("PUT", vm+"/config", "scsi5=san:0.0.1.scsi-3601").Status)
		same(t, "500 can't allocate space in iscsi storage", l.do("PUT", vm+"/config", "scsi6=san:1").Status)
		taskOK(t, l.task("DELETE", vm))
		same(t, []string{"san:0.0.1.scsi-3601"}, l.volumes("san"))
	})
}

// TestContentOfOthers: images of VMs that the user may not see are not listed, nor are ISOs in a VM's listing.
func TestContentOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.world.AddRole("Look", "Datastore.Audit", "VM.Config.Disk")
		l.world.Grant(world.ACL{Path: "/storage", Who: tokenID, Role: "Look", Propagate: true})
		l.world.Grant(world.ACL{Path: "/vms/210", Who: tokenID, Role: "Look"})
		must.Do(t, l.world.DefineVM("pve1", 210, map[string]string{"scsi0": "thin:1"}, nil))
		must.Do(t, l.world.DefineVM("pve1", 211, map[string]string{"scsi0": "thin:1"}, nil))
		want := []any{map[string]any{"volid": "thin:vm-210-disk-0", "content": "images", "format": "raw", "size": 1073741824.0, "ctime": 946684800.0, "vmid": 210.0}}
		same(t, want, l.do("GET", "/nodes/pve1/storage/thin/content").Data)
		iso := []any{map[string]any{"volid": "isos:iso/boot.iso", "content": "iso", "format": "iso", "size": 3.0, "ctime": 946684800.0}}
		same(t, iso, l.do("GET", "/nodes/pve1/storage/isos/content").Data)
		same(t, []any{}, l.do("GET", "/nodes/pve1/storage/isos/content?vmid=210").Data)
	})
}

// Images take their whole size, or what was written, depending on their storage.
func TestRoomByStorage(t *testing.T) {
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
		taskOK(t, l.task("POST", "/nodes/pve1/qemu", "vmid=9020", "scsi0=st:10"))
		s := l.do("GET", "/nodes/pve1/storage/st/status").Data.(map[string]any)
		want := []any{float64(tc.used), float64(25 * gib), float64(25*gib - tc.used)}
		same(t, want, []any{s["used"], s["total"], s["avail"]})
		same(t, tc.tooMuch, l.task("POST", "/nodes/pve1/qemu/9020/config", "scsi1=st:100"))
	})
}

const held = "fast:500/vm-500-disk-0.raw"

// hold adds VM 500, which holds a persistent disk that VM 9011 uses.
func (l *lab) hold(t *testing.T) *world.Media {
	t.Helper()
	m := world.NewMedia([]byte("held"))
	must.Do(t, l.world.DefineVM("pve1", 500, map[string]string{"scsi0": "fast:1"}, map[string]*world.Media{"scsi0": m}))
	l.world.Protect(world.Protected{Serial: "held", Media: m, Held: true})
	l.putOK(vm+"/config", "scsi4="+held+",serial=held")
	return m
}

func TestHolderKeepsItsDisk(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		m := l.hold(t)
		same(t, held+",serial=held,size=1G", l.config(9011)["scsi4"])
		l.putOK(vm+"/config", "delete=scsi4")
		if c := l.config(9011); c["scsi4"] != nil || c["unused0"] != nil {
			t.Errorf("after the detach: %v, %v", c["scsi4"], c["unused0"])
		}
		l.putOK(vm+"/config", "scsi4="+held, "protection=1")
		l.putOK(vm+"/config", "protection=0")
		must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
		taskOK(t, l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090"))
		taskOK(t, l.task("DELETE", vm))
		same(t, []string(nil), l.world.Violations())
		must.Equal(t, "the holder's disk is gone", false, l.world.Media(held, "pve1") != m)
	})
}

func TestHoldersDiskIsLost(t *testing.T) {
	const gone = "disk held: its volume " + held + " was freed"
	type row struct {
		do   func(*lab) string
		want []string // expected violations
	}
	inEachLab(t, map[string]row{
		"with its holder": {
			do: func(l *lab) string { return l.task("DELETE", "/nodes/pve1/qemu/500") },
			want: []string{
				gone, "disk held: is in 0 volumes []", "disk held: no VM's configuration names its volume",
				"disk held: is not " + held + " any more, as its holder called it",
			},
		},
		"by a move": { // it ignores the volume's owner
			do: func(l *lab) string {
				must.Do(l.t, l.world.DefineVM("pve1", 9090, nil, nil))
				return l.task("POST", vm+"/move_disk", "disk=scsi4", "target-vmid=9090")
			},
			want: []string{
				"disk held: its holder's volume " + held + " was renamed",
				"disk held: is not " + held + " any more, as its holder called it",
			},
		},
		"by two VMs": {
			do: func(l *lab) string {
				must.Do(l.t, l.world.PowerOn(9011))
				must.Equal(l.t, "both run with one file", false, l.world.PowerOn(500) == nil)
				return "OK"
			},
		},
		"by plugging it in twice": {
			do: func(l *lab) string {
				must.Do(l.t, l.world.DefineVM("pve1", 9090, nil, nil))
				must.Do(l.t, l.world.PowerOn(9011))
				must.Do(l.t, l.world.PowerOn(9090))
				l.putOK("/nodes/pve1/qemu/9090/config", "scsi7="+held)
				l.putOK("/nodes/pve1/qemu/9090/config", "delete=scsi7")
				return "OK"
			},
			want: []string{"disk held: is in the running VMs [9011 9090]"},
		},
	}, func(t *testing.T, l *lab, test row) {
		l.hold(t)
		taskOK(t, test.do(l))
		same(t, test.want, l.world.Violations())
	})
}
