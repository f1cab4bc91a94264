package simtest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rehearse"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// whenScratch has f called when the roll looks whether the first scratch VM's number is free.
func whenScratch(f func(*Lab)) func(*Lab) {
	return func(l *Lab) {
		done := false
		l.Recorder.Hooks(func(call record.Call) error {
			if !done && call.Method == "POST" && call.Params["vmid"] == strconv.Itoa(scratchVM) {
				done = true
				f(l)
			}
			return nil
		}, nil)
	}
}

// TestProvedBeforeTheDelete: what Proxmox would refuse once the node's VM is deleted, a new VM or a storage's
// hand-over, it refuses to scratch VMs before the drain.
func TestProvedBeforeTheDelete(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		bring    func(*Lab)
		want     string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"a create that is refused": {
			cluster.Recreate, whenScratch(func(l *Lab) { l.World.FailNext("qmcreate", "Permission check failed (/mapping/cpu/x, Mapping.Use)") }),
			"Proxmox is to create the VM of wk1 again on pve1, and a scratch VM with its settings could not be made and deleted there",
		},
		"a storage that hands nothing over": {
			cluster.Recreate, func(l *Lab) { l.World.FailNext("qmmove", "storage does not support renaming volumes") },
			"storage fast on pve1 is to hand disks over from one VM to another, and a scratch volume on it did not go there and back",
		},
		"such a storage, reimage": {
			cluster.Reimage, func(l *Lab) { l.World.FailNext("qmmove", "storage does not support renaming volumes") },
			"storage fast on pve1 is to hand disks over from one VM to another, and a scratch volume on it did not go there and back",
		},
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
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireDrift(t, lab, "cp1")
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// scratchCalls are the changes that a roll sent about scratch VMs.
func (l *Lab) scratchCalls(from int) (out []string) {
	for _, call := range l.Recorder.Calls()[from:] {
		if call.Mutation && ofScratch(call) {
			out = append(out, call.Method+" "+call.Path[strings.LastIndex(call.Path, "/")+1:])
		}
	}
	return out
}

// ofScratch says whether a request is about a scratch VM.
func ofScratch(call record.Call) bool {
	id, _ := strconv.Atoi(call.Params["vmid"])
	return strings.Contains(call.Path, "/qemu/909") || id >= scratchVM-9 && id <= scratchVM
}

// TestHandOverIsRemembered: a storage that has handed a volume over is not tried again, unless no journal
// knows; the create is, in each run.
func TestHandOverIsRemembered(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		create := []string{"POST qemu", "PUT config", "DELETE 9099"}
		roll := func(want []string) {
			t.Helper()
			lab.Patch(everywhere)
			before := len(lab.Recorder.Calls())
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
			got := lab.scratchCalls(before)
			require(t, slices.Equal(got, want), "sent %q, want %q", got, want)
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
					if must(t, err); slices.ContainsFunc(rep.Scratch, func(v rehearse.ScratchVerdict) bool { return !v.Removed }) {
						t.Errorf("pruned %+v", rep.Scratch)
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
	for name, c := range map[string]struct {
		bring func(*broken)
		want  string
	}{
		"a create that is refused": {func(b *broken) {
			whenScratch(func(l *Lab) { l.World.FailNext("qmcreate", "Permission check failed (/mapping/cpu/x, Mapping.Use)") })(b.Lab)
		}, "Proxmox is to create the VM of cp1 again on pve1"},
		"a privilege that only the create needs": {func(b *broken) {
			b.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return p == "VM.Config.CPU" })...)
		}, "the Proxmox token lacks privileges: VM.Config.CPU on /vms"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := breakCluster(t, 1)
				vm := b.namedVM("cp1")
				must(t, b.World.PowerOff(vm.ID))
				c.bring(b)
				_, err := b.as(secondRun).Rebuild(t.Context(), b.file)
				b.Recorder.Hooks(nil, nil)
				requireFault(t, err, fault.Refused, c.want)
				now := b.namedVM("cp1")
				require(t, now.ID == vm.ID && now.Config["scsi0"] == vm.Config["scsi0"], "cp1 is %+v, was %+v", now, vm)
				b.World.AddRole("Recast", sim.Privileges()...)
				must(t, errOf(b.as(thirdRun).Rebuild(t.Context(), b.file)))
				b.require(t)
			})
		})
	}
}
