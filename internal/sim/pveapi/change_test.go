package pveapi_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// TestReimageInOneChange: one request to a stopped VM sets a blank disk in place of a
// removed one, the ISO and all else.
func TestReimageInOneChange(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.DefineVM("pve1", 9090, nil, nil))
		if got := l.task("POST", vm+"/move_disk", "disk=scsi0", "target-vmid=9090"); got != "OK" {
			t.Fatal(got)
		}
		l.putOK(vm+"/config", "scsi0=fast:10,serial=sys", "ide2=isos:iso/boot.iso,media=cdrom", "boot=order=scsi0;ide2", "description=run", "onboot=0")
		c := l.config(9011)
		got := []any{c["scsi0"], c["ide2"], c["boot"], c["description"], c["onboot"], c["unused0"]}
		want := []any{"fast:9011/vm-9011-disk-1.raw,serial=sys,size=10G", "isos:iso/boot.iso,media=cdrom,size=3", "order=scsi0;ide2", "run", 0.0, nil}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if vms := l.world.VMs(); len(vms[0].Pending) != 0 {
			t.Errorf("pending: %v", vms[0].Pending)
		}
	})
}

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

func TestPartlyFailedChange(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.FillStorage("thin")
		got := l.do("PUT", vm+"/config", "description=run", "scsi2=fast:1", "scsi3=thin:1", "tags=late").Status
		if want := "500 unable to create image: qemu-img: thin:vm-9011-disk-0: Could not preallocate data for the new file: No space left on device"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		now := l.do("GET", vm+"/config?current=1").Data.(map[string]any)
		merged := l.config(9011)
		want := []any{nil, nil, "run", "fast:9011/vm-9011-disk-3.raw,size=1G", nil}
		if diff := cmp.Diff(want, []any{now["description"], now["scsi2"], merged["description"], merged["scsi2"], merged["tags"]}); diff != "" {
			t.Error(diff)
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
