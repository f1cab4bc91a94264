package simtest

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// window is an unfinished hand-over of a disk: Proxmox's worker ends between two of its
// three actions, or the volume is renamed and neither configuration can be written.
type window struct {
	move     int // which of the roll's hand-overs
	stop     world.MoveStage
	crash    bool // the host crashes too
	noQuorum bool // that is why
	journal  bool
}

// The hand-overs of wk1: the EFI variables, the system disk and the data disk are parked,
// the first and the last are returned.
const (
	parksSystem  = 2
	parksData    = 3
	attachesData = 5
)

// beforeMove calls f before the n-th move_disk of one of wk1's disks: scratch VMs hand volumes over, too.
func (l *Lab) beforeMove(n int, f func()) {
	l.beforeNth(n, func(call record.Call) bool {
		return toVM("POST", "/move_disk")(call) &&
			(strings.Contains(call.Path, "/9031/") || call.Params["target-vmid"] == "9031")
	}, f)
}

// beforeNth calls f before a server acts on the n-th call of a kind.
func (l *Lab) beforeNth(n int, is func(record.Call) bool, f func()) {
	var mu sync.Mutex
	seen := 0
	l.Recorder.Hooks(func(call record.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if is(call) {
			if seen++; seen == n {
				f()
			}
		}
		return nil
	}, nil)
}

// interrupt rolls wk1 into the window.
func (w window) interrupt(t *testing.T, lab *Lab) error {
	t.Helper()
	lab.beforeMove(w.move, func() {
		if w.noQuorum {
			lab.World.SetQuorum(false)
			return
		}
		lab.World.StopNextMove(w.stop, w.crash)
	})
	defer lab.Recorder.Hooks(nil, nil)
	c := lab.Client()
	err := c.roll(onlyWorker)(t.Context())
	mustBe(t, err != nil, "the roll succeeded")
	c.Kill()
	if w.noQuorum {
		lab.World.SetQuorum(true)
	}
	lab.World.BootHost("pve1")
	return err
}

// TestCutOffHandOver: a volume that lost its name in a hand-over is found and named again,
// and the roll completes normally. TestMatrix does this in every hand-over of an exchange.
func TestCutOffHandOver(t *testing.T) {
	long(t)
	t.Parallel()
	ref := resumption{strategy: cluster.Recreate, node: "wk1"}.undisturbed(t)
	options := func(window) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, Talos: ref.secrets} }
	eachIn(t, options, map[string]window{
		"park the system disk, after the rename":                   {move: parksSystem, stop: world.AfterRename, journal: true},
		"park the data disk, after the rename, the host crashes":   {move: parksData, stop: world.AfterRename, crash: true},
		"park the data disk, after the source":                     {move: parksData, stop: world.AfterSource, journal: true},
		"attach the data disk, after the rename":                   {move: attachesData, stop: world.AfterRename},
		"attach the data disk, after the source, the host crashes": {move: attachesData, stop: world.AfterSource, crash: true, journal: true},
		"park the data disk, no quorum":                            {move: parksData, noQuorum: true, journal: true},
		"attach the data disk, no quorum":                          {move: attachesData, noQuorum: true, journal: true},
	}, func(t *testing.T, lab *Lab, w window) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		requireError(t, w.interrupt(t, lab), "hand ")
		mustBe(t, len(lab.strays()) == 1, "without a name: %q", lab.strays())
		lab.waitReady(t)
		if !w.journal {
			lab.loseJournal()
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.RequireIntact()
		requireSame(t, ref.dump, lab.settledDump(), "the world differs from an undisturbed one")
		lab.requireKept(1)
	})
}

// waitReady waits until the control plane is back after its host was down.
func (l *Lab) waitReady(t *testing.T) {
	t.Helper()
	for {
		node := l.kubeNode("cp1")
		if isReady(node) {
			if _, err := l.Client().Plan(t.Context(), planning.Policy{}); err == nil {
				return
			}
		}
		time.Sleep(10 * time.Second)
	}
}

// stray makes a volume with a VM's number that no configuration names.
func (l *Lab) stray(t *testing.T, vmid int) string {
	t.Helper()
	return valueOf(l.World.Alloc(sim.DiskStorage, "pve1", vmid, 1<<30, world.NewMedia(nil)))(t)
}

