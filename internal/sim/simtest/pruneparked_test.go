package simtest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// prune is recast prune --yes.
func (c *Client) prune(ctx context.Context, o pipeline.PruneOptions) (pipeline.PruneReport, error) {
	if o.Confirm == nil {
		o.Confirm = func(pipeline.PruneReport) (bool, error) { return true, nil }
	}
	o.Holder, o.Dead = claim.Holder{Host: "test", Boot: "b", PID: c.pid, Start: "s"}, c.lab.isKilled
	return connected(ctx, c, func(s *session) (pipeline.PruneReport, error) {
		if o.Only == pipeline.PruneMirror {
			o.Mirror = s.images.Registry.(*registry.Client)
		}
		px := s.machines.Proxmox.(*pve.Client)
		return pipeline.Prune(ctx, s.project, px, px, &step.Runner{Emit: c.emit}, o)
	})
}

// pruneDisks is recast prune --only disks --yes; keep < 0: as in roll.keepDisks. confirm
// sees what a person would be asked about; it may be nil.
func (c *Client) pruneDisks(ctx context.Context, keep int, confirm func(pipeline.PruneReport)) (pipeline.PruneReport, error) {
	o := pipeline.PruneOptions{Only: pipeline.PruneDisks}
	if keep >= 0 {
		o.KeepDisks = &keep
	}
	if confirm != nil {
		o.Confirm = func(rep pipeline.PruneReport) (bool, error) { confirm(rep); return true, nil }
	}
	return c.prune(ctx, o)
}

// parkOld makes the parking VM of a node with an old system disk of each of the runs, as
// finished rolls would leave it.
func (l *Lab) parkOld(id int, node string, runs ...string) {
	l.t.Helper()
	l.DefineVM(id, map[string]string{"name": "recast-parking-" + node, "memory": "16", "protection": "1", "onboot": "0"})
	rec := parking.Record{Cluster: sim.ClusterName, Node: node, Run: runs[len(runs)-1], VMID: 9031, UUID: "11111111-1111-4111-8111-111111111111", VMName: node}
	for i, run := range runs {
		key := "scsi" + strconv.Itoa(30-i)
		l.EditVM(id, key, sim.DiskStorage+":1,backup=0,serial="+run)
		_, options, _ := strings.Cut(l.vmConfig(id)[key], ",")
		kept := slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "backup=0" })
		rec.Kept = append(rec.Kept, parking.KeptDisk{Key: key, Run: run, Slot: "scsi0", Options: strings.Join(kept, ","), Talos: "v1.13.9"})
	}
	text, err := rec.Description()
	must(l.t, err)
	l.EditVM(id, "description", text)
}

// vmConfig is a VM's configuration; nil if there is none.
func (l *Lab) vmConfig(id int) map[string]string {
	for _, vm := range l.World.VMs() {
		if vm.ID == id {
			return vm.Config
		}
	}
	return nil
}

// diskVolumes are the volids on the disk storage of pve1.
func (l *Lab) diskVolumes() []string {
	l.t.Helper()
	infos, err := l.World.Volumes(sim.DiskStorage, "pve1")
	must(l.t, err)
	var out []string
	for _, i := range infos {
		out = append(out, i.Volid)
	}
	slices.Sort(out)
	return out
}

// parkingOf is the number of a node's parking VM; 0 if it has none.
func (l *Lab) parkingOf(node string) int {
	for _, vm := range l.World.VMs() {
		if vm.Config["name"] == "recast-parking-"+node {
			return vm.ID
		}
	}
	return 0
}

// TestCrashPrune kills a prune at each change that it makes, and runs it again.
func TestCrashPrune(t *testing.T) {
	long(t)
	t.Parallel()
	var points []point
	var want string
	var secrets *talosapi.Cluster
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, oneWorker())
		points, want = lab.prunedKilledAt(t, point{})
		secrets = lab.Talos
	})
	if len(points) < 8 { // claim, for each of two disks: lift, free, record; lift, delete; claim
		t.Fatalf("an undisturbed prune makes only the changes %q", points)
	}
	expectKills(t, len(points))
	for _, at := range points {
		t.Run(strconv.Itoa(at.at)+" "+at.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := oneWorker()
				o.Talos = secrets
				if _, got := New(t, o).prunedKilledAt(t, at); got != want {
					t.Errorf("the world differs from an undisturbed one (-want +got):\n%s", cmp.Diff(want, got))
				}
			})
		})
	}
}

// prunedKilledAt prunes the disks of a node that is no longer configured, and one of a
// node that is.
func (l *Lab) prunedKilledAt(t *testing.T, at point) (points []point, dump string) {
	t.Helper()
	l.parkOld(9040, "wk1", firstRun, secondRun)
	l.parkOld(9041, "wk9", firstRun)
	prunes := func(ctx context.Context, c *Client) error { return errOf(c.pruneDisks(ctx, -1, nil)) }
	if at != (point{}) {
		l.diesAt(t, at, prunes)
	}
	points, _ = l.finish(t, prunes)
	requireNoClaim(t, l)
	l.requireKept(1)
	l.RequireIntact()
	if l.parkingOf("wk9") != 0 || l.vmConfig(9040)["protection"] != "1" {
		t.Errorf("parking VM of wk9: %d; that of wk1: %v", l.parkingOf("wk9"), l.vmConfig(9040))
	}
	return points, l.settledDump()
}

