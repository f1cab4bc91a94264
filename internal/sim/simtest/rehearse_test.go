package simtest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// scratchVM is the VMID that the first scratch VM takes: the last of recast's own.
const scratchVM = 9099

// rehearsing is a client whose roll tests the boot ISOs first.
func (l *Lab) rehearsing() *Client {
	c := l.Client()
	c.Rehearse = new(true)
	return c
}

// rehearse rolls after a rehearsal, and returns the calls that made its first scratch VM, too.
func (l *Lab) rehearse(p planning.Policy) (pipeline.Report, []record.Call) {
	from := len(l.Recorder.Calls())
	rep := l.rehearsing().mustRoll(p)
	return rep, l.sent(from, func(c record.Call) bool { return c.Params["name"] == planning.ScratchName(scratchVM) })
}

func (l *Lab) scratches() []string {
	return some(l.World.VMs(), func(vm world.VM) (string, bool) {
		return vm.Config["name"], strings.HasPrefix(vm.Config["name"], "recast-rehearse-")
	})
}

func (l *Lab) requireUntouched(before int) {
	for _, call := range withoutPulls(changesOfNodes(l.Recorder.Calls()[before:])) {
		require(l.t, strings.Contains(call, "/qemu/"+strconv.Itoa(scratchVM)) ||
			strings.Contains(call, "/qemu/"+strconv.Itoa(scratchVM-1)) || strings.HasSuffix(call, "/qemu"), "%s was sent", call)
	}
	l.requireNoScratch()
}

func (l *Lab) requireNoScratch() {
	requireNone(l.t, l.scratches(), "left")
	requireNone(l.t, l.strays(), "volumes that no configuration names")
	requireNoClaim(l.t.(*testing.T), l)
}

var rehearsedBy = map[string]string{"by ISO": cluster.BootFromISO, "by disk": cluster.BootFromDisk}

// TestRehearse tests one image on two hosts, at the same time, before any node is taken down.
func TestRehearse(t *testing.T) {
	eachLong(t, sim.Options{Workers: 2, Hosts: 2}, rehearsedBy, func(t *testing.T, lab *Lab, boot string) {
		lab.BootsDisks(boot)
		lab.Patch(sim.PatchedExtension)
		var order []string
		rep := lab.rehearsing().hears(func(e step.Event) {
			if e.Status == step.Started && strings.HasPrefix(e.Path, "roll/") && strings.Count(e.Path, "/") == 1 {
				order = append(order, e.Path)
			}
		}).mustRoll(planning.Policy{})
		require(t, len(order) != 0 && order[0] == "roll/rehearse", "order: %q", order)
		requireDrift(t, lab)
		var seen []string
		for _, r := range rep.Rehearsed {
			seen = append(seen, fmt.Sprintf("%s %s %v: %q", r.Host, r.Firmware, r.Nodes, r.Unseen))
			byDisk := boot == cluster.BootFromDisk
			require(t, strings.HasSuffix(r.Disk, ".qcow2") == byDisk && strings.HasSuffix(r.ISO, ".iso") != byDisk,
				"rehearsed ISO %q, disk %q", r.ISO, r.Disk)
		}
		slices.Sort(seen)
		firmware := "OVMF, q35, CPU host"
		if boot == cluster.BootFromDisk {
			firmware += ", disk on scsi (virtio-scsi-single)"
		}
		want := []string{"pve1 " + firmware + ` [wk2]: ""`, "pve2 " + firmware + ` [wk1]: ""`}
		requireSame(t, want, seen, "rehearsed (-want +got)")
		lab.requireNoScratch()
	})
}

