package pveapi_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
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
			diff := cmp.Diff([]any{"fast:9011/vm-9011-state-one.raw", l.config(9011)["scsi1"], nil}, []any{c["vmstate"], c["scsi1"], c["parent"]})
			must.Hold(t, diff == "", "%s: %s", path, diff)
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
	r := l.do("PUT", path, form...)
	must.Be(l.t, r.Status == "200 OK", "PUT %s %v: %+v", path, form, r)
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
		got := l.do("PUT", vm+"/config", "scsi2=fast:1", "scsi3=thin:1").Status
		must.Be(t, strings.HasPrefix(got, "500 unable to create image"), "%v", got)
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
			got := l.task("POST", "/nodes/pve1/qemu/400"+step[0], step[1:]...)
			must.Be(t, got == "OK", "%v: %s", step, got)
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
		must.Hold(t, d.VMID == 9090 && d.Volid == renamed && d.Unnamed == 0 && d.LongestUnnamed >= time.Minute, "%+v", d)
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
		must.Hold(t, got["unused0"] == nil && got["description"] == nil && got["scsi0"] == "thin:vm-9012-disk-0,size=1G",
			"%v", got)
		must.Do(t, l.world.DeleteSnapshot(9012, "one"))
		l.task("POST", "/nodes/pve1/qemu/9012/template")
		same(t, "you can't take a snapshot if it's a template", l.task("POST", "/nodes/pve1/qemu/9012/snapshot", "snapname=two"))
	})
}

// migrating is a lab whose token may migrate, and a VM with disks of every kind.
func migrating(t *testing.T, l *lab, config map[string]string) *world.Media {
	t.Helper()
	l.world.AddRole("Migrates", append(talosRole(), "VM.Migrate")...)
	l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "Migrates", Propagate: true})
	l.world.AddStorage(world.Storage{ID: "rbd", Type: "rbd", Shared: true, Content: []string{"images"}})
	media := world.NewMedia([]byte("bytes"))
	must.Do(t, l.world.DefineVM("pve1", 9012, config, map[string]*world.Media{"scsi0": media}))
	return media
}

const migrant = "/nodes/pve1/qemu/9012"

