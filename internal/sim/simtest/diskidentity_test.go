package simtest

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestRecreateOnEveryBus: whatever Talos shows of a disk on that bus, a recreated node is
// installed on its new disk, and the next roll recognizes that disk. Proxmox keeps a drive as
// written by hand until it writes it itself, in its normal form: that is the same drive.
func TestRecreateOnEveryBus(t *testing.T) {
	type story struct {
		bus      string
		strategy cluster.Strategy
		bring    edit
		system   string // its drive afterwards
	}
	byHand := func(l *Lab) {
		l.World.WriteByHand(wk1, "scsi0", "iothread=on,discard=on,ssd=yes,file="+wk1System+",serial=sys-wk1,backup=no,size=10G")
		l.World.WriteByHand(wk1, "scsi1", "volume="+wk1Data+",iothread=on,discard=on,ssd=TRUE,serial=data-wk1,backup=on,size=20480M")
	}
	const lsi = "scsihw=lsi"
	for name, s := range map[string]story{
		"virtio-scsi-single": {bus: "scsi", system: "scsi0"},
		"virtio-scsi-pci":    {bus: "scsi", system: "scsi0", bring: whileOff(change("scsihw=virtio-scsi-pci"))},
		"two disks of one size, no system serial": {bus: "scsi", system: "scsi0", bring: whileOff(change(
			"scsi0="+wk1System, "scsi2=fast:20,serial=other"))},
		"LSI, told by WWN": {bus: "scsi", system: "scsi0", bring: whileOff(change(lsi, "scsi0="+wk1SystemDrive+",wwn=0x5000000000000001",
			"scsi1="+wk1Data+",serial=data-wk1,wwn=0x5000000000000002", "scsi2=fast:20,serial=other,wwn=0x5000000000000003"))},
		"virtio-blk":               {bus: "virtio", system: "virtio0"},
		"SATA":                     {bus: "sata", system: "sata0"},
		"IDE":                      {bus: "ide", system: "ide0"},
		"written by hand":          {bus: "scsi", system: "scsi0", bring: byHand},
		"written by hand, reimage": {bus: "scsi", strategy: cluster.Reimage, system: "scsi0", bring: byHand},
	} {
		t.Run(name, func(t *testing.T) {
			long(t)
			inLab(t, sim.Options{ControlPlanes: 1, Workers: 1, DiskBus: s.bus}, func(t *testing.T, lab *Lab) {
				if s.strategy != "" {
					strategy(s.strategy)(lab)
				}
				if s.bring != nil {
					s.bring(lab)
				}
				for _, run := range []string{firstRun, secondRun} {
					lab.Patch(sim.PatchedExtension)
					rep, err := lab.as(run).Roll(t.Context(), onlyWorker)
					if err != nil || rep.Outcome != "done" {
						t.Fatalf("%s: %s, %v", run, rep.Outcome, err)
					}
					drive := lab.vm(wk1).Config[s.system]
					if !strings.Contains(drive, "serial=recast-") || strings.Contains(drive, ",wwn=0x3") != (s.bus != "virtio") {
						t.Errorf("its system disk is %s", drive)
					}
				}
				lab.RequireIntact()
			})
		})
	}
}

// withoutSerials are workers with two data disks as Proxmox' own dialogue makes them.
func withoutSerials(bus, scsihw string) sim.Options {
	return sim.Options{ControlPlanes: 1, Workers: 1, Layouts: []sim.Layout{{Data: 2}, {Bus: bus, SCSI: scsihw, Data: 2, NoSerials: true}}}
}

