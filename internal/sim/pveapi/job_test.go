package pveapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func TestReplicationKeepsTheVM(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddReplication(world.ReplicationJob{ID: "9011-0", Guest: 9011, Target: "pve2", Schedule: "*/15", NextSync: time.Unix(1e9, 0)})
		job := map[string]any{"id": "9011-0", "type": "local", "guest": 9011.0, "jobnum": 0.0, "target": "pve2", "schedule": "*/15"}
		if diff := cmp.Diff([]any{job}, l.do("GET", "/cluster/replication").Data); diff != "" {
			t.Error(diff)
		}
		if got := l.do("GET", "/nodes/pve2/replication?guest=9011").Data; !cmp.Equal(got, []any{}) {
			t.Errorf("on the other host: %v", got)
		}
		status := l.do("GET", "/nodes/pve1/replication?guest=9011").Data.([]any)[0].(map[string]any)
		if status["next_sync"] != 1e9 {
			t.Errorf("%v", status)
		}
		want := "500 There is a replication job '9011-0' for guest '9011' - Please remove that first."
		if got := l.do("DELETE", vm).Status; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		must(t, l.world.DefineVM("pve1", 9090, map[string]string{"scsi3": "fast:1"}, nil))
		want = "500 Cannot move disk to a replicated VM. Storage does not support replication!"
		if got := l.do("POST", "/nodes/pve1/qemu/9090/move_disk", "disk=scsi3", "target-vmid=9011").Status; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := l.do("PUT", vm+"/config", "scsi3=fast:1").Status; got != "500 cannot add non-replicatable volume to a replicated VM" {
			t.Error(got)
		}
	})
}

func TestBackupJobsKeepDeletedVMs(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddBackupJob(world.BackupJob{ID: "nightly", Schedule: "02:00", Storage: "pbs", VMIDs: []int{9011, 9012}, NextRun: time.Unix(1e9, 0), Mode: "snapshot"})
		l.world.AddBackupJob(world.BackupJob{ID: "rest", Disabled: true, Schedule: "sun 03:00", All: true, Exclude: []int{9011}, NextRun: time.Unix(1e9, 0)})
		want := []any{
			map[string]any{"id": "nightly", "type": "vzdump", "enabled": 1.0, "schedule": "02:00", "storage": "pbs", "vmid": "9011,9012", "next-run": 1e9, "mode": "snapshot"},
			map[string]any{"id": "rest", "type": "vzdump", "enabled": 0.0, "schedule": "sun 03:00", "all": 1.0, "exclude": "9011"},
		}
		if got := l.task("DELETE", vm); got != "OK" {
			t.Fatal(got)
		}
		if diff := cmp.Diff(want, l.do("GET", "/cluster/backup").Data); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRunningBackupLocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, talosRole()...)
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
		if got := l.do("PUT", vm+"/config", "memory=1024").Status; got != "500 VM is locked (backup)" {
			t.Error(got)
		}
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "OK" {
			t.Errorf("%+v", task)
		}
		l.putOK(vm+"/config", "memory=1024")
		upid = l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		time.Sleep(time.Second)
		l.world.KillTask(upid)
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "unexpected status" {
			t.Errorf("%+v", task)
		}
		if got := l.config(9011)["lock"]; got != "backup" {
			t.Errorf("the killed backup's lock: %v", got)
		}
	})
}

// TestBackup: it locks the VM and runs a stopped VM's QEMU without its guest, if it has disks to read.
func TestBackup(t *testing.T) {
	t.Parallel()
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
			must(t, l.world.PowerOn(9012))
		}
		upid := l.world.StartBackup("root@pam", "pve1", time.Minute, 9012)
		time.Sleep(time.Second)
		now := l.do("GET", migrant+"/status/current").Data.(map[string]any)
		if diff := cmp.Diff(test.status, []any{now["status"], now["qmpstatus"], now["lock"]}); diff != "" {
			t.Error(diff)
		}
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != test.want {
			t.Errorf("%s: %q", task.ExitStatus, task.Log)
		}
		if vm := l.vm(9012); vm.Running != test.running || vm.Config["lock"] != "" {
			t.Errorf("afterwards: running %v, lock %q", vm.Running, vm.Config["lock"])
		}
	})
}

// TestBackupEndsWithItsHost: the leftover lock is removed when the host starts its VMs.
func TestBackupEndsWithItsHost(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddHost("pve3")
		upid := l.world.StartBackup("root@pam", "pve1", time.Hour, 9011)
		time.Sleep(time.Minute)
		l.world.CrashHost("pve1")
		lock := func() string {
			vm, err := l.world.LookupVM("pve1", 9011)
			must(t, err)
			return vm.Config["lock"]
		}
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "unexpected status" || lock() != "backup" {
			t.Errorf("%+v, lock %q", task, lock())
		}
		l.world.BootHost("pve1")
		time.Sleep(time.Minute)
		vm, err := l.world.LookupVM("pve1", 9011)
		must(t, err)
		if lock() != "" || !vm.Running {
			t.Errorf("lock %q, running %v", lock(), vm.Running)
		}
	})
}