// TestMigrate: the VM is on the other host with the same disks; its old volumes and its lock are removed.
func TestMigrate(t *testing.T) {
	type row struct {
		config  map[string]string
		running bool
		form    []string
		there   []string // volumes of fast on pve2
		want    string   // scsi0 afterwards
	}
	tests := map[string]row{
		"off, on a shared storage": {config: map[string]string{"scsi0": "rbd:1", "ide2": "isos:iso/boot.iso,media=cdrom"}, want: "rbd:vm-9012-disk-0,size=1G"},
		"off, on a local storage": {
			config: map[string]string{"scsi0": "fast:1,serial=s", "efidisk0": "fast:1"}, want: "fast:9012/vm-9012-disk-1.raw,serial=s,size=1G",
			there: []string{"fast:9012/vm-9012-disk-0.raw", "fast:9012/vm-9012-disk-1.raw"},
		},
		"its name is taken there": {
			config: map[string]string{"scsi0": "fast:1", "description": "taken"}, want: "fast:9012/vm-9012-disk-1.raw,size=1G",
			there: []string{"fast:9012/vm-9012-disk-0.raw", "fast:9012/vm-9012-disk-1.raw"},
		},
		"online, on a shared storage": {config: map[string]string{"scsi0": "rbd:1"}, running: true, form: []string{"online=1"}, want: "rbd:vm-9012-disk-0,size=1G"},
		"online, on a local storage": {
			config: map[string]string{"scsi0": "fast:1"}, running: true, form: []string{"online=1", "with-local-disks=1"},
			want: "fast:9012/vm-9012-disk-0.raw,size=1G", there: []string{"fast:9012/vm-9012-disk-0.raw"},
		},
		"told to be online, but off": {config: map[string]string{"scsi0": "rbd:1"}, form: []string{"online=1"}, want: "rbd:vm-9012-disk-0,size=1G"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		media := migrating(t, l, test.config)
		l.world.Protect(world.Protected{Serial: "s", Media: media})
		if test.config["description"] == "taken" {
			must.Do(t, must.Err(l.world.Alloc("fast", "pve2", 9012, 1<<30, nil)))
		}
		if test.running {
			must.Do(t, l.world.PowerOn(9012))
		}
		upid := l.do("POST", migrant+"/migrate", append(test.form, "target=pve2")...).Data.(string)
		time.Sleep(1200 * time.Millisecond)
		meanwhile, err := l.world.LookupVM("pve1", 9012)
		must.Hold(t, err != nil || meanwhile.Config["lock"] == "migrate", "meanwhile: %v", meanwhile.Config)
		want := "500 VM is locked (migrate)"
		if err != nil { // it has moved already
			want = "500 Configuration file 'nodes/pve1/qemu-server/9012.conf' does not exist"
		}
		same(t, want, l.do("PUT", migrant+"/config", "cores=2").Status)
		taskOK(t, l.ended(upid))
		vm := must.Get(l.world.LookupVM("pve2", 9012))(t)
		same(t, []any{test.want, "", test.running}, []any{vm.Config["scsi0"], vm.Config["lock"], vm.Running})
		volid, _, _ := strings.Cut(test.want, ",")
		got := l.world.Media(volid, "pve2")
		must.Hold(t, got != nil && string(got.Bytes()) == "bytes", "the disk there: %v", got)
		same(t, test.there, l.volumesOn("pve2", "fast"))
		same(t, []string(nil), l.world.Violations())
	})
}

func TestMigrateRefused(t *testing.T) {
	const aborted = "migration aborted"
	local := map[string]string{"scsi0": "fast:1"}
	type row struct {
		config  map[string]string
		running bool
		before  func(l *lab)
		form    []string
		want    string
		log     string // in the task's log
	}
	tests := map[string]row{
		"to itself":            {form: []string{"target=pve1"}, want: "400 Parameter verification failed."},
		"to no host":           {form: []string{"target=pve9"}, want: "500 no such cluster node 'pve9'"},
		"without quorum":       {before: func(l *lab) { l.world.SetQuorum(false) }, want: "500 cluster not ready - no quorum?"},
		"locked":               {before: func(l *lab) { l.world.SetLock(9012, "backup") }, want: "500 VM is locked (backup)"},
		"running":              {running: true, want: "500 can't migrate running VM without --online"},
		"without the right":    {before: func(l *lab) { l.world.AddRole("Migrates", talosRole()...) }, want: "403 Permission check failed (/vms/9012, VM.Migrate)"},
		"by force":             {form: []string{"force=1"}, want: "400 Parameter verification failed."},
		"a host's device":      {config: map[string]string{"hostpci0": "0000:01:00.0"}, want: aborted, log: "ERROR: migration aborted: can't migrate VM which uses local devices: hostpci0"},
		"a device not there":   {config: map[string]string{"usb0": "mapping=stick"}, want: aborted, log: "ERROR: migration aborted: can't migrate to 'pve2': missing mapped devices usb0"},
		"local, running":       {config: local, running: true, form: []string{"online=1"}, want: aborted, log: "can't migrate local disk 'fast:9012/vm-9012-disk-0.raw': can't live migrate attached local disks without with-local-disks option"},
		"a foreign local disk": {config: map[string]string{"scsi0": "fast:9011/vm-9011-disk-1.raw"}, want: aborted, log: "can't migrate local disk 'fast:9011/vm-9011-disk-1.raw': owned by other VM (owner = VM 9011)"},
		"a storage only here": {
			before: func(l *lab) {
				l.world.AddStorage(world.Storage{ID: "here", Type: "dir", Content: []string{"images"}, Hosts: []string{"pve1"}})
				l.putOK(migrant+"/config", "scsi3=here:1")
			}, want: "500 storage 'here' is not available on node 'pve2'",
		},
		"a host that is down": {
			before: func(l *lab) { l.world.AddHost("pve3"); l.world.CrashHost("pve2") }, want: aborted,
			log: "ERROR: migration aborted: Can't connect to destination address using public key",
		},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		migrating(t, l, test.config)
		if test.running {
			must.Do(t, l.world.PowerOn(9012))
		}
		if test.before != nil {
			test.before(l)
		}
		form := append([]string{"target=pve2"}, test.form...)
		r := l.do("POST", migrant+"/migrate", form...)
		got, log := r.Status, []string(nil)
		if upid, ok := r.Data.(string); ok {
			task, _ := l.world.WaitTask(upid)
			got, log = task.ExitStatus, task.Log
		}
		must.Equal(t, "log", test.want, got)
		must.Hold(t, test.log == "" || slices.Contains(log, test.log), "log: %q", log)
		vm := must.Get(l.world.LookupVM("pve1", 9012))(t)
		lock := vm.Config["lock"]
		must.Hold(t, (lock == "" || test.want == "500 VM is locked (backup)") && vm.Running == test.running, "lock %q, running %v", lock, vm.Running)
	})
}