// TestRehearseFirmware tests an ISO with a node's firmware, and with every way to find the scratch VM.
func TestRehearseFirmware(t *testing.T) {
	const fixed = "rehearse: {addresses: [127.42.7.251/24], gateway: 127.42.7.1}"
	type story struct {
		bring                 func(*Lab)
		firmware, at, blindly string
	}
	eachLong(t, oneWorker(), map[string]story{
		"SeaBIOS":         {whileOff(remove("bios"), discard("efidisk0")), "SeaBIOS, q35, CPU host", "127.42.7.231", ""},
		"i440fx":          {whileOff(remove("machine"), change("cpu=x86-64-v2-AES")), "OVMF, i440fx, CPU x86-64-v2-AES", "127.42.7.231", ""},
		"a fixed address": {func(l *Lab) { l.setRoll(fixed) }, "OVMF, q35, CPU host", "127.42.7.251", ""},
		"a fixed address in another network": {
			func(l *Lab) { l.setRoll("rehearse: {addresses: [192.0.2.250/24]}") }, "OVMF, q35, CPU host", "127.42.7.231", "",
		},
		"metal has no fixed address": {func(l *Lab) { l.setRoll(fixed); l.lockImages("platform: metal") }, "OVMF, q35, CPU host", "127.42.7.231", ""},
		"nobody can find it": {
			func(l *Lab) {
				l.Replace("schematics/storage.yaml", "      - siderolabs/qemu-guest-agent\n", "")
				l.lockImages("signature: off")
			},
			"OVMF, q35, CPU host", "invalid IP", "the image has no qemu-guest-agent to tell its address, and roll.rehearse.addresses has none for it",
		},
	}, func(t *testing.T, lab *Lab, c story) {
		c.bring(lab)
		lab.Patch(sim.PatchedExtension)
		rep, all := lab.rehearse(onlyWorker)
		mustBe(t, len(rep.Rehearsed) == 1, "rehearsed %+v", rep.Rehearsed)
		made := all[len(all)-1]
		got := rep.Rehearsed[0]
		require(t, got.Firmware == c.firmware && got.Addr.String() == c.at && got.Unseen == c.blindly, "rehearsed %+v", got)
		for key, value := range made.Params {
			require(t, (!strings.HasPrefix(key, "scsi") || key == "scsihw") && !strings.Contains(value, lab.node("wk1").MAC) &&
				!strings.Contains(value, lab.node("wk1").UUID), "the scratch VM has %s: %s", key, value)
		}
		lab.requireNoScratch()
	})
}