// TestPruneLooksAgain: any change between the question and the answer stops it; only what
// was shown is freed.
func TestPruneLooksAgain(t *testing.T) {
	long(t)
	const parkingID = 9040
	type story struct {
		edit func(t *testing.T, lab *Lab)
		text string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"another volume under the key": {func(t *testing.T, lab *Lab) {
			lab.EditVM(parkingID, "protection", "0")
			lab.EditVM(parkingID, "scsi30", sim.DiskStorage+":1,backup=0,serial="+firstRun)
		}, "as shown: it is not freed"},
		"another VM names it": {func(t *testing.T, lab *Lab) {
			lab.DefineVM(9050, map[string]string{"name": "thief", "memory": "512"})
			lab.EditVM(9050, "scsi0", volidOf(lab, parkingID, "scsi30"))
		}, `VM 9050 "thief" on pve1 refers to it as well: it stays`},
		"no quorum": {func(t *testing.T, lab *Lab) { lab.World.SetQuorum(false) }, ""},
	}, func(t *testing.T, lab *Lab, tc story) {
		lab.parkOld(parkingID, "wk1", firstRun, secondRun)
		var before []string
		rep, err := lab.Client().pruneDisks(t.Context(), 1, func(pipeline.PruneReport) {
			tc.edit(t, lab)
			before = lab.diskVolumes()
		})
		lab.World.SetQuorum(true)
		if err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("error %v, want %q", err, tc.text)
		}
		if len(rep.GoingDisks()) != 1 || rep.GoingDisks()[0].Removed {
			t.Errorf("report %+v", rep)
		}
		if diff := cmp.Diff(before, lab.diskVolumes()); diff != "" {
			t.Errorf("volumes changed:\n%s", diff)
		}
		lab.RequireIntact()
	})
}

// TestPruneLeavesTheUnknown: a drive that is in no record keeps its parking VM, and so
// does an unnamed volume.
func TestPruneLeavesTheUnknown(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.parkOld(9040, "wk1", firstRun)
		lab.EditVM(9040, "scsi3", sim.DiskStorage+":1,serial=mine")
		lab.parkOld(9041, "wk9", firstRun)
		lost, err := lab.World.AllocDisk("", "pve1", world.AllocRequest{Storage: sim.DiskStorage, VMID: 9041, Name: "vm-9041-disk-7.raw", Bytes: 1 << 30})
		must(t, err)
		rep, err := lab.Client().pruneDisks(t.Context(), 0, nil)
		must(t, err)
		var why []string
		for _, v := range rep.VMs {
			why = append(why, strings.Join(v.Keep, "; "))
		}
		want := []string{
			"scsi3 (" + volidOf(lab, 9040, "scsi3") + ") is in no record of recast: not ours, look at it",
			lost + " carries its number and no configuration names it: look at it (qm disk rescan --vmid 9041)",
		}
		if diff := cmp.Diff(want, why); diff != "" {
			t.Errorf("why the parking VMs stay (-want +got):\n%s", diff)
		}
		for id, stays := range map[int]string{9040: "scsi3", 9041: "protection"} {
			if config := lab.vmConfig(id); config["scsi30"] != "" || config[stays] == "" {
				t.Errorf("VM %d has %v", id, config)
			}
		}
		if !slices.Contains(lab.diskVolumes(), lost) {
			t.Errorf("%s is gone", lost)
		}
	})
}

func volidOf(lab *Lab, id int, key string) string {
	volid, _, _ := strings.Cut(lab.vmConfig(id)[key], ",")
	return volid
}

// TestAParkingVMThatCameLate: Proxmox makes the parking VM of a dead run after the next one has
// rolled the node with another. Rolls ignore it, and prune deletes it.
func TestAParkingVMThatCameLate(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		first := lab.parkingOf("wk1")
		rec, _, err := parking.ReadRecord(cluster.VM{Config: lab.vmConfig(first)})
		must(t, err)
		late := parking.Record{
			Cluster: rec.Cluster, Node: rec.Node, Run: "19991231-2359-dead", Parking: 9050, VMIDs: rec.VMIDs, Build: rec.Build, Strategy: cluster.Recreate,
			VMID: rec.VMID, UUID: rec.UUID, VMName: rec.VMName, Addr: rec.Addr, Open: true, Stage: "blank",
		}
		text, err := late.Description()
		must(t, err)
		lab.DefineVM(9050, map[string]string{"name": "recast-parking-wk1", "memory": "16", "protection": "1", "onboot": "0", "description": text})

		lab.setRoll("strategy: reimage")
		lab.Patch(sim.CommonExtension)
		must(t, lab.second().roll(onlyWorker)(t.Context()))
		rep, err := lab.second().pruneDisks(t.Context(), -1, nil)
		must(t, err)
		for _, v := range rep.VMs {
			if v.Removed != (v.VMID == 9050) {
				t.Errorf("VM %d: removed %t, goes %q, keep %q", v.VMID, v.Removed, v.Goes, v.Keep)
			}
		}
		if lab.vmConfig(first) == nil || lab.vmConfig(9050) != nil {
			t.Error("the wrong parking VM was deleted")
		}
		lab.RequireIntact()
	})
}