// TestMigrationCutShort: a killed worker leaves the lock, and the VM on the host of its configuration.
func TestMigrationCutShort(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*lab, string){
		"killed":       func(l *lab, upid string) { l.world.KillTask(upid) },
		"source down":  func(l *lab, _ string) { l.world.CrashHost("pve1"); l.world.BootHost("pve1") },
		"told to stop": func(l *lab, upid string) { l.world.StopTask(upid) },
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				media := migrating(t, l, map[string]string{"scsi0": "fast:1"})
				l.world.Protect(world.Protected{Serial: "s", Media: media})
				upid := l.do("POST", migrant+"/migrate", "target=pve2").Data.(string)
				time.Sleep(1200 * time.Millisecond)
				cut(l, upid)
				task, _ := l.world.WaitTask(upid)
				vm := must.Get(l.world.LookupVM("pve1", 9012))(t)
				want := []any{"unexpected status", "migrate", []string{"fast:9012/vm-9012-disk-0.raw"}}
				if name == "told to stop" {
					want = []any{"migration aborted", "", []string(nil)}
				}
				same(t, want, []any{task.ExitStatus, vm.Config["lock"], l.volumesOn("pve2", "fast")})
				same(t, []string(nil), l.world.Violations())
			})
		})
	}
}

// TestHAMigrates: HA migrates its resource some rounds after the request.
func TestHAMigrates(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		migrating(t, l, map[string]string{"scsi0": "rbd:1"})
		must.Do(t, l.world.PowerOn(9012))
		l.world.AddHA(world.HAResource{SID: "vm:9012", State: "started"})
		where := func() []any {
			vm := l.vm(9012)
			return []any{vm.Host, vm.Running, vm.HA.State}
		}
		taskOK(t, l.task("POST", migrant+"/migrate", "target=pve2", "online=1"))
		same(t, []any{"pve1", true, "started"}, where())
		time.Sleep(time.Minute)
		same(t, []any{"pve2", true, "started"}, where())
	})
}