// TestRehearsalFails: no node is touched, and nothing of the rehearsal is left.
func TestRehearsalFails(t *testing.T) {
	type story struct {
		bring func(*testing.T, *Lab)
		kind  fault.Kind
		want  string // in the error
	}
	eachLong(t, oneWorker(), map[string]story{
		"the bytes are another ISO's": {func(t *testing.T, l *Lab) {
			must(t, l.Client().Publish(t.Context()))
			l.SwapISOs()
		}, fault.Refused, "it booted v1.13.9 with schematic"},
		"the bytes are another disk image's": {func(t *testing.T, l *Lab) {
			l.BootsDisks("disk")
			must(t, l.Client().Publish(t.Context()))
			l.swapImages("local")
		}, fault.Refused, ".qcow2 on pve1: it booted v1.13.9 with schematic"},
		"no room for its disk, although the plan saw it": {func(_ *testing.T, l *Lab) {
			l.BootsDisks("disk")
			l.Recorder.Hooks(nil, func(call record.Call) {
				if strings.HasSuffix(call.Path, "/nodes/pve1/status") {
					l.World.FillStorage(sim.DiskStorage)
				}
			})
		}, fault.Refused, "storage fast on pve1 has no room for the drives of a scratch VM"},
		"it hangs": {func(_ *testing.T, l *Lab) {
			l.Silence(func(r talosapi.Request) bool { return r.VMID == scratchVM })
		}, fault.Failed, "scratch VM 9099 in maintenance mode: gave up after 2m0s; last seen: "},
		"it does not start": {func(_ *testing.T, l *Lab) { l.World.FailNext("qmstart", "start failed: QEMU exited with code 1") }, fault.Failed, "QEMU exited with code 1"},
		"it is not made, although the space was checked": {func(_ *testing.T, l *Lab) {
			l.Recorder.Hooks(nil, func(call record.Call) {
				if strings.HasSuffix(call.Path, "/nodes/pve1/status") {
					l.World.FailNext("qmcreate", "no space left")
				}
			})
		}, fault.Failed, "create scratch VM 9099 on pve1"},
		"the address of a stranger": {func(t *testing.T, l *Lab) {
			l.setRoll("rehearse: {addresses: [127.42.7.251/24]}")
			stranger := valueOf(l.network.Listen("127.42.7.251:9999"))(t)
			t.Cleanup(func() { must(t, stranger.Close()) })
		}, fault.Refused, "127.42.7.251 is to be the address of a scratch VM, and a host that refuses connections to 127.42.7.251:50000 has it"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		c.bring(t, lab)
		boot, before := lab.bootID("wk1"), len(lab.Recorder.Calls())
		rep, err := lab.rehearsing().Roll(t.Context(), onlyWorker)
		lab.Silence(nil)
		require(t, fault.KindOf(err) == c.kind && strings.Contains(message(err), c.want) && len(fault.Hints(err)) != 0,
			"kind %d: %v\nhints %q", fault.KindOf(err), err, fault.Hints(err))
		require(t, len(rep.Rehearsed) == 0 && lab.bootID("wk1") == boot,
			"rehearsed %+v, boot of wk1 %s, before it %s", rep.Rehearsed, lab.bootID("wk1"), boot)
		lab.requireUntouched(before)
	})
}

// TestRehearsalKilled kills a roll at points of its rehearsal: the next one, without one, removes its leftovers.
func TestRehearsalKilled(t *testing.T) {
	long(t)
	for name, boot := range rehearsedBy {
		t.Run(name, killGrid[*Lab]{
			begin: func(t *testing.T) *Lab {
				lab := New(t, oneWorker())
				lab.BootsDisks(boot)
				lab.Patch(sim.PatchedExtension)
				return lab
			},
			do: func(ctx context.Context, c *Client) error {
				c.Rehearse = new(true)
				return c.roll(onlyWorker)(ctx)
			}, journal: true,
			choose: func(t *testing.T, points []point) []point {
				last := slices.IndexFunc(points, func(p point) bool {
					return strings.Contains(p.name, "DELETE") && strings.Contains(p.name, strconv.Itoa(scratchVM))
				})
				first := slices.IndexFunc(points, func(p point) bool {
					return strings.Contains(p.name, "POST") && strings.HasSuffix(p.name, "/qemu")
				})
				mustBe(t, first >= 0 && last >= first, "points %q", points)
				return everyPoint(t, points[first:last+2])
			},
			then: rollsAs(secondRun, policyFor("wk1")),
			end: func(t *testing.T, lab *Lab) string {
				lab.requireNoScratch()
				lab.RequireIntact()
				return ""
			},
		}.killEverywhere)
	}
}

// TestCtrlCInARehearsal: its VM is removed and no node is touched, whatever else Proxmox does for us meanwhile.
func TestCtrlCInARehearsal(t *testing.T) {
	calls := map[string]string{
		"import": "/nodes/pve1/qemu", "start": "/9099/status/start", "seen": "/9099/agent/network-get-interfaces",
	}
	type story struct {
		at    string
		twice bool
	}
	eachLong(t, oneWorker(), storiesOf(
		story{"import", false}, story{"import", true}, story{"start", false}, story{"start", true},
		story{"seen", false}, story{"seen", true},
	), func(t *testing.T, lab *Lab, s story) {
		if s.at == "import" {
			lab.BootsDisks("disk")
		}
		lab.Patch(sim.PatchedExtension)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := lab.rehearsing()
		lab.DefineVM(777, map[string]string{"memory": "512"}) // it has no system
		must(t, lab.World.PowerOn(777))
		var pressed time.Time
		lab.Recorder.Hooks(nil, func(call record.Call) {
			another := s.at == "import" && call.Params["name"] != planning.ScratchName(scratchVM)
			if !strings.HasSuffix(call.Path, calls[s.at]) || another || !pressed.IsZero() {
				return
			}
			pressed = time.Now()
			token, _, _ := strings.Cut(lab.Token(), "=")
			must(t, errOf(lab.World.Shutdown(token, "pve1", world.ShutdownRequest{ID: 777, Timeout: 10 * time.Minute})))
			c.Runner.Stop()
			if s.twice {
				cancel()
			}
		})
		before := len(lab.Recorder.Calls())
		err := c.roll(planning.Policy{})(ctx)
		lab.Recorder.Hooks(nil, nil)
		require(t, fault.KindOf(err) == fault.Interrupted && !pressed.IsZero(), "kind %d: %v", fault.KindOf(err), err)
		took := time.Since(pressed)
		require(t, took <= 30*time.Second, "it took %s to end", took)
		lab.requireUntouched(before)
	})
}

// TestRehearseBoth: a node boots a prepared disk and another one the ISO: both are tried out on their host.
func TestRehearseBoth(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.BootsDisks("auto")
		lab.setRoll("rehearse: {addresses: [127.42.7.251/24]}")
		whileOff(remove("bios"), discard("efidisk0"))(lab) // wk1
		lab.Patch(everywhere)
		rep, all := lab.rehearse(policyFor("wk1", "wk2"))
		made := some(all, func(call record.Call) (string, bool) {
			p := call.Params
			disk, medium := strings.Contains(p["scsi0"], ",import-from=local:import/"), strings.Contains(p["ide2"], ".iso")
			return fmt.Sprintf("%s, scsi0 %t, medium %t, %s", p["boot"], disk, medium, p["ipconfig0"]), p["ipconfig0"] != "" // it boots
		})
		slices.Sort(made)
		requireSame(t, []string{
			"order=ide2, scsi0 false, medium true, ip=127.42.7.251/24",
			"order=scsi0, scsi0 true, medium false, ip=127.42.7.251/24",
		}, made, "made (-want +got)")
		var seen []string
		for _, r := range rep.Rehearsed {
			seen = append(seen, fmt.Sprintf("%s %s, disk %t, at %s: %q", r.Nodes, r.Firmware, r.Disk != "", r.Addr, r.Unseen))
		}
		slices.Sort(seen)
		requireSame(t, []string{
			`[wk1] SeaBIOS, q35, CPU host, disk false, at 127.42.7.251: ""`,
			`[wk2] OVMF, q35, CPU host, disk on scsi (virtio-scsi-single), disk true, at 127.42.7.251: ""`,
		}, seen, "rehearsed (-want +got)")
		lab.requireNoScratch()
	})
}

