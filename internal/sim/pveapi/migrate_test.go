package pveapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// migrating is a lab whose token may migrate, and a VM with disks of every kind.
func migrating(t *testing.T, l *lab, config map[string]string) *world.Media {
	t.Helper()
	l.world.AddRole("Migrates", append(talosRole(), "VM.Migrate")...)
	l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "Migrates", Propagate: true})
	l.world.AddStorage(world.Storage{ID: "rbd", Type: "rbd", Shared: true, Content: []string{"images"}})
	media := world.NewMedia([]byte("bytes"))
	must(t, l.world.DefineVM("pve1", 9012, config, map[string]*world.Media{"scsi0": media}))
	return media
}

const migrant = "/nodes/pve1/qemu/9012"

// TestMigrate: the VM is on the other host with the same disks; its old volumes and its lock are removed.
func TestMigrate(t *testing.T) {
	t.Parallel()
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
			_, err := l.world.Alloc("fast", "pve2", 9012, 1<<30, nil)
			must(t, err)
		}
		if test.running {
			must(t, l.world.PowerOn(9012))
		}
		upid := l.do("POST", migrant+"/migrate", append(test.form, "target=pve2")...).Data.(string)
		time.Sleep(1200 * time.Millisecond)
		meanwhile, err := l.world.LookupVM("pve1", 9012)
		if err == nil && meanwhile.Config["lock"] != "migrate" {
			t.Errorf("meanwhile: %v", meanwhile.Config)
		}
		want := "500 VM is locked (migrate)"
		if err != nil { // it has moved already
			want = "500 Configuration file 'nodes/pve1/qemu-server/9012.conf' does not exist"
		}
		if got := l.do("PUT", migrant+"/config", "cores=2").Status; got != want {
			t.Errorf("meanwhile: %s", got)
		}
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "OK" {
			t.Fatalf("%+v", task)
		}
		vm, err := l.world.LookupVM("pve2", 9012)
		must(t, err)
		if diff := cmp.Diff([]any{test.want, "", test.running}, []any{vm.Config["scsi0"], vm.Config["lock"], vm.Running}); diff != "" {
			t.Error(diff)
		}
		volid, _, _ := strings.Cut(test.want, ",")
		if got := l.world.Media(volid, "pve2"); got == nil || string(got.Bytes()) != "bytes" {
			t.Errorf("the disk there: %v", got)
		}
		if diff := cmp.Diff(test.there, l.volumesOn("pve2", "fast")); diff != "" {
			t.Error(diff)
		}
		if broken := l.world.Violations(); broken != nil {
			t.Error(broken)
		}
	})
}

func TestMigrateRefused(t *testing.T) {
	t.Parallel()
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
			must(t, l.world.PowerOn(9012))
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
		if got != test.want {
			t.Errorf("%s, want %s; log %q", got, test.want, log)
		}
		if test.log != "" && !slices.Contains(log, test.log) {
			t.Errorf("log: %q", log)
		}
		vm, err := l.world.LookupVM("pve1", 9012)
		must(t, err)
		if lock := vm.Config["lock"]; lock != "" && test.want != "500 VM is locked (backup)" || vm.Running != test.running {
			t.Errorf("lock %q, running %v", lock, vm.Running)
		}
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
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				media := migrating(t, l, map[string]string{"scsi0": "fast:1"})
				l.world.Protect(world.Protected{Serial: "s", Media: media})
				upid := l.do("POST", migrant+"/migrate", "target=pve2").Data.(string)
				time.Sleep(1200 * time.Millisecond)
				cut(l, upid)
				task, _ := l.world.WaitTask(upid)
				vm, err := l.world.LookupVM("pve1", 9012)
				must(t, err)
				want := []any{"unexpected status", "migrate", []string{"fast:9012/vm-9012-disk-0.raw"}}
				if name == "told to stop" {
					want = []any{"migration aborted", "", []string(nil)}
				}
				if diff := cmp.Diff(want, []any{task.ExitStatus, vm.Config["lock"], l.volumesOn("pve2", "fast")}); diff != "" {
					t.Error(diff)
				}
				if broken := l.world.Violations(); broken != nil {
					t.Error(broken)
				}
			})
		})
	}
}

// TestHAMigrates: HA migrates its resource some rounds after the request.
func TestHAMigrates(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		migrating(t, l, map[string]string{"scsi0": "rbd:1"})
		must(t, l.world.PowerOn(9012))
		l.world.AddHA(world.HAResource{SID: "vm:9012", State: "started"})
		where := func() []any {
			vm := l.vm(9012)
			return []any{vm.Host, vm.Running, vm.HA.State}
		}
		if got := l.task("POST", migrant+"/migrate", "target=pve2", "online=1"); got != "OK" {
			t.Fatal(got)
		}
		if diff := cmp.Diff([]any{"pve1", true, "started"}, where()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]any{"pve2", true, "started"}, where()); diff != "" {
			t.Error(diff)
		}
	})
}