func TestReplicationKeepsTheVM(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddReplication(world.ReplicationJob{ID: "9011-0", Guest: 9011, Target: "pve2", Schedule: "*/15", NextSync: time.Unix(1e9, 0)})
		job := map[string]any{"id": "9011-0", "type": "local", "guest": 9011.0, "jobnum": 0.0, "target": "pve2", "schedule": "*/15"}
		same(t, []any{job}, l.do("GET", "/cluster/replication").Data)
		must.Equal(t, "on the other host", []any{}, l.do("GET", "/nodes/pve2/replication?guest=9011").Data)
		status := l.do("GET", "/nodes/pve1/replication?guest=9011").Data.([]any)[0].(map[string]any)
		same(t, 1e9, status["next_sync"])
		want := "500 There is a replication job '9011-0' for guest '9011' - Please remove that first."
		same(t, want, l.do("DELETE", vm).Status)
		must.Do(t, l.world.DefineVM("pve1", 9090, map[string]string{"scsi3": "fast:1"}, nil))
		want = "500 Cannot move disk to a replicated VM. Storage does not support replication!"
		same(t, want, l.do("POST", "/nodes/pve1/qemu/9090/move_disk", "disk=scsi3", "target-vmid=9011").Status)
		same(t, "500 cannot add non-replicatable volume to a replicated VM", l.do("PUT", vm+"/config", "scsi3=fast:1").Status)
	})
}

func TestBackupJobsKeepDeletedVMs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddBackupJob(world.BackupJob{ID: "nightly", Schedule: "02:00", Storage: "pbs", VMIDs: []int{9011, 9012}, NextRun: time.Unix(1e9, 0), Mode: "snapshot"})
		l.world.AddBackupJob(world.BackupJob{ID: "rest", Disabled: true, Schedule: "sun 03:00", All: true, Exclude: []int{9011}, NextRun: time.Unix(1e9, 0)})
		want := []any{
			map[string]any{"id": "nightly", "type": "vzdump", "enabled": 1.0, "schedule": "02:00", "storage": "pbs", "vmid": "9011,9012", "next-run": 1e9, "mode": "snapshot"},
			map[string]any{"id": "rest", "type": "vzdump", "enabled": 0.0, "schedule": "sun 03:00", "all": 1.0, "exclude": "9011"},
		}
		taskOK(t, l.task("DELETE", vm))
		same(t, want, l.do("GET", "/cluster/backup").Data)
	})
}

func TestRunningBackupLocks(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		upid := l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		synctest.Wait()
		several := l.world.StartBackup("root@pam", "pve1", time.Minute, 9011, 700)
		time.Sleep(time.Second)
		tasks := l.do("GET", "/nodes/pve1/tasks?source=active&typefilter=vzdump").Data.([]any)
		must.Hold(t, len(tasks) == 1 && tasks[0].(map[string]any)["id"] == "9011" &&
			tasks[0].(map[string]any)["user"] == "root@pam", "%v", tasks)
		task, _ := l.world.LookupTask(several)
		must.Hold(t, task.ExitStatus == "job errors" && task.ID == "", "the second one: %+v", task)
		same(t, "500 VM is locked (backup)", l.do("PUT", vm+"/config", "memory=1024").Status)
		taskOK(t, l.ended(upid))
		l.putOK(vm+"/config", "memory=1024")
		upid = l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		time.Sleep(time.Second)
		l.world.KillTask(upid)
		same(t, "unexpected status", l.ended(upid))
		same(t, "backup", l.config(9011)["lock"])
	})
}