// TestRehearseADiskOn: a prepared disk is tried out on the bus of the node's system disk.
func TestRehearseADiskOn(t *testing.T) {
	o := func(bus string) sim.Options { return sim.Options{Workers: 1, DiskBus: bus} }
	eachLongIn(t, o, storiesOf("virtio", "sata"), func(t *testing.T, lab *Lab, bus string) {
		lab.BootsDisks("disk")
		lab.Patch(everywhere)
		rep, all := lab.rehearse(onlyWorker)
		made := all[len(all)-1]
		require(t, len(rep.Rehearsed) == 1 && rep.Rehearsed[0].Unseen == "" &&
			strings.Contains(made.Params[bus+"0"], ",import-from="), "rehearsed %+v, made %v", rep.Rehearsed, made.Params)
		lab.requireNoScratch()
	})
}

// TestRehearsalOfADiskLost: Proxmox's answer to every k-th change is lost, that to the import too.
func TestRehearsalOfADiskLost(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf[int64](1, 2, 3), func(t *testing.T, lab *Lab, k int64) {
		lab.BootsDisks("disk")
		lab.Patch(everywhere)
		lost := lab.loseEvery(k)
		rep, err := lab.rehearsing().Roll(t.Context(), onlyWorker)
		lab.Recorder.Hooks(nil, nil)
		mustBe(t, err == nil && len(rep.Rehearsed) == 1 && lost.Load() >= 3, "%+v, %d lost, %v", rep, lost.Load(), err)
		lab.requireNoScratch()
	})
}