// Older unnamed volumes are distinguished; one that appeared meanwhile is not, and a person must decide.
func TestHandOverWithStrays(t *testing.T) {
	type story struct {
		window
		fresh string // where a volume appears meanwhile; "": nowhere
	}
	eachLong(t, oneWorker(), map[string]story{
		"none, but some from long ago": {window{move: parksData, stop: world.AfterRename}, ""},
		"at the target":                {window{move: parksData, stop: world.AfterSource, journal: true}, "target"},
		"at the source":                {window{move: parksData, stop: world.AfterSource}, "source"},
		"beside a dangling name":       {window{move: parksData, stop: world.AfterRename}, "source"},
		"under the old name":           {window{move: parksData, stop: world.AfterRename, journal: true}, "old name"},
		"at the target, on attaching":  {window{move: attachesData, stop: world.AfterRename}, "target"},
		"at the source, on attaching":  {window{move: attachesData, stop: world.AfterSource, journal: true}, "source"},
	}, func(t *testing.T, lab *Lab, c story) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		old := []string{lab.stray(t, 9031), lab.stray(t, 9031)}
		_ = c.interrupt(t, lab)
		if !c.journal {
			lab.loseJournal()
		}
		park := lab.parkingID(t)
		from, to := 9031, park
		if c.move == attachesData {
			from, to = park, 9031
		}
		lost := slices.DeleteFunc(lab.strays(), func(volid string) bool { return slices.Contains(old, volid) })[0]
		strays := len(old)
		switch c.fresh {
		case "source", "target":
			vmid := map[string]int{"source": from, "target": to}[c.fresh]
			requireUndecided(t, lab, to, lost, lab.stray(t, vmid))
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1") // as the hint says
			strays++
		case "old name":
			volid := volidOf(lab, from, "scsi1")
			for lab.stray(t, from) != volid {
				strays++ // lower numbers are free too
			}
			requireUndecided(t, lab, to, lost, volid)
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1")
			// The volume with the old name is under the disk's key on the VM to delete: a person frees it.
			hostsRefused(t, "roll", lab.Client().roll(onlyWorker), " has scsi1 ("+volid+",", "only one of them is the disk")
			all(remove("scsi1"), remove("unused0"))(lab)
		}
		lab.Client().rollTo(t, onlyWorker, "cp1")
		got := lab.strays()
		require(t, len(got) == strays, "strays %q, want %d: none is recast's to free", got, strays)
	})
}

// requireUndecided: the roll names both volumes, says what to do, and changes nothing.
func requireUndecided(t *testing.T, lab *Lab, to int, lost, fresh string) {
	t.Helper()
	before := lab.machinesDump()
	hint := fmt.Sprintf("attach it as scsi1 of VM %d yourself", to)
	hostsRefused(t, "roll", lab.Client().roll(onlyWorker), " volumes could be it: ", lost, fresh, hint)
	requireSame(t, before, lab.machinesDump(), "it changed something")
}

// parkingID is the VM that has wk1's disks now.
func (l *Lab) parkingID(t *testing.T) int {
	t.Helper()
	res := l.status()
	mustBe(t, len(res.Open) == 1, "status %+v", res)
	return int(res.Open[0].Parking)
}

// TestARollNeedsRoomForTheNewDisks: the old system disks stay parked, so a roll without
// space for the new ones does not begin; once prune has freed the older ones it does.
func TestARollNeedsRoomForTheNewDisks(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.Preallocate(sim.DiskStorage)
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.Patch(sim.PatchedExtension)
		for _, s := range lab.World.Storages("pve1") {
			if s.ID == sim.DiskStorage {
				lab.World.SetCapacity(s.ID, s.Used+9<<30)
			}
		}
		before := len(lab.Recorder.Calls())
		const want = "storage fast on pve1 has 9216 MiB free, but a new system disk takes 10 GiB there while the old one stays parked"
		requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "wk1: "+want)
		lab.requireNothingSent(before)
		got := problems(diagnosis(t, lab.Client()))
		require(t, len(got) != 0 && strings.Contains(strings.Join(got, "\n"), "room for system disks on fast of pve1: "+want),
			"doctor says %q", got)
		must(t, errOf(lab.Client().pruneDisks(t.Context(), 0, nil)))
		must(t, lab.as("20000102-0000-feed").roll(onlyWorker)(t.Context()))
		lab.RequireIntact()
	})
}