// TestBackup: it locks the VM and runs a stopped VM's QEMU without its guest, if it has disks to read.
func TestBackup(t *testing.T) {
	type row struct {
		config  map[string]string
		running bool
		want    string // exit status of the task
		status  []any  // status, qmpstatus and lock meanwhile
	}
	tests := map[string]row{
		"off":             {map[string]string{"scsi0": "fast:5", "scsi1": "fast:5,backup=0"}, false, "OK", []any{"running", "prelaunch", "backup"}},
		"with UEFI":       {map[string]string{"bios": "ovmf", "efidisk0": "fast:1"}, false, "OK", []any{"running", "prelaunch", "backup"}},
		"running":         {map[string]string{"scsi0": "fast:5"}, true, "OK", []any{"running", "running", "backup"}},
		"nothing to read": {map[string]string{"scsi0": "fast:5,backup=0", "efidisk0": "fast:1"}, false, "OK", []any{"stopped", "stopped", "backup"}},
		"can't be started": {
			map[string]string{"scsi0": "fast:5", "net0": "virtio,bridge=vmbr9"}, false, "job errors", []any{"stopped", "stopped", nil},
		},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		migrating(t, l, test.config)
		if test.running {
			must.Do(t, l.world.PowerOn(9012))
		}
		upid := l.world.StartBackup("root@pam", "pve1", time.Minute, 9012)
		time.Sleep(time.Second)
		now := l.do("GET", migrant+"/status/current").Data.(map[string]any)
		same(t, test.status, []any{now["status"], now["qmpstatus"], now["lock"]})
		same(t, test.want, l.ended(upid))
		if vm := l.vm(9012); vm.Running != test.running || vm.Config["lock"] != "" {
			t.Errorf("afterwards: running %v, lock %q", vm.Running, vm.Config["lock"])
		}
	})
}

// TestBackupEndsWithItsHost: the leftover lock is removed when the host starts its VMs.
func TestBackupEndsWithItsHost(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddHost("pve3")
		upid := l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		time.Sleep(time.Minute)
		l.world.CrashHost("pve1")
		lock := func() string {
			vm := must.Get(l.world.LookupVM("pve1", 9011))(t)
			return vm.Config["lock"]
		}
		task, _ := l.world.WaitTask(upid)
		must.Hold(t, task.ExitStatus == "unexpected status" && lock() == "backup", "%+v, lock %q", task, lock())
		l.world.BootHost("pve1")
		time.Sleep(time.Minute)
		vm := must.Get(l.world.LookupVM("pve1", 9011))(t)
		must.Hold(t, lock() == "" && vm.Running, "lock %q, running %v", lock(), vm.Running)
	})
}