// TestRehearsalOfADiskLate: the scratch VM that a killed run had asked for is made, with its disk, while
// the next run makes its own one, or starts it. Whoever comes after that deletes what is left.
func TestRehearsalOfADiskLate(t *testing.T) {
	makes := withParam("/qemu", "import-from=")
	type story struct {
		then func(record.Call) bool
		left int
	}
	eachLong(t, oneWorker(), map[string]story{
		"at once":      {makes, 1},
		"then a start": {toVM("POST", "/qemu/9099/status/start"), 0},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks("disk")
		lab.patch(everywhere, "rehearse: {enabled: true}")
		x := lab.rollKilledBy(makes, onlyWorker)
		x.deliverBefore(s.then, 0)
		must(t, lab.second().roll(onlyWorker)(t.Context()))
		x.deliver()
		lab.Recorder.Hooks(nil, nil)
		left := lab.scratches()
		require(t, x.said != "" && len(left) == s.left, "left %q, late %q", left, x.said)
		must(t, errOf(lab.second().pruneDisks(t.Context(), -1, nil)))
		lab.requireNoScratch()
	})
}

func (l *Lab) leaveScratch(t *testing.T) {
	l.Patch(sim.PatchedExtension)
	c := l.rehearsing()
	c.killedAt(t, onServer("/9099/status/start POST"), c.roll(onlyWorker))
	left := l.scratches()
	mustBe(t, len(left) == 1, "left: %q", left)
}

// TestPruneScratchVMs: a killed run's are removed even with nothing to roll; until then doctor and plan report them.
func TestPruneScratchVMs(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		second := lab.second()
		warned := slices.ContainsFunc(diagnosis(t, second).Checks, func(c checkup.Check) bool {
			return c.What == "VM 9099" && c.State == checkup.Warning && strings.Contains(strings.Join(c.Remedy, ""), "recast prune deletes it")
		})
		require(t, warned, "doctor says nothing of it")
		inSync := policyFor("cp1")
		plan := valueOf(second.Plan(t.Context(), inSync))(t)
		require(t, len(plan.Scratch) == 0 && strings.Contains(strings.Join(plan.Warn, ""), `VM 9099 "recast-rehearse-9099" on pve1, which run`),
			"planned to clear %v, warned %q", plan.Scratch, plan.Warn)
		must(t, second.roll(inSync)(t.Context()))
		left := lab.scratches()
		mustBe(t, len(left) == 1, "left: %q", left)
		asked := 0
		rep, err := second.pruneDisks(t.Context(), -1, func(rep pipeline.PruneReport) { asked = len(rep.GoingScratch()) })
		require(t, err == nil && asked == 1 && len(rep.Scratch) == 1 && rep.Scratch[0].Removed,
			"asked for %d, report %+v, %v", asked, rep.Scratch, err)
		lab.requireNoScratch()
	})
}

// TestAChangedScratchVMIsKept once it has something that recast did not make: roll and prune say why.
func TestAChangedScratchVMIsKept(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		lab.EditVM(scratchVM, "scsi5", "fast:3,serial=someone")
		const why = "is not a drive that it was created with"
		requireRefused(t, lab.second().roll(onlyWorker)(t.Context()), why)
		rep, err := lab.second().pruneDisks(t.Context(), -1, func(pipeline.PruneReport) { t.Error("it asks, though nothing goes") })
		require(t, err == nil && len(rep.Scratch) == 1 && strings.Contains(strings.Join(rep.Scratch[0].Keep, ""), why),
			"report %+v, %v", rep.Scratch, err)
		left := lab.scratches()
		require(t, len(left) == 1, "left: %q", left)
	})
}