// A rename that fails on a busy storage is retried, each time after a check whether it has happened.
func TestHandOverOnABusyStorage(t *testing.T) {
	type story struct {
		storage     string
		strategy    cluster.Strategy
		step        string // which waits
		move, times int
		fault       world.RenameFault
	}
	options := func(s story) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, DiskType: s.storage} }
	eachLongIn(t, options, map[string]story{
		"zfs, while parking":                {"zfspool", cluster.Recreate, "take-down/park/scsi1", parksData, 5, world.RenameBusy},
		"zfs, too slow":                     {"zfspool", cluster.Recreate, "take-down/park/scsi0", parksSystem, 1, world.RenameTimeout},
		"zfs, too slow, but it was renamed": {"zfspool", cluster.Recreate, "take-down/park/scsi1", parksData, 1, world.RenameTimeoutDone},
		"ceph, while giving back":           {"rbd", cluster.Recreate, "bring-up/attach/scsi1", attachesData, 3, world.RenameBusy},
		"files, reimage":                    {"dir", cluster.Reimage, "take-down/park/scsi0", 1, 4, world.RenameBusy},
	}, func(t *testing.T, lab *Lab, s story) {
		resumption{strategy: s.strategy}.prepare(lab)
		lab.beforeMove(s.move, func() { lab.World.BusyStorage(sim.DiskStorage, s.times, s.fault) })
		var said []string
		c := lab.Client().hears(notes(s.step, &said))
		must(t, c.roll(onlyWorker)(t.Context()))
		require(t, strings.Contains(strings.Join(said, "\n"), "its storage is busy: tried again for 5m0s at most"),
			"the reason of the wait is not shown: %q", said)
		requireInSync(t, lab, "cp1")
		lab.requireKept(1)
	})
}

// TestHandOverOnAStorageThatStaysBusy: it fails after some minutes with a hint, and the same command continues.
func TestHandOverOnAStorageThatStaysBusy(t *testing.T) {
	o := oneWorker()
	o.DiskType = "zfspool"
	inLongLab(t, o, func(t *testing.T, lab *Lab) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		var since time.Time
		lab.beforeMove(parksData, func() {
			since = time.Now()
			lab.World.BusyStorage(sim.DiskStorage, -1, world.RenameBusy)
		})
		err := lab.Client().roll(onlyWorker)(t.Context())
		took := time.Since(since)
		mustBe(t, fault.CodeOf(err) == fault.StorageBusy && strings.Contains(err.Error(), "dataset is busy"),
			"err = %v, code %s", err, fault.CodeOf(err))
		requireSays(t, strings.Join(fault.Hints(err), "\n"), "lsof", "same command again")
		require(t, took >= 3*time.Minute && took <= 7*time.Minute, "it was tried for %s", took)
		lab.Recorder.Hooks(nil, nil)
		lab.World.NoMoreFailures()
		lab.Client().rollTo(t, onlyWorker, "cp1")
		lab.requireKept(1)
	})
}

// refusedCreate refuses the first scratch VM, when the roll looks whether its number is free.
func refusedCreate(l *Lab) {
	first := func(call record.Call) bool {
		return call.Method == "POST" && call.Params["vmid"] == strconv.Itoa(scratchVM)
	}
	l.beforeNth(1, first, func() { l.World.FailNext("qmcreate", "Permission check failed (/mapping/cpu/x, Mapping.Use)") })
}