// values are valid values of each option that a token may set, one for every form; those
// of drives have all options of a drive.
var values = map[string][]string{
	"acpi": {"0"}, "allow-ksm": {"0"}, "agent": {"1", "enabled=1,freeze-fs=0,fstrim_cloned_disks=1,type=virtio"}, "audio0": {"device=ich9-intel-hda,driver=spice"},
	"autostart": {"1"}, "balloon": {"256"}, "bios": {"ovmf", "seabios"}, "boot": {"order=scsi0;net0", "legacy=cdn"}, "bootdisk": {"scsi0"},
	"cicustom": {"user=snippets:snippets/user.yaml"}, "cipassword": {"secret"}, "citype": {"nocloud"}, "ciupgrade": {"0"}, "ciuser": {"talos"},
	"cores": {"3"}, "cpu": {"host", "cputype=x86-64-v3,flags=+aes,hidden=1"}, "cpulimit": {"1.5"}, "cpuunits": {"200"},
	"description": {"first\nsecond, with = and #\n\nthird ü"}, "freeze": {"1"}, "hostpci": {"mapping=gpu,pcie=1,x-vga=0"},
	"hotplug": {"disk,network", "0"}, "ipconfig": {"ip=10.0.0.5/24,gw=10.0.0.1", "ip6=auto"}, "keyboard": {"de-ch"}, "kvm": {"0"}, "localtime": {"1"},
	"machine": {"q35", "type=pc-q35-10.1,viommu=virtio"}, "memory": {"1024", "current=2048"}, "migrate_downtime": {"0.2"}, "migrate_speed": {"10"},
	"name": {"node-1.example.org"}, "nameserver": {"10.0.0.1 10.0.0.2"},
	"net":  {"virtio=BC:24:11:00:00:07,bridge=vmbr0,firewall=1,link_down=1,mtu=1,queues=2,rate=12.5,tag=7,trunks=1;2-4"},
	"numa": {"1"}, "numa#": {"cpus=0-1,hostnodes=0,memory=256,policy=bind"}, "onboot": {"1"}, "ostype": {"l26", "other"}, "protection": {"1"},
	"reboot": {"0"}, "rng0": {"source=/dev/urandom,max_bytes=1024,period=1000", "/dev/hwrng"}, "scsihw": {"virtio-scsi-single"}, "searchdomain": {"example.org"},
	"serial": {"socket"}, "shares": {"500"}, "smbios1": {"uuid=00000000-0000-4000-8000-000000000007,base64=1,serial=c2VyaWFs,sku=c2t1"}, "smp": {"2"},
	"sockets": {"2"}, "sshkeys": {"ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIDX6%20me%0A"}, "startdate": {"now", "2026-01-01T10:00:00"},
	"startup": {"order=1,up=30,down=60", "5"}, "tablet": {"0"}, "tags": {"prod;recast;talos"}, "tdf": {"1"}, "template": {"1"},
	"usb": {"mapping=stick,usb3=1", "spice"}, "vcpus": {"1"}, "vga": {"serial0", "type=std,memory=32,clipboard=vnc"}, "virtiofs": {"dirid=share,cache=always,direct-io=1,expose-acl=1,expose-xattr=1"},
	"vmstatestorage": {"fast"}, "watchdog": {"model=i6300esb,action=reset"},

	"efidisk0":  {"fast:1,efitype=4m,pre-enrolled-keys=1", "thin:1,efitype=2m"},
	"tpmstate0": {"fast:1,version=v2.0"},
	"ide": {
		"fast:1,model=disk1,serial=s,ssd=1,wwn=0x5000000000000001", "isos:iso/boot.iso,media=cdrom", "none,media=cdrom", "fast:cloudinit",
	},
	"sata": {"fast:1,ssd=1,wwn=0x5000000000000001,cache=none,discard=ignore,aio=threads,werror=stop,rerror=report"},
	"scsi": {
		"fast:1,aio=native,backup=0,cache=writeback,detect_zeroes=0,discard=on,iothread=1,product=p,queues=2,replicate=0,rerror=ignore,ro=1,scsiblock=0," +
			"serial=a-20-byte-serial-no1,shared=1,snapshot=0,ssd=1,vendor=v,werror=enospc,wwn=0x5000000000000001",
		"fast:1,bps_max_length=1,bps_rd=1024,bps_rd_max_length=2,bps_wr=1024,bps_wr_max_length=3,iops_max_length=4,iops_rd=5,iops_rd_max=6,iops_rd_max_length=7," +
			"iops_wr=8,iops_wr_max=9,iops_wr_max_length=10,mbps_rd=1.5,mbps_rd_max=2.5,mbps_wr=3.5,mbps_wr_max=4.5",
		"thin:1,bps=1024,iops=10,iops_max=20,mbps=1.5,mbps_max=2.5",
	},
	"virtio": {"fast:1,iothread=1,ro=1,snapshot=0,shared=1"},
}

// rootOnly are values of the options that no token may set.
var rootOnly = map[string]string{
	"affinity": "0-3", "amd-sev": "type=std", "arch": "x86_64", "args": "-S", "hookscript": "snippets:snippets/hook.pl", "hugepages": "2",
	"intel-tdx": "type=tdx", "ivshmem": "size=32", "keephugepages": "1", "lock": "backup", "parallel0": "/dev/parport0", "spice_enhancements": "videostreaming=all",
	"vmgenid": "00000000-0000-4000-8000-000000000007",
}

// besides are parameters of a create that are no options of the VM, and options that can't be created: aliases and leftovers.
var besides = []string{
	"archive", "bwlimit", "cdrom", "force", "ha-managed", "import-working-storage", "live-restore", "node", "pool", "start", "storage", "unique", "unused", "vmid",
}

// richLab is a lab whose token has every privilege that a token can have.
func richLab(t *testing.T, l *lab) {
	t.Helper()
	l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: world.Administrator, Propagate: true})
	l.world.AddStorage(world.Storage{ID: "snippets", Type: "dir", Content: []string{"snippets"}})
	apidoctest.Check(t, l.rec)
}

