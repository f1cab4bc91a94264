package pveapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// TestVzdump: a backup locks the VM and runs a stopped VM's QEMU without its guest.
func TestVzdump(t *testing.T) {
	t.Parallel()
	type row struct {
		config   map[string]string
		running  bool
		want     string // exit status of the task
		status   []any  // status, qmpstatus and lock meanwhile
		included []string
	}
	tests := map[string]row{
		"off": {
			config: map[string]string{"scsi0": "fast:5", "scsi1": "fast:5,backup=0", "efidisk0": "fast:1", "tpmstate0": "fast:1", "ide2": "isos:iso/boot.iso,media=cdrom"},
			want:   "OK", status: []any{"running", "prelaunch", "backup"}, included: []string{"scsi0", "tpmstate0"},
		},
		"with UEFI": {
			config: map[string]string{"bios": "ovmf", "scsi0": "fast:5", "efidisk0": "fast:1"},
			want:   "OK", status: []any{"running", "prelaunch", "backup"}, included: []string{"efidisk0", "scsi0"},
		},
		"running":         {config: map[string]string{"scsi0": "fast:5"}, running: true, want: "OK", status: []any{"running", "running", "backup"}, included: []string{"scsi0"}},
		"nothing to read": {config: map[string]string{"scsi0": "fast:5,backup=0"}, want: "OK", status: []any{"stopped", "stopped", "backup"}},
		"can't be started": {
			config: map[string]string{"scsi0": "fast:5", "net0": "virtio,bridge=vmbr9"}, want: "job errors",
			status: []any{"stopped", "stopped", nil}, included: []string{"scsi0"},
		},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		migrating(t, l, test.config)
		l.world.AddStorage(world.Storage{ID: "backups", Type: "nfs", Shared: true, Content: []string{"backup"}})
		if test.running {
			must(t, l.world.PowerOn(9012))
		}
		upid := l.do("POST", "/nodes/pve1/vzdump", "vmid=9012", "storage=backups", "mode=snapshot").Data.(string)
		time.Sleep(time.Second)
		now := l.do("GET", migrant+"/status/current").Data.(map[string]any)
		if diff := cmp.Diff(test.status, []any{now["status"], now["qmpstatus"], now["lock"]}); diff != "" {
			t.Error(diff)
		}
		task, _ := l.world.WaitTask(upid)
		if task.ExitStatus != test.want {
			t.Errorf("%s: %q", task.ExitStatus, task.Log)
		}
		var included []string
		for _, line := range task.Log {
			if rest, ok := strings.CutPrefix(line, "INFO: include disk '"); ok {
				key, _, _ := strings.Cut(rest, "'")
				included = append(included, key)
			}
		}
		if diff := cmp.Diff(test.included, included); diff != "" {
			t.Error(diff)
		}
		vm, err := l.world.LookupVM("pve1", 9012)
		must(t, err)
		if vm.Running != test.running || vm.Config["lock"] != "" {
			t.Errorf("afterwards: running %v, lock %q", vm.Running, vm.Config["lock"])
		}
		rows := l.do("GET", "/nodes/pve1/storage/backups/content", "vmid=9012").Data.([]any)
		if kept := len(rows) == 1 && rows[0].(map[string]any)["vmid"] == 9012.0; kept != (test.want == "OK") {
			t.Errorf("kept: %v", rows)
		}
	})
}

func TestVzdumpRefused(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		const path = "/nodes/pve1/vzdump"
		want := "could not get storage information for 'fast': can't use storage 'fast' for backups - wrong content type"
		if got := l.task("POST", path, "vmid=9011", "storage=fast"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		l.world.AddStorage(world.Storage{ID: "backups", Type: "dir", Content: []string{"backup"}})
		if got := l.task("POST", path, "vmid=9011", "storage=backups"); got != "Permission check failed (/vms/9011, VM.Backup)" {
			t.Error(got)
		}
		l.world.AddRole("Talos", append(talosRole(), "VM.Backup")...)
		l.world.SetLock(9011, "migrate")
		if got := l.task("POST", path, "vmid=9011,700", "storage=backups"); got != "job errors" {
			t.Error(got)
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