// TestPlanOfARehearsal: a saved plan is rolled with the rehearsals that it lists, whatever happened to its VMs.
func TestPlanOfARehearsal(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		must(t, lab.Client().Publish(t.Context()))
		planner, only := lab.second(), onlyWorker
		without := valueOf(planner.Plan(t.Context(), only))(t)
		require(t, len(without.Trials) == 0 && len(without.Scratch) == 1, "trials %v, %v", without.Trials, without.Scratch)
		planner.Rehearse = new(true)
		plan := valueOf(planner.Plan(t.Context(), only))(t)
		seen := ofEach(plan.Scratch, func(s planning.LeftScratch) string { return fmt.Sprintf("%d %s", s.VMID, s.Host) })
		for _, r := range plan.Trials {
			seen = append(seen, fmt.Sprintf("%s %s %s %v %t", r.Host, r.Firmware, r.Schematic, r.Nodes, strings.HasSuffix(r.ISO, ".iso")))
		}
		requireSame(t, []string{"9099 pve1", "pve1 OVMF, q35, CPU host storage [wk1] true"}, seen, "planned (-want +got)")
		roller := lab.second()
		roller.Saved = lab.reread(plan)
		must(t, errOf(lab.second().pruneDisks(t.Context(), -1, nil)))
		rep := valueOf(roller.Roll(t.Context(), planning.Policy{}))(t)
		require(t, len(rep.Rehearsed) == 1 && rep.Plan.ID == plan.ID, "%+v by %s of %s", rep.Rehearsed, rep.Plan.ID, plan.ID)
		lab.requireNoScratch()
	})
}

