package pveapi_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

const held = "fast:500/vm-500-disk-0.raw"

// holderLab has VM 500, which holds a persistent disk that VM 9011 uses.
func holderLab(t *testing.T) (*lab, *world.Media) {
	t.Helper()
	l := newLab(t, talosRole()...)
	m := world.NewMedia([]byte("held"))
	must(t, l.world.DefineVM("pve1", 500, map[string]string{"scsi0": "fast:1"}, map[string]*world.Media{"scsi0": m}))
	l.world.Protect(world.Protected{Serial: "held", Media: m, Held: true})
	l.putOK(vm+"/config", "scsi4="+held+",serial=held")
	return l, m
}

func TestHolderKeepsItsDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, m := holderLab(t)
		if got := l.config(9011)["scsi4"]; got != held+",serial=held,size=1G" {
			t.Error(got)
		}
		l.putOK(vm+"/config", "delete=scsi4")
		if c := l.config(9011); c["scsi4"] != nil || c["unused0"] != nil {
			t.Errorf("after the detach: %v, %v", c["scsi4"], c["unused0"])
		}
		l.putOK(vm+"/config", "scsi4="+held, "protection=1")
		l.putOK(vm+"/config", "protection=0")
		must(t, l.world.DefineVM("pve1", 9090, nil, nil))
		if got := l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090"); got != "OK" {
			t.Fatal(got)
		}
		if got := l.task("DELETE", vm); got != "OK" {
			t.Fatal(got)
		}
		if broken := l.world.Violations(); broken != nil {
			t.Error(broken)
		}
		if got := l.world.Media(held, "pve1"); got != m {
			t.Error("the holder's disk is gone")
		}
	})
}

func TestHoldersDiskIsLost(t *testing.T) {
	t.Parallel()
	const gone = "disk held: its volume " + held + " was freed"
	tests := map[string]struct {
		do   func(*lab) string
		want []string // expected violations
	}{
		"with its holder": {
			do: func(l *lab) string { return l.task("DELETE", "/nodes/pve1/qemu/500") },
			want: []string{
				gone, "disk held: is in 0 volumes []", "disk held: no VM's configuration names its volume",
				"disk held: is not " + held + " any more, as its holder called it",
			},
		},
		"by a move": { // it ignores the volume's owner
			do: func(l *lab) string {
				must(l.t, l.world.DefineVM("pve1", 9090, nil, nil))
				return l.task("POST", vm+"/move_disk", "disk=scsi4", "target-vmid=9090")
			},
			want: []string{
				"disk held: its holder's volume " + held + " was renamed",
				"disk held: is not " + held + " any more, as its holder called it",
			},
		},
		"by two VMs": {
			do: func(l *lab) string {
				must(l.t, l.world.PowerOn(9011))
				if l.world.PowerOn(500) == nil {
					l.t.Error("both run with one file")
				}
				return "OK"
			},
		},
		"by plugging it in twice": {
			do: func(l *lab) string {
				must(l.t, l.world.DefineVM("pve1", 9090, nil, nil))
				must(l.t, l.world.PowerOn(9011))
				must(l.t, l.world.PowerOn(9090))
				l.putOK("/nodes/pve1/qemu/9090/config", "scsi7="+held)
				l.putOK("/nodes/pve1/qemu/9090/config", "delete=scsi7")
				return "OK"
			},
			want: []string{"disk held: is in the running VMs [9011 9090]"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, _ := holderLab(t)
				if got := test.do(l); got != "OK" {
					t.Fatal(got)
				}
				if diff := cmp.Diff(test.want, l.world.Violations()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
