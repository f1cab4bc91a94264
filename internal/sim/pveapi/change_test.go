package pveapi_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// TestNewCDOverridesBoot: a CD-ROM drive that the old boot order lacks is appended to the
// old order, which may override the boot= of the same request.
func TestNewCDOverridesBoot(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.putOK(vm+"/config", "delete=ide2")
		l.putOK(vm+"/config", "ide2=isos:iso/boot.iso,media=cdrom", "boot=order=ide2;scsi0")
		if got := l.config(9011)["boot"]; got != "order=scsi0;ide2" {
			t.Error(got)
		}
		l.putOK(vm+"/config", "ide2=isos:iso/boot.iso,media=cdrom", "boot=order=ide2;scsi0")
		if got := l.config(9011)["boot"]; got != "order=ide2;scsi0" {
			t.Error(got)
		}
		if got := l.do("PUT", vm+"/config", "boot=order=scsi7").Status; got != "500 invalid bootorder: device 'scsi7' does not exist'" {
			t.Error(got)
		}
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
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.PowerOn(9011)) // plugging a disk takes time, under the lock
		digest := "digest=" + l.world.VMs()[0].Digest
		got := l.both(
			func() reply { return l.do("PUT", vm+"/config", "scsi2=fast:1", digest) },
			func() reply { return l.do("PUT", vm+"/config", "scsi3=fast:1", digest) },
		)
		if diff := cmp.Diff([]string{"200 OK", mismatch}, got); diff != "" {
			t.Error(diff)
		}
		if got := l.volumes("fast"); len(got) != 4 {
			t.Errorf("the loser allocated: %v", got)
		}
	})
}

func TestTwoCreators(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		create := func(host string) func() reply {
			return func() reply { return l.do("POST", "/nodes/"+host+"/qemu", "vmid=9012") }
		}
		got := l.both(create("pve1"), create("pve2"))
		taken := "500 unable to create VM 9012 - VM 9012 already exists on node '" + l.world.VMs()[1].Host + "'"
		if diff := cmp.Diff([]string{"200 OK", taken}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSnapshotsHoldTheirVolumes(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "one", Description: "first", Memory: true}))
		must(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "two"}))
		if got := l.config(9011)["parent"]; got != "two" {
			t.Errorf("parent %v", got)
		}
		list := l.do("GET", vm+"/snapshot").Data.([]any)
		want := []any{
			map[string]any{"name": "one", "description": "first", "snaptime": 946684800.0, "vmstate": 1.0},
			map[string]any{"name": "two", "description": "", "snaptime": 946684800.0, "vmstate": 0.0, "parent": "one"},
			map[string]any{"name": "current", "description": "You are here!", "running": 0.0, "parent": "two", "digest": l.world.VMs()[0].Digest},
		}
		if diff := cmp.Diff(want, list); diff != "" {
			t.Error(diff)
		}
		for _, path := range []string{vm + "/snapshot/one/config", vm + "/config?snapshot=one"} {
			c := l.do("GET", path).Data.(map[string]any)
			if diff := cmp.Diff([]any{"fast:9011/vm-9011-state-one.raw", l.config(9011)["scsi1"], nil}, []any{c["vmstate"], c["scsi1"], c["parent"]}); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		if got := l.do("GET", vm+"/config?snapshot=x").Status; got != "500 snapshot 'x' does not exist" {
			t.Error(got)
		}
		l.putOK(vm+"/config", "delete=scsi1")
		volid := "fast:9011/vm-9011-disk-2.raw"
		if got := l.do("PUT", vm+"/config", "delete=unused0").Status; got != "500 unable to delete '"+volid+"' - volume is still in use (snapshot?)" {
			t.Error(got)
		}
		if got := l.task("DELETE", vm); got != "OK" {
			t.Fatal(got)
		}
		if got := l.volumes("fast"); got != nil {
			t.Errorf("left: %v", got)
		}
	})
}