// TestPrepared: the new system disk is made from the disk image while the node serves. Nothing is installed.
func TestPrepared(t *testing.T) {
	type story struct {
		node, boot string
		strategy   cluster.Strategy
		options    sim.Options
	}
	eachLongIn(t, func(s story) sim.Options { return s.options }, map[string]story{
		"recreate a worker":        {"wk1", "disk", cluster.Recreate, sim.Options{Workers: 1}},
		"reimage a worker":         {"wk1", "auto", cluster.Reimage, sim.Options{Workers: 1}},
		"a worker of a data VM":    {"wk1", "disk", cluster.Recreate, sim.Options{Workers: 1, Holder: true}},
		"recreate a control plane": {"cp2", "disk", cluster.Recreate, sim.Options{ControlPlanes: 3}},
		"virtio":                   {"wk1", "disk", cluster.Recreate, sim.Options{Workers: 1, DiskBus: "virtio"}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks(s.boot)
		lab.patch(everywhere, "strategy: "+string(s.strategy))
		before := lab.Disks()
		var order []string
		c := lab.Client().hears(func(e step.Event) {
			if done := path.Base(e.Path); e.Status == step.Done && (done == "prepare-disk" || done == "drain") {
				order = append(order, done)
			}
		})
		n := c.mustRoll(policyFor(s.node)).Plan.Nodes[0]
		requireSame(t, []string{"prepare-disk", "drain"}, order, "order (-want +got)")
		require(t, n.Strategy == s.strategy && strings.HasSuffix(n.Prepared, ".qcow2"),
			"planned: %s, %q", n.Strategy, n.Prepared)
		for _, call := range lab.Recorder.Calls() {
			for key, value := range call.Params {
				require(t, !strings.Contains(value, ".iso,media=cdrom"), "%s %s: %s=%s", call.Method, call.Path, key, value)
			}
		}
		_, there := lab.vmOf(s.node).Config["ide2"]
		require(t, there, "its CD drive is gone")
		lab.requireRolledFrom(t, before)
		lab.requireKept(1)
		require(t, lab.machine(s.node).FromImage && !lab.machine("cp1").FromImage, "not only %s is of an image", s.node)
	})
}

// TestPreparedAnotherEntry: the EFI variables go on to name the boot entry of the system before, which
// the new disk does not have. Nothing takes it for an upgrade that waits for a reboot, and the next
// installer writes another, even if that has the same name.
func TestPreparedAnotherEntry(t *testing.T) {
	eachLong(t, sim.Options{Workers: 1, TalosVersion: talos12, NextTalos: sim.TalosVersion}, map[string]string{"of another version": "talos-v1.12.6.efi", "of the same version": "talos-v1.13.9~1.efi"}, func(t *testing.T, lab *Lab, gone string) {
		now, runs := cluster.InPlace, 0
		next := func() *Client { runs++; return lab.as(fmt.Sprintf("20000101-0000-%04x", runs)) }
		lab.setRoll("strategy: " + string(now))
		roll := func(strategy cluster.Strategy) planning.NodePlan {
			lab.Replace("recast.yaml", "strategy: "+string(now), "strategy: "+string(strategy))
			now = strategy
			rep := next().mustRoll(onlyWorker)
			requireDrift(t, lab, "cp1")
			return rep.Plan.Nodes[0]
		}
		requireGone := func(when, want string) {
			got := lab.kubeNode("wk1").Annotations["recast.dev/booted"]
			require(t, want == "" && !strings.Contains(got, "gone") || want != "" && got == `{"gone":"`+want+`"}`,
				"%s: %s", when, got)
		}
		lab.wantTalos(talos12, sim.TalosVersion)
		if strings.Contains(gone, "v1.13.9") {
			roll(cluster.InPlace)
			lab.Patch(everywhere)
			roll(cluster.InPlace)
			requireGone("upgraded in place", "")
			lab.Patch(everywhere)
		}
		lab.BootsDisks("disk")
		n := roll(cluster.Recreate)
		require(t, n.Prepared != "", "not prepared: %q", n.Notes)
		requireGone("boots a prepared disk", gone)
		lab.talosctl("wk1", func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
		time.Sleep(5 * time.Minute)
		requireDrift(t, lab, "cp1")
		lab.Patch(everywhere)
		roll(cluster.Recreate)
		must(t, next().goBack("wk1")(t.Context())) // the entry that Talos says it ran is not that of the disk
		requireGone("is back on its prepared disk", gone)
		roll(cluster.InPlace)
		requireGone("upgraded in place after that", "")
	})
}

// measuredTimes are those of a real machined under emulation: maintenance mode 42 s after power on, a
// reboot 38 s after its configuration, and the Node Ready 66 s later, 5 s of which are the kubelet's.
func measuredTimes() talosapi.Times {
	return talosapi.Times{
		Firmware: 12 * time.Second, Boot: 30 * time.Second, Pull: 16 * time.Second, Copy: 16 * time.Second, Leave: 4 * time.Second, Services: 31 * time.Second,
	}
}

// TestPreparedOutage: from the stop of its VM until it is healthy, such a node is away for 0.6 times as long at most.
func TestPreparedOutage(t *testing.T) {
	long(t)
	away := func(t *testing.T, boot string) (away time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			lab := New(t, sim.Options{Workers: 1, Times: measuredTimes()})
			lab.BootsDisks(boot)
			lab.Patch(sim.PatchedExtension)
			var stopped time.Time
			lab.Client().hears(func(e step.Event) {
				switch {
				case strings.HasSuffix(e.Path, "/take-down/stop") && e.Status == step.Started:
					stopped = time.Now()
				case strings.HasSuffix(e.Path, "/wait-healthy") && strings.Contains(e.Text, cluster.Settling) && away == 0:
					away = time.Since(stopped)
				}
			}).mustRoll(onlyWorker)
		})
		return away
	}
	iso, disk := away(t, cluster.BootFromISO), away(t, cluster.BootFromDisk)
	t.Logf("away for %s by the ISO, and for %s by a prepared disk: %.2f times", iso, disk, float64(disk)/float64(iso))
	require(t, disk != 0 && float64(disk) <= 0.6*float64(iso), "%s by a prepared disk, %s by the ISO", disk, iso)
}

