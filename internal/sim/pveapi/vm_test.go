package pveapi_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestNewCDOverridesBoot: a CD-ROM drive that the old boot order lacks is appended to the
// old order, which may override the boot= of the same request.
func TestNewCDOverridesBoot(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.putOK(vm+"/config", "delete=ide2")
		l.putOK(vm+"/config", "ide2=isos:iso/boot.iso,media=cdrom", "boot=order=ide2;scsi0")
		same(t, "order=scsi0;ide2", l.config(9011)["boot"])
		l.putOK(vm+"/config", "ide2=isos:iso/boot.iso,media=cdrom", "boot=order=ide2;scsi0")
		same(t, "order=ide2;scsi0", l.config(9011)["boot"])
		same(t, "500 invalid bootorder: device 'scsi7' does not exist'", l.do("PUT", vm+"/config", "boot=order=scsi7").Status)
	})
}

// both sends two requests at once and sorts the status lines.
func (l *lab) both(a, b func() reply) []string {
	l.t.Helper()
	answers := make([]string, 2)
	var wg sync.WaitGroup
	wg.Go(func() { answers[0] = a().Status })
	wg.Go(func() { answers[1] = b().Status })
	wg.Wait()
	slices.Sort(answers)
	return answers
}

func TestTwoWritersWithOneDigest(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Do(t, l.world.PowerOn(9011)) // plugging a disk takes time, under the lock
		digest := "digest=" + l.world.VMs()[0].Digest
		got := l.both(
			func() reply { return l.do("PUT", vm+"/config", "scsi2=fast:1", digest) },
			func() reply { return l.do("PUT", vm+"/config", "scsi3=fast:1", digest) },
		)
		same(t, []string{"200 OK", mismatch}, got)
		same(t, 4, len(l.volumes("fast")))
	})
}

func TestTwoCreators(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		create := func(host string) func() reply {
			return func() reply { return l.do("POST", "/nodes/"+host+"/qemu", "vmid=9012") }
		}
		got := l.both(create("pve1"), create("pve2"))
		taken := "500 unable to create VM 9012 - VM 9012 already exists on node '" + l.world.VMs()[1].Host + "'"
		same(t, []string{"200 OK", taken}, got)
	})
}

func TestSnapshotsHoldTheirVolumes(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Do(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "one", Description: "first", Memory: true}))
		must.Do(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "two"}))
		same(t, "two", l.config(9011)["parent"])
		list := l.do("GET", vm+"/snapshot").Data.([]any)
		want := []any{
			map[string]any{"name": "one", "description": "first", "snaptime": 946684800.0, "vmstate": 1.0},
			map[string]any{"name": "two", "description": "", "snaptime": 946684800.0, "vmstate": 0.0, "parent": "one"},
			map[string]any{"name": "current", "description": "You are here!", "running": 0.0, "parent": "two", "digest": l.world.VMs()[0].Digest},
		}
		same(t, want, list)
		for _, path := range []string{vm + "/snapshot/one/config", vm + "/config?snapshot=one"} {
			c := l.do("GET", path).Data.(map[string]any)
			if diff := cmp.Diff([]any{"fast:9011/vm-9011-state-one.raw", l.config(9011)["scsi1"], nil}, []any{c["vmstate"], c["scsi1"], c["parent"]}); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		same(t, "500 snapshot 'x' does not exist", l.do("GET", vm+"/config?snapshot=x").Status)
		l.putOK(vm+"/config", "delete=scsi1")
		volid := "fast:9011/vm-9011-disk-2.raw"
		same(t, "500 unable to delete '"+volid+"' - volume is still in use (snapshot?)", l.do("PUT", vm+"/config", "delete=unused0").Status)
		taskOK(t, l.task("DELETE", vm))
		same(t, []string(nil), l.volumes("fast"))
	})
}

func (l *lab) putOK(path string, form ...string) string {
	l.t.Helper()
	if r := l.do("PUT", path, form...); r.Status != "200 OK" {
		l.t.Fatalf("PUT %s %v: %+v", path, form, r)
	}
	return "OK"
}

