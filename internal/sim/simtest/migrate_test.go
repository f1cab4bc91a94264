package simtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// twoHosts have wk1 on pve2; its disks are on a storage that all see.
func twoHosts() sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: true} }

// onto wants a node's VM on another host, and gives the token what that takes.
func (l *Lab) onto(node, host, settings string) {
	l.t.Helper()
	l.allow("Migrates", "VM.Migrate", "Sys.Console", "Mapping.Use")
	l.shape(node, settings)
	l.Replace("recast.yaml", "{name: "+node+",", "{name: "+node+", host: "+host+",")
}

// requireOn fails unless wk1 is on that host.
func (l *Lab) requireOn(host string) {
	l.t.Helper()
	requireSame(l.t, host, l.hostOf(worker1), "it is on (-want +got)")
}

// TestMigrated moves a node's VM, by itself or before whatever else its node gets.
func TestMigrated(t *testing.T) {
	type story struct {
		settings string
		with     func(*Lab)
		strategy cluster.Strategy
		starts   int
	}
	eachLong(t, twoHosts(), map[string]story{
		"while it runs":              {"tags: [moved]", nil, cluster.Reshape, 0},
		"and nothing else":           {"", nil, cluster.Reshape, 0},
		"before another memory":      {"memory: 6144", nil, cluster.Reshape, 1},
		"before it is recreated":     {"memory: 6144", func(l *Lab) { l.Patch(sim.CommonExtension) }, cluster.Recreate, 1},
		"before it is upgraded":      {"memory: 6144", func(l *Lab) { l.Patch(sim.CommonExtension); l.inPlace() }, cluster.InPlace, 1},
		"before its configuration":   {"", withConfig(needsReboot), cluster.ApplyConfig, 0},
		"off, with a device":         {"memory: 6144", func(l *Lab) { l.mapped("wk1") }, cluster.Reshape, 1},
		"off, as HA manages it":      {"memory: 6144", func(l *Lab) { l.manageByHA(startedByUs()) }, cluster.Reshape, 1},
		"off, after it was upgraded": {"memory: 6144", func(l *Lab) { l.mapped("wk1"); l.Patch(sim.CommonExtension); l.inPlace() }, cluster.InPlace, 1},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.onto("wk1", "pve3", s.settings)
		if s.with != nil {
			s.with(lab)
		}
		before := lab.Disks()
		user := lab.Client()
		p := lab.planOf(user, "wk1", planning.Policy{})
		mustBe(t, p.Strategy == s.strategy && len(p.Refused) == 0,
			"planned as %s, %s: %v %v", p.Strategy, p.Why, p.VM, p.Refused)
		must(t, user.roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
		lab.requireOn("pve3")
		starts, moves := 0, 0
		for _, task := range lab.World.Tasks() {
			switch {
			case task.Type == "qmstart" && task.ID == "9031":
				starts++
			case task.Type == "qmigrate":
				moves++
			}
		}
		require(t, starts == s.starts && moves == 1, "started %d times, want %d; migrated %d times", starts, s.starts, moves)
		for serial, sum := range before {
			if s.strategy == cluster.Reshape && lab.Disks()[serial] != sum && strings.HasPrefix(serial, "data") {
				t.Errorf("disk %s: %s before, %q after", serial, sum, lab.Disks()[serial])
			}
		}
		lab.requireServing("wk1")
		lab.RequireIntact()
	})
}

// mapped gives a node's VM a device that every host has, and which keeps it on its host while it runs.
func (l *Lab) mapped(node string) {
	l.World.AddMapping("pci", "gpu", "pve1", "pve2", "pve3")
	l.withDevice(node, "mapping=gpu")
}

// withDevice gives a node's VM a PCI device.
func (l *Lab) withDevice(node, device string) {
	l.t.Helper()
	id := l.node(node).VMID
	must(l.t, l.World.PowerOff(id))
	must(l.t, l.World.SetConfig("root@pam", l.hostOf(id), world.ChangeRequest{ID: id, Set: map[string]string{"hostpci0": device}}))
	must(l.t, l.World.PowerOn(id))
	time.Sleep(3 * time.Minute)
	must(l.t, l.WaitReady(l.t.Context()))
}

// TestNotMigrated: what the plan refuses, and what to do instead.
func TestNotMigrated(t *testing.T) {
	type story struct {
		shared bool
		with   func(*Lab)
		to     string
		says   string
	}
	eachIn(t, func(s story) sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: s.shared} }, map[string]story{
		"local disks":                            {false, nil, "pve3", "on a storage of pve2 only, and a migration would replace it by a copy: on pve2: qm migrate 9031 pve3 --online --with-local-disks"},
		"no such host":                           {true, nil, "pve9", "Proxmox does not know pve9 as a host for it"},
		"a host's device":                        {true, func(l *Lab) { l.withDevice("wk1", "0000:01:00.0") }, "pve3", "hostpci0 is a device of pve2"},
		"a mapped one, and nothing needs it off": {true, func(l *Lab) { l.mapped("wk1") }, "pve3", "hostpci0 keeps it from being migrated while it runs, and nothing else needs it off"},
		"no privilege":                           {true, func(l *Lab) { l.World.AddRole("Migrates", "Sys.Console") }, "pve3", "lacks privileges: VM.Migrate on /vms"},
		"HA":                                     {true, func(l *Lab) { l.manageByHA(startedByUs()) }, "pve3", "ha-manager migrate vm:9031 pve3"},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.onto("wk1", s.to, "")
		if s.with != nil {
			s.with(lab)
		}
		requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), fault.Refused, s.says)
		lab.requireOn("pve2")
	})
}

