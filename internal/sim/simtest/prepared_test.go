package simtest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
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
		c := lab.Client()
		var order []string
		c.Emit = func(e step.Event) {
			if e.Status == step.Done && (strings.HasSuffix(e.Path, "/prepare-disk") || strings.HasSuffix(e.Path, "/drain")) {
				order = append(order, e.Path[strings.LastIndex(e.Path, "/")+1:])
			}
		}
		rep, err := c.Roll(t.Context(), planning.Policy{Only: []string{s.node}})
		must(t, err)
		if got := strings.Join(order, " "); got != "prepare-disk drain" {
			t.Errorf("order: %s", got)
		}
		n := rep.Plan.Nodes[0]
		if n.Strategy != s.strategy || !strings.HasSuffix(n.Prepared, ".qcow2") {
			t.Errorf("planned: %s, %q", n.Strategy, n.Prepared)
		}
		for _, call := range lab.Recorder.Calls() {
			for key, value := range call.Params {
				if strings.Contains(value, ".iso,media=cdrom") {
					t.Errorf("%s %s: %s=%s", call.Method, call.Path, key, value)
				}
			}
		}
		if _, there := lab.vmOf(s.node).Config["ide2"]; !there {
			t.Error("its CD drive is gone")
		}
		lab.requireRolledFrom(t, before)
		lab.requireKept(1)
		if !lab.machine(s.node).FromImage || lab.machine("cp1").FromImage {
			t.Errorf("%s is not the one that runs from a disk image", s.node)
		}
	})
}

// TestPreparedAnotherEntry: the EFI variables go on to name the boot entry of the system before, which
// the new disk does not have. Nothing takes it for an upgrade that waits for a reboot, and the next
// installer writes another, even if that has the same name.
func TestPreparedAnotherEntry(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{Workers: 1, TalosVersion: talos12, NextTalos: sim.TalosVersion}, map[string]string{"of another version": "talos-v1.12.6.efi", "of the same version": "talos-v1.13.9~1.efi"}, func(t *testing.T, lab *Lab, gone string) {
		now, runs := cluster.InPlace, 0
		next := func() *Client { runs++; return lab.as(fmt.Sprintf("20000101-0000-%04x", runs)) }
		lab.setRoll("strategy: " + string(now))
		roll := func(strategy cluster.Strategy) planning.NodePlan {
			lab.Replace("recast.yaml", "strategy: "+string(now), "strategy: "+string(strategy))
			now = strategy
			rep, err := next().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
			must(t, err)
			requireDrift(t, lab, "cp1")
			return rep.Plan.Nodes[0]
		}
		requireGone := func(when, want string) {
			t.Helper()
			k, err := lab.Kube.Node(t.Context(), "wk1")
			must(t, err)
			if got := k.Annotations["recast.dev/booted"]; want == "" && strings.Contains(got, "gone") || want != "" && got != `{"gone":"`+want+`"}` {
				t.Errorf("%s: %s", when, got)
			}
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
		if n := roll(cluster.Recreate); n.Prepared == "" {
			t.Errorf("not prepared: %q", n.Notes)
		}
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
	away := func(t *testing.T, boot string) (away time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			lab := New(t, sim.Options{Workers: 1, Times: measuredTimes()})
			lab.BootsDisks(boot)
			lab.Patch(sim.PatchedExtension)
			c := lab.Client()
			var stopped time.Time
			c.Emit = func(e step.Event) {
				switch {
				case strings.HasSuffix(e.Path, "/take-down/stop") && e.Status == step.Started:
					stopped = time.Now()
				case strings.HasSuffix(e.Path, "/wait-healthy") && strings.Contains(e.Text, cluster.Settling) && away == 0:
					away = time.Since(stopped)
				}
			}
			_, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
			must(t, err)
		})
		return away
	}
	iso, disk := away(t, cluster.BootFromISO), away(t, cluster.BootFromDisk)
	t.Logf("away for %s by the ISO, and for %s by a prepared disk: %.2f times", iso, disk, float64(disk)/float64(iso))
	if disk == 0 || float64(disk) > 0.6*float64(iso) {
		t.Errorf("%s by a prepared disk, %s by the ISO", disk, iso)
	}
}

// TestPreparedKilled: whoever goes on after a kill, or cancels, ends as always, and every disk that was
// prepared and not used is one that recast prune frees.
func TestPreparedKilled(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(s), func(t *testing.T) {
			prepared := func(t *testing.T) *Lab {
				lab := New(t, sim.Options{Workers: 1})
				lab.BootsDisks("disk")
				strategy(s)(lab)
				lab.Patch(sim.PatchedExtension)
				return lab
			}
			var points []point
			synctest.Test(t, func(t *testing.T) { points, _ = prepared(t).finish(t, rolls(policyFor("wk1"))) })
			for _, at := range chosenPoints(t, points) {
				t.Run(strconv.Itoa(at.at), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						lab := prepared(t)
						lab.diesAt(t, at, rolls(policyFor("wk1")))
						if at.at%3 == 0 {
							if _, err := lab.Client().Recover(t.Context(), "wk1"); err == nil {
								t.Attr("sum:put-back", "1")
								lab.requireServing("wk1")
							}
						}
						if _, err := lab.second().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}}); err != nil {
							t.Fatalf("killed at %s: %v", at, err)
						}
						requireInSync(t, lab)
						lab.requireServing("wk1")
						lab.requireKept(1)
					})
				})
			}
		})
	}
}