func (l *lab) volumes(storage string) []string { return l.volumesOn("pve1", storage) }

func TestCreateFailsCleanly(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.Preallocate("fast")
		before := l.world.Dump(nil, world.Renewed{Name: "tasks"})
		tests := map[string]struct{ want, disk string }{
			"no room":   {"unable to create VM 9012 - unable to create image: qemu-img: fast:9012/vm-9012-disk-1.raw: Could not preallocate data for the new file: No space left on device", "scsi1=fast:900"},
			"no volume": {"unable to create VM 9012 - volume 'fast:7/vm-7-disk-0.raw' does not exist", "scsi1=fast:7/vm-7-disk-0.raw"},
		}
		for name, test := range tests {
			must.Equal(t, name, test.want, l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:1", test.disk))
		}
		l.world.FailNext("qmcreate", "no luck")
		same(t, "unable to create VM 9012 - no luck", l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:1"))
		same(t, before, l.world.Dump(nil, world.Renewed{Name: "tasks"}))
	})
}

// TestDestroyTakesPendingVolumes: even those that a failed change has left pending.
func TestDestroyTakesPendingVolumes(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.FillStorage("thin")
		if got := l.do("PUT", vm+"/config", "scsi2=fast:1", "scsi3=thin:1").Status; !strings.HasPrefix(got, "500 unable to create image") {
			t.Fatal(got)
		}
		same(t, nil, l.do("GET", vm+"/config?current=1").Data.(map[string]any)["scsi2"])
		taskOK(t, l.task("DELETE", vm))
		same(t, []string(nil), l.volumes("fast"))
	})
}

// TestNumbersOnNetworkFileSystems: each format is numbered separately.
func TestNumbersOnNetworkFileSystems(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "nas", Type: "nfs", Shared: true, Content: []string{"images"}})
		l.putOK(vm+"/config", "scsi5=nas:1", "scsi6=nas:1,format=qcow2", "scsi7=fast:1,format=qcow2")
		want := []string{"nas:9011/vm-9011-disk-0.qcow2", "nas:9011/vm-9011-disk-0.raw"}
		same(t, want, l.volumes("nas"))
		same(t, "fast:9011/vm-9011-disk-3.qcow2,size=1G", l.config(9011)["scsi7"])
	})
}

// TestDeleteOfABaseVolume: base volumes of linked clones can't be deleted.
func TestDeleteOfABaseVolume(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("All", append(talosRole(), "VM.Clone", "Datastore.Allocate")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "All", Propagate: true})
		must.Do(t, l.world.DefineVM("pve1", 400, map[string]string{"scsi0": "fast:1", "net0": "virtio=BC:24:11:00:04:00,bridge=vmbr0"}, nil))
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
		same(t, want, got)
		end := l.task("DELETE", "/nodes/pve1/storage/fast/content/fast:400%2Fbase-400-disk-0.raw")
		same(t, "base volume '400/base-400-disk-0.raw' is still in use by linked clones", end)
	})
}

const renamed = "fast:9090/vm-9090-disk-0.raw"

// TestMoveWindows: a worker that ends between the three steps of a move leaves the volume
// under its new name in no configuration; the source may name a missing volume.
func TestMoveWindows(t *testing.T) {
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
		must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
		if test.after != 0 {
			l.world.StopNextMove(test.after, test.crash)
		}
		l.world.SetQuorum(test.after != 0)
		same(t, test.end, l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090"))
		l.world.SetQuorum(true)
		l.world.BootHost("pve1")
		time.Sleep(time.Minute)
		if l.world.Persistent()[0].Unnamed < time.Minute {
			t.Fatalf("%+v", l.world.Persistent())
		}
		same(t, []string{"disk data-wk1: no VM's configuration names its volume"}, l.world.Violations())
		same(t, test.source, l.config(9011)["scsi1"])
		if test.source != nil {
			l.dropDangling(t)
		}
		l.putOK("/nodes/pve1/qemu/9090/config", "scsi1="+renamed+",serial=data-wk1")
		same(t, []string(nil), l.world.Violations())
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
		taskOK(t, l.task("POST", vm+"/status/stop"))
	}
	same(t, "volume 'fast:9011/vm-9011-disk-2.raw' does not exist", l.task("POST", vm+"/status/start"))
	want := "500 volume 'fast:9011/vm-9011-disk-2.raw' does not exist"
	same(t, want, l.do("PUT", vm+"/config", "scsi5=fast:9011/vm-9011-disk-2.raw").Status)
	l.putOK(vm+"/config", "delete=scsi1")
	same(t, "fast:9011/vm-9011-disk-2.raw", l.config(9011)["unused0"])
	l.putOK(vm+"/config", "delete=unused0")
	same(t, nil, l.config(9011)["unused0"])
}