// TestPreparedKilled: whoever goes on, or cancels, ends as always, and prune frees every disk that was not used.
func TestPreparedKilled(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(s), killGrid[*Lab]{
			begin: func(t *testing.T) *Lab {
				lab := New(t, sim.Options{Workers: 1})
				lab.BootsDisks("disk")
				lab.patch(sim.PatchedExtension, "strategy: "+string(s))
				return lab
			},
			do: rolls(policyFor("wk1")), choose: chosenPoints, journal: true,
			goOn: func(t *testing.T, lab *Lab, at point) bool {
				if at.at%3 == 0 {
					if _, err := lab.Client().Recover(t.Context(), "wk1"); err == nil {
						t.Attr("sum:put-back", "1")
						lab.requireServing("wk1")
					}
				}
				must(t, lab.second().roll(policyFor("wk1"))(t.Context()))
				return false
			},
			end: func(t *testing.T, lab *Lab) string {
				requireInSync(t, lab)
				lab.requireServing("wk1")
				lab.requireKept(1)
				return ""
			},
		}.killEverywhere)
	}
}

func withParam(path, value string) func(record.Call) bool {
	return func(call record.Call) bool {
		has := func(is string) bool { return strings.Contains(is, value) }
		return call.Proto == "proxmox" && call.Mutation && strings.HasSuffix(call.Path, path) &&
			slices.ContainsFunc(slices.Collect(maps.Values(call.Params)), has)
	}
}

// TestPreparedLate: what a killed run had sent for a prepared disk is processed while the next one is at work.
func TestPreparedLate(t *testing.T) {
	type story struct {
		strategy   cluster.Strategy
		held, then func(record.Call) bool
	}
	imports, grows, given := withParam("/config", "import-from="), withParam("/resize", "scsi"), withParam("/move_disk", "scsi29")
	moves, starts := withParam("/move_disk", "scsi0"), toVM("POST", "/qemu/9031/status/start")
	eachLong(t, oneWorker(), map[string]story{
		"the import, at once":      {cluster.Recreate, imports, imports},
		"the import, then a move":  {cluster.Recreate, imports, moves},
		"the import, then a start": {cluster.Recreate, imports, starts},
		"the import of a reimage":  {cluster.Reimage, imports, starts},
		"its growth, then a move":  {cluster.Recreate, grows, moves},
		"the disk, at once":        {cluster.Recreate, given, given},
		"the disk, then a start":   {cluster.Recreate, given, starts},
		"the disk of a reimage":    {cluster.Reimage, given, starts},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks("disk")
		lab.patch(sim.PatchedExtension, "strategy: "+string(s.strategy))
		before := lab.Disks()
		x := lab.rollKilledBy(s.held, planning.Policy{})
		x.deliverBefore(s.then, 0)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		x.deliver()
		lab.Recorder.Hooks(nil, nil)
		require(t, x.said != "", "nothing came late")
		requireInSync(t, lab)
		lab.requireRolledFrom(t, before)
		lab.requireKept(1)
	})
}

// TestPreparedGone: someone takes the prepared disk away while the node is down: the old system disk comes back.
func TestPreparedGone(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.BootsDisks("disk")
		lab.Patch(sim.PatchedExtension)
		lab.Client().rollKilled(moment{server: "/qemu/9031 DELETE"}, planning.Policy{})
		park := lab.parkingID(t)
		lab.EditVM(park, "protection", "0")
		lab.configure(world.ChangeRequest{ID: park, Delete: []string{"scsi29"}})
		requireFault(t, lab.second().roll(planning.Policy{})(t.Context()), fault.Refused, "scsi29", "recast undo wk1")
		must(t, errOf(lab.second().Recover(t.Context(), "wk1")))
		lab.requireServing("wk1")
	})
}
