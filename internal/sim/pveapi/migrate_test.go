package pveapi_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

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
			_, err := l.world.Alloc("fast", "pve2", 9012, 1<<30, nil)
			must.Do(t, err)
		}
		if test.running {
			must.Do(t, l.world.PowerOn(9012))
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
		same(t, want, l.do("PUT", migrant+"/config", "cores=2").Status)
		taskOK(t, l.ended(upid))
		vm, err := l.world.LookupVM("pve2", 9012)
		must.Do(t, err)
		same(t, []any{test.want, "", test.running}, []any{vm.Config["scsi0"], vm.Config["lock"], vm.Running})
		volid, _, _ := strings.Cut(test.want, ",")
		if got := l.world.Media(volid, "pve2"); got == nil || string(got.Bytes()) != "bytes" {
			t.Errorf("the disk there: %v", got)
		}
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
		if test.log != "" && !slices.Contains(log, test.log) {
			t.Errorf("log: %q", log)
		}
		vm, err := l.world.LookupVM("pve1", 9012)
		must.Do(t, err)
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
			inLab(t, func(t *testing.T, l *lab) {
				media := migrating(t, l, map[string]string{"scsi0": "fast:1"})
				l.world.Protect(world.Protected{Serial: "s", Media: media})
				upid := l.do("POST", migrant+"/migrate", "target=pve2").Data.(string)
				time.Sleep(1200 * time.Millisecond)
				cut(l, upid)
				task, _ := l.world.WaitTask(upid)
				vm, err := l.world.LookupVM("pve1", 9012)
				must.Do(t, err)
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
		if len(tasks) != 1 || tasks[0].(map[string]any)["id"] != "9011" || tasks[0].(map[string]any)["user"] != "root@pam" {
			t.Errorf("%v", tasks)
		}
		if task, _ := l.world.LookupTask(several); task.ExitStatus != "job errors" || task.ID != "" {
			t.Errorf("the second one: %+v", task)
		}
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
			vm, err := l.world.LookupVM("pve1", 9011)
			must.Do(t, err)
			return vm.Config["lock"]
		}
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "unexpected status" || lock() != "backup" {
			t.Errorf("%+v, lock %q", task, lock())
		}
		l.world.BootHost("pve1")
		time.Sleep(time.Minute)
		vm, err := l.world.LookupVM("pve1", 9011)
		must.Do(t, err)
		if lock() != "" || !vm.Running {
			t.Errorf("lock %q, running %v", lock(), vm.Running)
		}
	})
}