// TestDanglingNameIsReused: the next volume gets the name that the source's configuration still has.
func TestDanglingNameIsReused(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
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
		same(t, test.want, l.do("PUT", vm+"/config", test.set))
	})
}

// booter is a firmware that counts its runs in its variables.
type booter struct{ boots []string }

func (b *booter) PowerOn(hw *world.Hardware) world.Guest {
	seen := "SeaBIOS"
	if hw.NVRAM != nil {
		seen = "variables " + string(hw.NVRAM.Bytes())
		hw.NVRAM.Write(append(hw.NVRAM.Bytes(), '+'))
	}
	b.boots = append(b.boots, seen)
	return b
}
func (b *booter) Shutdown() {}
func (b *booter) Kill()     {}

// TestVariablesAreOnTheEFIDisk: they move with it, and without one they end with the process.
func TestVariablesAreOnTheEFIDisk(t *testing.T) {
	type row struct {
		vm     []string
		ends   string   // ends of the first two starts
		boots  []string // two starts and a reset
		parked []string // one more start, of a VM that got efidisk0; nil: there is none
	}
	tests := map[string]row{
		"SeaBIOS": {ends: "OK", boots: []string{"SeaBIOS", "SeaBIOS", "SeaBIOS"}},
		"SeaBIOS with an EFI disk": {
			vm: []string{"efidisk0=fast:1,efitype=4m"}, ends: "OK", boots: []string{"SeaBIOS", "SeaBIOS", "SeaBIOS"}, parked: []string{"variables "},
		},
		"OVMF": {
			vm: []string{"bios=ovmf", "efidisk0=fast:1,efitype=4m"}, ends: "OK", boots: []string{"variables ", "variables +", "variables ++"},
			parked: []string{"variables +++"},
		},
		"OVMF without an EFI disk": {vm: []string{"bios=ovmf"}, ends: "WARNINGS: 1", boots: []string{"variables ", "variables ", "variables +"}},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		b := &booter{}
		l.world.SetFirmware(b)
		const at = "/nodes/pve1/qemu/9012"
		taskOK(t, l.task("POST", "/nodes/pve1/qemu", append(test.vm, "vmid=9012", "memory=512")...))
		for range 2 {
			same(t, test.ends, l.task("POST", at+"/status/start"))
			if len(b.boots) == 2 {
				l.task("POST", at+"/status/reset")
			}
			l.task("POST", at+"/status/stop")
		}
		same(t, test.boots, b.boots)
		if test.parked == nil {
			return
		}
		l.task("POST", "/nodes/pve1/qemu", "vmid=9013", "bios=ovmf")
		taskOK(t, l.task("POST", at+"/move_disk", "disk=efidisk0", "target-vmid=9013"))
		l.task("POST", "/nodes/pve1/qemu/9013/status/start")
		same(t, test.parked, b.boots[3:])
	})
}

const (
	mismatch = "500 checksum mismatch (file change by other user?)"
	bad      = "400 Parameter verification failed."
)

// TestRefusals covers refusals that package contract does not check on a real server.
func TestRefusals(t *testing.T) {
	type row struct {
		method, path, want string
		errors             map[string]string
	}
	tests := map[string]row{
		"create, no vmid":  {method: "POST", path: "/nodes/pve1/qemu", want: bad, errors: map[string]string{"vmid": "property is missing and it is not optional"}},
		"switched failure": {method: "GET", path: vm + "/config", want: "500 boom"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.FailNext("GET /nodes/pve1/qemu", "boom")
		_, message, _ := strings.Cut(test.want, " ")
		want := reply{Status: test.want, Message: message + "\n", Errors: test.errors}
		same(t, want, l.do(test.method, test.path))
	})
}

