package simtest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
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
)

// TestPrepared: the new system disk is made from the disk image while the node serves. The VM boots
// it, and nothing is installed.
func TestPrepared(t *testing.T) {
	type story struct {
		node, boot string
		strategy   cluster.Strategy
		options    sim.Options
	}
	eachIn(t, func(s story) sim.Options { return s.options }, map[string]story{
		"recreate a worker":        {"wk1", "disk", cluster.Recreate, sim.Options{Workers: 1}},
		"reimage a worker":         {"wk1", "auto", cluster.Reimage, sim.Options{Workers: 1}},
		"a worker of a data VM":    {"wk1", "disk", cluster.Recreate, sim.Options{Workers: 1, Holder: true}},
		"recreate a control plane": {"cp2", "disk", cluster.Recreate, sim.Options{ControlPlanes: 3}},
		"virtio":                   {"wk1", "disk", cluster.Recreate, sim.Options{Workers: 1, DiskBus: "virtio"}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks(s.boot)
		strategy(s.strategy)(lab)
		lab.Patch(everywhere)
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
		require(t, lab.machine(s.node).FromImage && !lab.machine("cp1").FromImage,
			"%s is not the one that runs from a disk image", s.node)
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
			t.Helper()
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

// TestPreparedOutage: a node whose system disk was prepared is away for 0.6 times as long at most, from
// when its VM is stopped until it is healthy.
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

// TestPreparedKilled: whoever goes on after a kill, or cancels, ends as always, and every disk that was
// prepared and not used is one that recast prune frees.
func TestPreparedKilled(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(s), killGrid[*Lab]{
			begin: func(t *testing.T) *Lab {
				lab := New(t, sim.Options{Workers: 1})
				lab.BootsDisks("disk")
				strategy(s)(lab)
				lab.Patch(sim.PatchedExtension)
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

// withParam is a change by Proxmox with that value of a parameter.
func withParam(path, value string) func(record.Call) bool {
	return func(call record.Call) bool {
		has := func(is string) bool { return strings.Contains(is, value) }
		return call.Proto == "proxmox" && call.Mutation && strings.HasSuffix(call.Path, path) &&
			slices.ContainsFunc(slices.Collect(maps.Values(call.Params)), has)
	}
}

// TestPreparedLate: what a killed run had sent for a prepared disk is processed while the next one is at
// work: before its own import, before the disk changes hands, before the VM starts.
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
		strategy(s.strategy)(lab)
		lab.Patch(sim.PatchedExtension)
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

// TestPreparedGone: someone takes the prepared disk away while the node is down: what is left to do is
// said, and the old system disk comes back.
func TestPreparedGone(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