// TestRecreateWithoutSerials: a node whose drives have no serial= is recreated by its
// drives' addresses, sizes and content. A resume after a crash, with the journal or
// without, proves the same, and no drive gets another option.
func TestRecreateWithoutSerials(t *testing.T) {
	for name, o := range map[string]sim.Options{
		"virtio-scsi-single": withoutSerials("scsi", ""),
		"virtio-scsi-pci":    withoutSerials("scsi", "virtio-scsi-pci"),
		"LSI":                withoutSerials("scsi", "lsi"),
		"virtio-blk":         withoutSerials("virtio", ""),
		"SATA":               withoutSerials("sata", ""),
	} {
		t.Run(name, func(t *testing.T) {
			if name != "virtio-scsi-single" {
				long(t)
			}
			t.Parallel()
			var points []point
			synctest.Test(t, func(t *testing.T) { points = rollWithoutSerials(t, o, point{}) })
			if t.Failed() || testing.Short() {
				return
			}
			first := namedPoint(t, points, "move_disk").at - 1
			for i := range 6 {
				at := points[first+i*(len(points)-first-1)/6]
				synctest.Test(t, func(t *testing.T) { rollWithoutSerials(t, o, at) })
			}
		})
	}
}

func rollWithoutSerials(t *testing.T, o sim.Options, at point) (points []point) {
	lab := New(t, o)
	lab.Patch(sim.PatchedExtension)
	before := dataDrives(lab)
	plan := planOf(t, lab, "wk1")
	if plan.Strategy != cluster.Recreate || len(plan.Refused) > 0 {
		t.Fatalf("planned as %s: %s %q", plan.Strategy, plan.Why, plan.Refused)
	}
	if at != (point{}) {
		lab.diesAt(t, at, rolls(planning.Policy{}))
	}
	if at.at%2 == 0 {
		lab.loseJournal()
	}
	points, _ = lab.finish(t, rolls(planning.Policy{}))
	requireInSync(t, lab)
	if diff := cmp.Diff(before, dataDrives(lab)); diff != "" {
		t.Errorf("killed at %s: the drives' options changed:\n%s", at, diff)
	}
	return points
}

// dataDrives are the options of wk1's persistent drives, by key.
func dataDrives(lab *Lab) map[string]string {
	out := map[string]string{}
	for key, value := range lab.vm(wk1).Config {
		if d, err := cluster.ParseDisk(key, value); err == nil && d.Bootable() && !strings.Contains(value, "serial=recast-") && !strings.HasSuffix(key, "0") {
			_, out[key], _ = strings.Cut(value, ",")
		}
	}
	return out
}

// TestSwappedDisksWithoutSerialsGetNoConfiguration: two drives of one size with the same
// options have swapped volumes. Only the content shows that.
func TestSwappedDisksWithoutSerialsGetNoConfiguration(t *testing.T) {
	long(t)
	inLab(t, withoutSerials("scsi", ""), func(t *testing.T, lab *Lab) {
		must(t, errOf(lab.World.Resize("", "pve1", world.ResizeRequest{ID: wk1, Disk: "scsi1", Size: "+1G"})))
		whileOff()(lab)
		lab.Patch(sim.PatchedExtension)
		swap := func() {
			c := lab.vm(wk1).Config
			change("protection=0")(lab)
			remove("scsi1", "scsi2")(lab)
			change("scsi1="+c["scsi2"], "scsi2="+c["scsi1"], "protection=1")(lab)
		}
		var swapped, applied atomic.Bool
		lab.Recorder.Hooks(func(call record.Call) error {
			if strings.HasSuffix(call.Path, "/qemu/9031/status/start") && swapped.CompareAndSwap(false, true) {
				swap()
			}
			if strings.HasSuffix(call.Method, "/ApplyConfiguration") {
				applied.Store(true)
			}
			return nil
		}, nil)
		err := lab.Client().roll(onlyWorker)(t.Context())
		requireRefused(t, err, "the persistent volume u-data with partition UUID")
		requireRefused(t, err, "is on sdc, and not on sdb, which is scsi1")
		if applied.Load() || !swapped.Load() {
			t.Fatalf("swapped %t, configured %t", swapped.Load(), applied.Load())
		}
		if lab.vm(wk1).Running {
			t.Error("the machine with the wrong disks runs")
		}
		lab.Recorder.Hooks(nil, nil)
		swap()
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireInSync(t, lab)
	})
}
