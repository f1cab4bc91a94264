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