// TestEveryOptionIsKnown: the tables contain every option of Proxmox.
func TestEveryOptionIsKnown(t *testing.T) {
	t.Parallel()
	defined, ok := apidoctest.Schema(t).Parameters("POST", "/nodes/{node}/qemu")
	must.Be(t, ok, "the schema has no way to create a VM")
	for _, p := range defined {
		name := p.Name
		if name == "numa" && p.Indexed {
			name = "numa#"
		}
		_, root := rootOnly[name]
		_, numbered := rootOnly[name+"0"]
		must.Hold(t, values[name] != nil || root || numbered || slices.Contains(besides, name), "%s is in no table", name)
	}
}

// TestOptionsSurviveARecreate: a VM's configuration shows what it was created with, and a
// VM created from that shows the same.
func TestOptionsSurviveARecreate(t *testing.T) {
	t.Parallel()
	for name, list := range values {
		for i, value := range list {
			t.Run(fmt.Sprintf("%s %d", name, i), func(t *testing.T) {
				inLab(t, func(t *testing.T, l *lab) {
					richLab(t, l)
					key := optionKey(name)
					first := map[string]string{"vmid": "9012", key: value}
					for with, also := range map[string]string{"scsi0": "fast:1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "memory": "512"} {
						if key != with {
							first[with] = also
						}
					}
					taskOK(t, l.task("POST", "/nodes/pve1/qemu", form(first)...))
					shown := l.config(9012)
					same(t, stored(key, value), fmt.Sprint(shown[key]))
					again := map[string]string{"vmid": "9013"}
					for key, value := range shown {
						again[key] = fmt.Sprint(value)
					}
					if key == "description" {
						again[key] += "\n" // it is not stored
					}
					if again["template"] == "1" {
						delete(again, "template") // another template can't use the base volume
					}
					taskOK(t, l.task("POST", "/nodes/pve1/qemu", form(again)...))
					want := maps.Clone(shown)
					if want["template"] != nil {
						delete(want, "template")
					}
					same(t, want, l.config(9013))
				})
			})
		}
	}
}

func optionKey(name string) string {
	switch name {
	case "numa#":
		return "numa0"
	case "hostpci", "ide", "ipconfig", "net", "sata", "scsi", "serial", "usb", "virtio", "virtiofs":
		return name + "1"
	}
	return name
}

func form(params map[string]string) []string {
	var list []string
	for name, value := range params {
		list = append(list, name+"="+value)
	}
	return list
}

var newVolume = regexp.MustCompile(`^(fast|thin):(1|cloudinit)`)

// stored is how the configuration shows a value.
func stored(key, value string) string {
	if key == "cipassword" {
		return "**********"
	}
	m := newVolume.FindStringSubmatch(value)
	if m == nil {
		if strings.HasPrefix(value, "isos:") {
			value += ",size=3"
		}
		return value
	}
	options := strings.Split(value, ",")
	first, size := fmt.Sprintf("%s:9012/vm-9012-disk-0.raw", m[1]), "1G"
	switch {
	case m[2] == "cloudinit":
		first, size = "fast:9012/vm-9012-cloudinit.qcow2", "4M"
		options = append(options, "media=cdrom")
	case key == "efidisk0" && m[1] == "fast":
		size = "528K"
		options = append(options, "ms-cert=2023")
	case key == "efidisk0" || key == "tpmstate0":
		size = "4M"
	}
	if m[1] == "thin" {
		first = "thin:vm-9012-disk-0"
	}
	if key == "scsi1" && m[1] == "fast" || key == "virtio1" || key == "tpmstate0" || key == "sata1" {
		first = fmt.Sprintf("fast:9012/vm-9012-disk-%d.raw", number(key))
	}
	rest := slices.Sorted(slices.Values(append(options[1:], "size="+size)))
	return strings.Join(append([]string{first}, rest...), ",")
}

