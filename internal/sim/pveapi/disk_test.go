package pveapi_test

import (
	"strings"
	"testing"
	"time"

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

const renamed = "fast:9090/vm-9090-disk-0.raw"

// TestMoveWindows: a worker that ends between the three steps of a move leaves the volume
// under its new name in no configuration; the source may name a missing volume.
func TestMoveWindows(t *testing.T) {
	t.Parallel()
	const dangling = "fast:9011/vm-9011-disk-2.raw,discard=on,iothread=1,serial=data-wk1,size=5G,ssd=1"
	type row struct {
		after  world.MoveStage
		crash  bool
		source any
		end    string
	}
	tests := map[string]row{
		"killed after the rename":   {after: world.AfterRename, source: dangling, end: "unexpected status"},
		"killed after the source":   {after: world.AfterSource, end: "unexpected status"},
		"power cut after rename":    {after: world.AfterRename, crash: true, source: dangling, end: "unexpected status"},
		"power cut after source":    {after: world.AfterSource, crash: true, end: "unexpected status"},
		"no quorum when it renames": {source: dangling, end: "unable to open file '/etc/pve/nodes/pve1/qemu-server/9011.conf.tmp.2' - Permission denied"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		must(t, l.world.DefineVM("pve1", 9090, nil, nil))
		if test.after != 0 {
			l.world.StopNextMove(test.after, test.crash)
		}
		l.world.SetQuorum(test.after != 0)
		if got := l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090"); got != test.end {
			t.Fatal(got)
		}
		l.world.SetQuorum(true)
		l.world.BootHost("pve1")
		time.Sleep(time.Minute)
		if l.world.Persistent()[0].Unnamed < time.Minute {
			t.Fatalf("%+v", l.world.Persistent())
		}
		if diff := cmp.Diff([]string{"disk data-wk1: no VM's configuration names its volume"}, l.world.Violations()); diff != "" {
			t.Error(diff)
		}
		if got := l.config(9011)["scsi1"]; got != test.source {
			t.Errorf("source has %v, want %v", got, test.source)
		}
		if test.source != nil {
			l.dropDangling(t)
		}
		l.putOK("/nodes/pve1/qemu/9090/config", "scsi1="+renamed+",serial=data-wk1")
		if broken := l.world.Violations(); broken != nil {
			t.Error(broken)
		}
		d := l.world.Persistent()[0]
		if d.VMID != 9090 || d.Volid != renamed || d.Unnamed != 0 || d.LongestUnnamed < time.Minute {
			t.Errorf("%+v", d)
		}
	})
}

// dropDangling deletes a key whose volume is missing.
func (l *lab) dropDangling(t *testing.T) {
	t.Helper()
	if l.world.VMs()[0].Running {
		if got := l.task("POST", vm+"/status/stop"); got != "OK" {
			t.Fatal(got)
		}
	}
	if got := l.task("POST", vm+"/status/start"); got != "volume 'fast:9011/vm-9011-disk-2.raw' does not exist" {
		t.Error(got)
	}
	want := "500 volume 'fast:9011/vm-9011-disk-2.raw' does not exist"
	if got := l.do("PUT", vm+"/config", "scsi5=fast:9011/vm-9011-disk-2.raw").Status; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	l.putOK(vm+"/config", "delete=scsi1")
	if got := l.config(9011)["unused0"]; got != "fast:9011/vm-9011-disk-2.raw" {
		t.Errorf("unused0: %v", got)
	}
	l.putOK(vm+"/config", "delete=unused0")
	if got := l.config(9011)["unused0"]; got != nil {
		t.Errorf("unused0: %v", got)
	}
}

// TestDanglingNameIsReused: the next volume gets the name that the source's configuration still has.
func TestDanglingNameIsReused(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.DefineVM("pve1", 9090, nil, nil))
		l.world.StopNextMove(world.AfterRename, false)
		l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090")
		l.putOK(vm+"/config", "scsi6=fast:1")
		c := l.config(9011)
		if got := c["scsi6"].(string); !strings.HasPrefix(got, "fast:9011/vm-9011-disk-2.raw,") || !strings.HasPrefix(c["scsi1"].(string), "fast:9011/vm-9011-disk-2.raw,") {
			t.Errorf("%v and %v", got, c["scsi1"])
		}
	})
}

func TestImportRefused(t *testing.T) {
	t.Parallel()
	bad := func(key, problem string) reply {
		return reply{Status: "400 Parameter verification failed.", Message: "Parameter verification failed.\n", Errors: map[string]string{key: problem}}
	}
	fails := func(message string) reply { return reply{Status: "500 " + message, Message: message + "\n"} }
	type row struct {
		set  string
		want reply
	}
	tests := map[string]row{
		"an ISO":                      {"scsi5=fast:0,import-from=isos:iso/boot.iso", bad("scsi5", "isos:iso/boot.iso has wrong type 'iso' - needs to be 'images' or 'import'")},
		"an import volume as a drive": {"scsi5=local:import/a.raw", bad("scsi5", "content type needs to be 'images' or 'iso'")},
		"EFI variables of no type":    {"efidisk0=fast:0,import-from=local:import/a.raw", bad("efidisk0", "need to specify 'efitype' when using 'import-from'")},
		"TPM state of no version":     {"tpmstate0=fast:0,import-from=local:import/a.raw", bad("tpmstate0", "need to specify 'version' when using 'import-from'")},
		"another VM's disk":           {"scsi5=fast:0,import-from=fast:500/vm-500-disk-0.raw", reply{Status: "403 Permission check failed (/vms/500, VM.Clone)", Message: "Permission check failed (/vms/500, VM.Clone)\n"}},
		"nothing there":               {"scsi5=fast:0,import-from=local:import/b.raw", fails("failed to stat '/var/lib/vz/import/b.raw'")},
		"no such storage":             {"scsi5=fast:0,import-from=nosuch:import/b.raw", fails("storage 'nosuch' does not exist")},
		"no such kind of volume":      {"scsi5=fast:0,import-from=local:import/b.txt", fails("unable to parse directory volume name 'import/b.txt'")},
		"a file of the host":          {"scsi5=fast:0,import-from=/etc/passwd", fails("Only root can pass arbitrary filesystem paths.")},
		"a disk of its own that is gone": {
			"scsi5=fast:0,import-from=fast:9011/vm-9011-disk-9.raw",
			fails("cannot import from 'fast:9011/vm-9011-disk-9.raw' - could not get size of fast:9011/vm-9011-disk-9.raw"),
		},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.AddRole("Clones", append(talosRole(), "VM.Clone")...)
		l.world.Grant(world.ACL{Path: "/vms/9011", Who: tokenID, Role: "Clones"})
		l.world.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "import"}})
		if diff := cmp.Diff(test.want, l.do("PUT", vm+"/config", test.set)); diff != "" {
			t.Error(diff)
		}
	})
}