// TestProtection: a protected VM and its drives can't be removed; nothing else is
// protected (the callers of check_protection in Qemu.pm; AbstractConfig.pm has none).
func TestProtection(t *testing.T) {
	const drive = "500 can't remove drive 'scsi1' - protection mode enabled"
	type row struct {
		method, path string
		form         []string
		want         string // status line, or exit status of the task
	}
	tests := map[string]row{
		"destroy with purge":               {"DELETE", "", []string{"purge=1"}, "500 can't remove VM 9011 - protection mode enabled"},
		"detach in a task":                 {"POST", "/config", []string{"delete=scsi1"}, drive[4:]},
		"unprotect in the same request":    {"PUT", "/config", []string{"delete=scsi1", "protection=0"}, drive},
		"remove the CD-ROM drive":          {"PUT", "/config", []string{"delete=ide2"}, "500 can't remove drive 'ide2' - protection mode enabled"},
		"put another disk in its place":    {"PUT", "/config", []string{"scsi1=fast:1"}, "200 OK"},
		"empty the CD-ROM drive":           {"PUT", "/config", []string{"ide2=none,media=cdrom"}, "200 OK"},
		"delete a setting":                 {"PUT", "/config", []string{"delete=agent"}, "200 OK"},
		"give an unused disk away":         {"POST", "/move_disk", []string{"disk=unused0", "target-vmid=9090", "target-disk=scsi7"}, "OK"},
		"resize":                           {"PUT", "/resize", []string{"disk=scsi1", "size=+1G"}, "OK"},
		"make it a template":               {"POST", "/template", nil, "OK"},
		"delete a snapshot":                {"DELETE", "/snapshot/before", nil, "OK"},
		"delete the volume on its storage": {"DELETE", "/nodes/pve1/storage/fast/content/fast:9011%2Fvm-9011-disk-2.raw", nil, "OK"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.AddRole("All", append(talosRole(), "VM.Snapshot", "Datastore.Allocate")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "All", Propagate: true})
		must.Do(t, l.world.DefineVM("pve1", 9090, nil, nil))
		if strings.HasPrefix(test.path, "/snapshot/") {
			must.Do(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "before"}))
		}
		l.putOK(vm+"/config", "scsi9=fast:1")
		l.putOK(vm+"/config", "delete=scsi9")
		l.putOK(vm+"/config", "protection=1")
		path := test.path
		if !strings.HasPrefix(path, "/nodes/") {
			path = vm + path
		}
		same(t, test.want, l.outcome(l.do(test.method, path, test.form...)))
	})
}

// TestSnapshotOfATemplate: templates have no snapshots, and snapshots contain no unused volumes.
func TestSnapshotOfATemplate(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("Snapshots", append(talosRole(), "VM.Snapshot")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "Snapshots", Propagate: true})
		taskOK(t, l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=thin:1", "scsi1=thin:1", "description=text", "protection=1"))
		l.putOK("/nodes/pve1/qemu/9012/config", "protection=0")
		l.putOK("/nodes/pve1/qemu/9012/config", "delete=scsi1")
		taskOK(t, l.task("POST", "/nodes/pve1/qemu/9012/snapshot", "snapname=one"))
		got := l.do("GET", "/nodes/pve1/qemu/9012/snapshot/one/config").Data.(map[string]any)
		if got["unused0"] != nil || got["description"] != nil || got["scsi0"] != "thin:vm-9012-disk-0,size=1G" {
			t.Error(got)
		}
		must.Do(t, l.world.DeleteSnapshot(9012, "one"))
		l.task("POST", "/nodes/pve1/qemu/9012/template")
		same(t, "you can't take a snapshot if it's a template", l.task("POST", "/nodes/pve1/qemu/9012/snapshot", "snapname=two"))
	})
}