// TestProvedBeforeTheDelete: what Proxmox would refuse once the node's VM is deleted, a new VM or a storage's
// hand-over, it refuses to scratch VMs before the drain.
func TestProvedBeforeTheDelete(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		bring    func(*Lab)
		want     string
	}
	const stays = "storage fast on pve1 is to hand disks over from one VM to another, and a scratch volume on it did not go there and back"
	handsNothingOver := func(l *Lab) { l.World.FailNext("qmmove", "storage does not support renaming volumes") }
	eachInLab(t, oneWorker(), map[string]story{
		"a create that is refused": {
			cluster.Recreate, refusedCreate, "Proxmox is to create the VM of wk1 again on pve1, and a scratch VM with its settings could not be made and deleted there",
		},
		"a storage that hands nothing over": {cluster.Recreate, handsNothingOver, stays},
		"such a storage, reimage":           {cluster.Reimage, handsNothingOver, stays},
	}, func(t *testing.T, lab *Lab, s story) {
		strategy(s.strategy)(lab)
		lab.Patch(everywhere)
		s.bring(lab)
		boot, before := lab.bootID("wk1"), len(lab.Recorder.Calls())
		err := lab.Client().roll(onlyWorker)(t.Context())
		lab.Recorder.Hooks(nil, nil)
		requireFault(t, err, fault.Refused, s.want, "no node was touched")
		requireSame(t, boot, lab.bootID("wk1"), "wk1 was restarted (-want +got)")
		lab.requireUntouched(before)
		lab.Client().rollTo(t, onlyWorker, "cp1")
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

func ofScratch(call record.Call) bool {
	id, _ := strconv.Atoi(call.Params["vmid"])
	return strings.Contains(call.Path, "/qemu/909") || id >= scratchVM-9 && id <= scratchVM
}

// A storage that has handed a volume over is not tried again, unless no journal knows; the create is, in each run.
func TestHandOverIsRemembered(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		create := []string{"POST qemu", "PUT config", "DELETE 9099"}
		roll := func(want []string) {
			t.Helper()
			lab.Patch(everywhere)
			before := len(lab.Recorder.Calls())
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
			var got []string
			for _, call := range lab.sent(before, func(c record.Call) bool { return c.Mutation && ofScratch(c) }) {
				got = append(got, call.Method+" "+path.Base(call.Path))
			}
			requireSame(t, want, got, "sent about scratch VMs (-want +got)")
		}
		handOver := []string{"POST qemu", "POST qemu", "POST move_disk", "POST move_disk", "DELETE 9099", "DELETE 9098"}
		roll(slices.Concat(create, handOver))
		roll(create)
		lab.loseJournal()
		roll(slices.Concat(create, handOver))
	})
}

// proving is a roll of wk1 that has not been away yet.
type proving struct {
	*Lab
	boot string
}

// TestProofsKilled kills a roll at the points of its proofs: prune recognises what is left, and the next roll,
// after it or at once, finishes.
func TestProofsKilled(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(s), killGrid[proving]{
			begin: func(t *testing.T) proving {
				lab := New(t, oneWorker())
				strategy(s)(lab)
				lab.Patch(everywhere)
				return proving{lab, lab.bootID("wk1")}
			},
			do: rolls(onlyWorker),
			choose: func(t *testing.T, points []point) []point {
				begin, end := namedPoint(t, points, "journal written plan"), namedPoint(t, points, "journal written hands-over")
				return chosenPoints(t, points[begin.at-1:end.at+1])
			},
			goOn: func(t *testing.T, lab proving, at point) bool {
				require(t, lab.bootID("wk1") == lab.boot, "wk1 was restarted")
				if at.at%3 == 0 {
					rep, err := lab.second().pruneDisks(t.Context(), -1, nil)
					must(t, err)
					for _, v := range rep.Scratch {
						require(t, v.Removed, "not pruned: %+v", v)
					}
					lab.requireNoScratch()
				}
				must(t, lab.second().roll(onlyWorker)(t.Context()))
				return false
			},
			end: func(t *testing.T, lab proving) string {
				lab.requireNoScratch()
				lab.RequireIntact()
				requireDrift(t, lab.Lab, "cp1")
				return ""
			},
		}.killEverywhere)
	}
}

// TestRebuildIsProved: a control plane of a broken cluster is not taken away before Proxmox has shown that it
// creates the new VM, for this token.
func TestRebuildIsProved(t *testing.T) {
	long(t)
	type story struct {
		bring func(*Lab)
		want  string
	}
	eachInBubble(t, map[string]story{
		"a create that is refused": {refusedCreate, "Proxmox is to create the VM of cp1 again on pve1"},
		"a privilege that only the create needs": {func(l *Lab) {
			l.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return p == "VM.Config.CPU" })...)
		}, "the Proxmox token lacks privileges: VM.Config.CPU on /vms"},
	}, func(t *testing.T, c story) {
		b := breakCluster(t, 1)
		vm := b.namedVM("cp1")
		must(t, b.World.PowerOff(vm.ID))
		c.bring(b.Lab)
		_, err := b.as(secondRun).Rebuild(t.Context(), b.file)
		b.Recorder.Hooks(nil, nil)
		requireFault(t, err, fault.Refused, c.want)
		now := b.namedVM("cp1")
		require(t, now.ID == vm.ID && now.Config["scsi0"] == vm.Config["scsi0"], "cp1 is %+v, was %+v", now, vm)
		b.World.AddRole("Recast", sim.Privileges()...)
		must(t, errOf(b.as(thirdRun).Rebuild(t.Context(), b.file)))
		b.require(t)
	})
}
