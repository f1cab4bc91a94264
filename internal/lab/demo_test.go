package lab

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
)

// TestDemoNoticesAWipedDisk checks that the demo's last check finds a wiped disk.
func TestDemoNoticesAWipedDisk(t *testing.T) {
	t.Parallel()
	before := map[string]string{"data-wk1": "a", "data-wk2": "b"}
	for name, after := range map[string]map[string]string{
		"persistent disk data-wk2 has changed: c, before b": {"data-wk1": "a", "data-wk2": "c"},
		"persistent disk data-wk1 is gone":                  {"data-wk2": "b"},
	} {
		if err := sameDisks(before, after); err == nil || err.Error() != name || fault.KindOf(err) != fault.Refused {
			t.Errorf("%v, want %s", err, name)
		}
	}
	if err := sameDisks(before, before); err != nil {
		t.Error(err)
	}
}

func TestUnharmed(t *testing.T) {
	t.Parallel()
	before := sim.State{Disks: map[string]string{"data-wk1": "a"}, Etcd: []string{"cp1", "cp2"}}
	for want, now := range map[string]sim.State{
		"":                                 before,
		"persistent disk data-wk1 is gone": {Etcd: before.Etcd},
		"the members of etcd are cp2; before: cp1, cp2":          {Disks: before.Disks, Etcd: []string{"cp2"}},
		"the members of etcd are none; before: cp1, cp2":         {Disks: before.Disks},
		"promise broken: disk data-wk1: no configuration has it": {Disks: before.Disks, Etcd: before.Etcd, Broken: []string{"disk data-wk1: no configuration has it"}},
	} {
		got := ""
		if err := unharmed(before, now); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDemoNoticesAWipedDiskOfTheWorld wipes a disk in a datacentre and runs the demo's
// check.
func TestDemoNoticesAWipedDiskOfTheWorld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab, err := sim.New(t.Context(), sim.Options{
			Network: network.Memory(), Prefix: "127.42.7", Registry: "127.0.0.1:5000", Factory: "127.0.0.1:8080",
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := lab.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := lab.Install(t.Context(), map[string]string{"default": "customization: {}", "storage": "customization: {}"}); err != nil {
			t.Fatal(err)
		}
		before := lab.Disks()
		if err := sameDisks(before, lab.Disks()); err != nil || len(before) != 2 {
			t.Fatalf("%d disks, nothing was done, yet: %v", len(before), err)
		}
		wiped := lab.World.Persistent()[1]
		lab.World.Media(wiped.Volid, "pve1").Write(nil)
		if err := sameDisks(before, lab.Disks()); err == nil || !strings.Contains(err.Error(), wiped.Serial+" has changed") {
			t.Errorf("disk %s was wiped: %v", wiped.Serial, err)
		}
	})
}