// number is the number of the volume beside scsi0's: numbers are assigned by key.
func number(key string) int {
	if key < "scsi0" {
		return 0
	}
	return 1
}

// TestOptionsOfRoots: the error names the option; even root's token can't set it.
func TestOptionsOfRoots(t *testing.T) {
	t.Parallel()
	for key, value := range rootOnly {
		t.Run(key, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				richLab(t, l)
				want := fmt.Sprintf("500 only root can set '%s' config", key)
				for _, r := range []reply{
					l.do("POST", "/nodes/pve1/qemu", "vmid=9012", key+"="+value),
					l.do("PUT", vm+"/config", key+"="+value),
					l.do("PUT", vm+"/config", "delete="+key),
					l.root("PUT", vm+"/config", key+"="+value),
				} {
					same(t, want, r.Status)
				}
			})
		})
	}
}

func TestPasswordIsMasked(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		richLab(t, l)
		l.putOK(vm+"/config", "cipassword=secret")
		same(t, "**********", l.config(9011)["cipassword"])
		for _, row := range l.do("GET", vm+"/pending").Data.([]any) {
			r := row.(map[string]any)
			must.Hold(t, r["key"] != "cipassword" || r["value"] == "**********", "pending shows %v", r)
		}
	})
}

// TestMappedDevices: a mapping needs the privilege to use it, and only a start needs its device.
func TestMappedDevices(t *testing.T) {
	const use = "/mapping/pci/gpu"
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("Maps", "Mapping.Use")
		create := func() string {
			return l.outcome(l.do("POST", "/nodes/pve1/qemu", "vmid=9012", "hostpci0=mapping=gpu,pcie=1"))
		}
		same(t, "403 Permission check failed ("+use+", Mapping.Use)", create())
		l.world.Grant(world.ACL{Path: use, Who: tokenID, Role: "Maps"})
		taskOK(t, create())
		const start = "/nodes/pve1/qemu/9012/status/start"
		same(t, "PCI device mapping not found for 'gpu'", l.task("POST", start))
		l.world.AddMapping("pci", "gpu", "pve2")
		same(t, "PCI device mapping not found for 'gpu'", l.task("POST", start))
		l.world.AddMapping("pci", "gpu", "pve1", "pve2")
		taskOK(t, l.task("POST", start))
		same(t, "500 only root can set 'hostpci1' config for non-mapped devices", l.do("PUT", "/nodes/pve1/qemu/9012/config", "hostpci1=0000:01:00.0").Status)
	})
}

// TestOtherNames: cdrom is ide2, and a description is limited to what the file can hold.
func TestOtherNames(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		taskOK(t, l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "cdrom=isos:iso/boot.iso", "description=text\n\n"))
		if got := l.config(9012); got["ide2"] != "isos:iso/boot.iso,media=cdrom,size=3" || got["cdrom"] != nil || got["description"] != "text" {
			t.Error(got)
		}
		l.putOK("/nodes/pve1/qemu/9012/config", "cdrom=none", "description= \n")
		got := l.config(9012)
		must.Hold(t, got["ide2"] == "none,media=cdrom" && got["description"] == nil, "%v", got)
		l.putOK("/nodes/pve1/qemu/9012/config", "delete=cdrom")
		same(t, nil, l.config(9012)["ide2"])
		const tooLarge = "500 balloon value too large (must be smaller than assigned memory)"
		for _, set := range []string{"balloon=4096", "memory=1024"} {
			same(t, set == "balloon=4096", l.do("PUT", vm+"/config", set, "cores=1").Status == tooLarge)
		}
		l.putOK(vm+"/config", "balloon=1024")
		same(t, tooLarge, l.do("PUT", vm+"/config", "memory=512").Status)
	})
}