// TestMigrationKilled kills a roll that migrates a VM at points of every kind, and goes on.
func TestMigrationKilled(t *testing.T) {
	long(t)
	for name, prepare := range map[string]func(*Lab){
		"while it runs": func(l *Lab) { l.onto("wk1", "pve3", "tags: [moved]") },
		"off":           func(l *Lab) { l.manageByHA(startedByUs()); l.onto("wk1", "pve3", "memory: 6144") },
		"recreated":     func(l *Lab) { l.onto("wk1", "pve3", ""); l.Patch(sim.CommonExtension) },
	} {
		t.Run(name, killGrid[*Lab]{
			begin: func(t *testing.T) *Lab {
				lab := New(t, twoHosts())
				prepare(lab)
				return lab
			},
			do: rolls(planning.Policy{}), journal: true,
			choose: func(t *testing.T, points []point) []point {
				chosen := chosenPoints(t, points)
				if at := namedPoint(t, points, "/migrate"); !slices.Contains(chosen, at) {
					chosen = append(chosen, at)
				}
				return chosen
			},
			end: func(t *testing.T, lab *Lab) string {
				requireInSync(t, lab)
				lab.requireOn("pve3")
				return ""
			},
		}.killEverywhere)
	}
}

// TestMigrationUnanswered loses the answer to every k-th change.
func TestMigrationUnanswered(t *testing.T) {
	eachLong(t, twoHosts(), storiesOf[int64](1, 2, 3), func(t *testing.T, lab *Lab, k int64) {
		lab.onto("wk1", "pve3", "tags: [moved]")
		lab.rollUnanswered(k, 1)
		requireInSync(t, lab)
	})
}

// TestLateMigration: Proxmox migrates the VM during a later exchange. No disk is lost, and the node is
// rolled in the end, once the VM is back.
func TestLateMigration(t *testing.T) {
	at := map[string]func(record.Call) bool{
		"before its disks are parked": toVM("POST", "/qemu/9031/move_disk"),
		"before it is deleted":        toVM("DELETE", "/qemu/9031"),
		"before it gets them back":    func(c record.Call) bool { return toVM("POST", "/move_disk")(c) && !strings.Contains(c.Path, "/9031/") },
		"before it is started":        toVM("POST", "/qemu/9031/status/start"),
	}
	eachLong(t, twoHosts(), at, func(t *testing.T, lab *Lab, when func(record.Call) bool) {
		plain := lab.Read("recast.yaml")
		lab.onto("wk1", "pve3", "")
		x := lab.rollKilledBy(toVM("POST", "/qemu/9031/migrate"), planning.Policy{})
		must(t, os.WriteFile(filepath.Join(lab.Dir, "recast.yaml"), plain, 0o600))
		lab.Patch(sim.PatchedExtension)
		x.deliverBefore(when, 0)
		err := lab.second().roll(planning.Policy{})(t.Context())
		lab.Recorder.Hooks(nil, nil)
		x.deliver()
		require(t, strings.HasSuffix(x.said, ": 200") && lab.hostOf(worker1) == "pve3",
			"the late migration: %q; it is on %s", x.said, lab.hostOf(worker1))
		lab.RequireIntact()
		if err != nil {
			if lab.hostOf(worker1) == "pve3" {
				lab.migrate(worker1, "pve2")
			}
			must(t, lab.second().roll(planning.Policy{})(t.Context()))
		}
		requireInSync(t, lab)
		lab.RequireIntact()
	})
}

// TestMigratedInVain: a VM that was migrated while it was off, and does not start there, gets its old
// settings and its old host back.
func TestMigratedInVain(t *testing.T) {
	eachLong(t, twoHosts(), map[string]struct{}{"recovered": {}}, func(t *testing.T, lab *Lab, _ struct{}) {
		lab.manageByHA(startedByUs())
		before := lab.vmOf("wk1").Config
		lab.onto("wk1", "pve3", "cores: 32")
		err := lab.as(firstRun).roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "MAX 16 vcpus allowed per VM on this node", "recast undo wk1 gives VM 9031 its old settings back")
		lab.requireOn("pve3")
		must(t, errOf(lab.as(secondRun).Recover(t.Context(), "wk1")))
		lab.requireServing("wk1")
		lab.RequireIntact()
		after := lab.vmOf("wk1").Config
		delete(after, "meta")
		delete(before, "meta")
		diff := cmp.Diff(before, after)
		require(t, diff == "" && lab.hostOf(worker1) == "pve2", "on %s (-before +after):\n%s", lab.hostOf(worker1), diff)
	})
}
