package pveapi_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
