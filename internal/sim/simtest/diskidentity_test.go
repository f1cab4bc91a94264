package simtest

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/checkup"
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
	o := func(s story) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, DiskBus: s.bus} }
	eachLongIn(t, o, map[string]story{
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
	}, func(t *testing.T, lab *Lab, s story) {
		if s.strategy != "" {
			strategy(s.strategy)(lab)
		}
		if s.bring != nil {
			s.bring(lab)
		}
		for _, run := range []string{firstRun, secondRun} {
			lab.Patch(sim.PatchedExtension)
			rep := valueOf(lab.as(run).Roll(t.Context(), onlyWorker))(t)
			mustBe(t, rep.Outcome == "done", "%s: %s", run, rep.Outcome)
			drive := lab.vm(wk1).Config[s.system]
			require(t, strings.Contains(drive, "serial=recast-") && strings.Contains(drive, ",wwn=0x3") == (s.bus != "virtio"),
				"its system disk is %s", drive)
		}
		lab.RequireIntact()
	})
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
			killGrid[identified]{
				begin: func(t *testing.T) identified {
					lab := New(t, o)
					lab.Patch(sim.PatchedExtension)
					plan := planOf(t, lab, "wk1")
					mustBe(t, plan.Strategy == cluster.Recreate && len(plan.Refused) == 0,
						"planned as %s: %s %q", plan.Strategy, plan.Why, plan.Refused)
					return identified{lab, dataDrives(lab)}
				},
				do: rolls(planning.Policy{}),
				choose: func(t *testing.T, points []point) (some []point) {
					if testing.Short() {
						return nil
					}
					first := namedPoint(t, points, "move_disk").at - 1
					for i := range 6 {
						some = append(some, points[first+i*(len(points)-first-1)/6])
					}
					return everyPoint(t, some)
				},
				end: func(t *testing.T, lab identified) string {
					requireInSync(t, lab.Lab)
					requireSame(t, lab.drives, dataDrives(lab.Lab), "the drives' options changed")
					return ""
				},
			}.killEverywhere(t)
		})
	}
}

// identified is a lab with the options of wk1's data drives.
type identified struct {
	*Lab
	drives map[string]string
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
	inLongLab(t, withoutSerials("scsi", ""), func(t *testing.T, lab *Lab) {
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
		mustBe(t, !applied.Load() && swapped.Load(), "swapped %t, configured %t", swapped.Load(), applied.Load())
		require(t, !lab.vm(wk1).Running, "the machine with the wrong disks runs")
		lab.Recorder.Hooks(nil, nil)
		swap()
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireInSync(t, lab)
	})
}

// TestOneVolumeInTwoSlots: a VM whose system disk and data disk stand in a second slot each (as
// proxmox-csi-plugin#363 did it) is rebooted by nothing, for one reason, until its one command has run.
func TestOneVolumeInTwoSlots(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const want = "the volume of scsi0 is also scsi5, the volume of scsi1 is also scsi6: qm set 9031 --delete scsi5,scsi6 keeps the volume"
		change("scsi5="+wk1System+",backup=0,iothread=1", "scsi6="+wk1Data+",backup=0,iothread=1")(lab)
		refused := func(what string, c *Client, strategy cluster.Strategy) {
			t.Helper()
			n := lab.planOf(c, "wk1", planning.Policy{})
			require(t, len(n.Refused) == 1 && strings.HasSuffix(n.Refused[0], want) && n.Strategy == strategy,
				"%s: planned as %q, refused %q", what, n.Strategy, n.Refused)
		}
		files := lab.keptConfigs()
		files.set(t, "wk1", noReboot)
		n := lab.planOf(files.user(lab, firstRun), "wk1", planning.Policy{})
		require(t, n.Strategy == cluster.ApplyConfig && len(n.Refused) == 0,
			"a configuration without a reboot: planned as %q, refused %q", n.Strategy, n.Refused)
		files = lab.keptConfigs()
		files.set(t, "wk1", needsReboot)
		refused("a configuration with a reboot", files.user(lab, firstRun), cluster.ApplyConfig)
		lab.Patch(sim.PatchedExtension)
		refused("auto", lab.Client(), cluster.Auto)
		lab.inPlace()
		refused("in-place", lab.Client(), cluster.InPlace)
		boots := lab.boots()
		if err := lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()); err == nil || !slices.Equal(boots, lab.boots()) {
			t.Errorf("rolled: %v", err)
		}
		res := diagnosis(t, lab.Client())
		require(t, slices.ContainsFunc(res.Checks, func(c checkup.Check) bool {
			return c.State == checkup.Problem && c.What == "wk1" && strings.HasSuffix(c.Seen, want)
		}), "doctor sees %q", problems(res))
		lab.typed(t, "qm set 9031 --delete scsi5,scsi6")
		n = planOf(t, lab, "wk1")
		require(t, len(n.Refused) == 0, "afterwards: %q", n.Refused)
		lab.RequireIntact()
	})
}

// TestAVolumeInTheSlotsOfTwoVMs: what the printed commands do leaves the volume with the node.
func TestAVolumeInTheSlotsOfTwoVMs(t *testing.T) {
	type story struct {
		bring edit
		want  string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"another VM, off":        {func(l *Lab) { l.DefineVM(9050, map[string]string{"name": "copy", "scsi0": wk1Data}) }, "the volume of scsi1 is also scsi0 of VM 9050: qm set 9050 --delete scsi0"},
		"the other slot is used": {whileOff(change("sata3=" + wk1Data)), "the volume of sata3 is also scsi1: qm set 9031 --delete scsi1"}, // the kernel names sata3 first, so Talos uses that
		"by its path": {
			change("scsi5=/mnt/pve/fast/images/" + strings.TrimPrefix(wk1Data, "fast:")),
			"the volume of scsi1 is also scsi5: qm set 9031 --delete scsi5",
		},
		"detached": {func(l *Lab) { l.World.WriteByHand(wk1, "unused3", wk1Data) }, "the volume of scsi1 is also unused3: qm disk rescan --vmid 9031"},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		s.bring(lab)
		n := planOf(t, lab, "wk1")
		mustBe(t, len(n.Refused) == 1 && strings.HasSuffix(n.Refused[0], s.want+" keeps the volume"),
			"refused %q", n.Refused)
		_, command, _ := strings.Cut(s.want, ": ")
		lab.typed(t, command)
		if n := planOf(t, lab, "wk1"); n.Strategy != cluster.Recreate || len(n.Refused) > 0 {
			t.Errorf("afterwards %s is planned, %q refused", n.Strategy, n.Refused)
		}
		lab.RequireIntact()
	})
}

// typed runs commands on the Proxmox host, and gives machines that they restart the time to be back.
func (l *Lab) typed(t *testing.T, commands string) {
	t.Helper()
	for command := range strings.SplitSeq(commands, " && ") {
		if out, err := l.Shell("pve1").Run(strings.Fields(command)); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	l.World.Delay(3 * time.Minute)
}
