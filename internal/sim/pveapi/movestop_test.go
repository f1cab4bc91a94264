package pveapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

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
