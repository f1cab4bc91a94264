package simtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/past"
)

// hostsQuick is the maximum time in which a command must detect a down host.
const hostsQuick = 30 * time.Second

// hostsRefused fails the test unless a command was refused, at once, with these words.
func hostsRefused(t *testing.T, do func(context.Context) error, want ...string) {
	t.Helper()
	began := time.Now()
	requireFault(t, do(t.Context()), fault.Refused, want...)
	requireTook(t, began, 0, hostsQuick)
}

// TestAHostIsDown with a node on it: everything known about the others is reported, and nothing is rolled.
func TestAHostIsDown(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2, Hosts: 3}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.World.CrashHost("pve3")
		time.Sleep(2 * time.Minute)
		began, c := time.Now(), lab.Client()
		const down = "Proxmox host pve3 is offline"

		plan := valueOf(c.Plan(t.Context(), planning.Policy{}))(t)
		const waits = "wk1: other nodes are not Ready: wk2: bring them back first; one more out would be one too many. A worker that is to stay away: kubectl cordon it, or name it in roll.ignoreNodes\n"
		want := "wk2: its VM 9032 is on pve3, and " + down + ": bring pve3 back, or leave the node out with --exclude"
		got := strings.Join(plan.Refused(), "\n")
		require(t, got == waits+want && strings.Contains(strings.Join(plan.Warn, "\n"), down),
			"the plan refuses %q, warns of %q", got, plan.Warn)
		work := plan.Work()
		require(t, len(work) == 1 && work[0].Node == "wk1" && work[0].Strategy == cluster.Recreate, "work %+v", work)
		drift := cluster.Each(valueOf(c.Drift(t.Context()))(t).Nodes, func(d observe.Drift) string {
			return fmt.Sprint(d.Node, " ", d.Stale, " ", len(d.Unread))
		})
		requireSame(t, []string{"cp1 false 0", "wk1 true 0", "wk2 false 1"}, drift, "drift (-want +got)")
		status := valueOf(c.Status(t.Context()))(t)
		requireSame(t, down+", so VM 9032 can't be read", strings.Join(status.Problems, "\n"), "status (-want +got)")
		requireTook(t, began, 0, hostsQuick)

		before := lab.Recorder.Mutations()
		hostsRefused(t, lab.Client().roll(planning.Policy{}), want)
		requireSame(t, before, lab.Recorder.Mutations(), "changing requests (-want +got)")
		hostsRefused(t, lab.Client().roll(planning.Policy{Exclude: []string{"wk2"}}), "other nodes are not Ready: wk2")

		lab.World.BootHost("pve3")
		must(t, lab.WaitReady(t.Context()))
		lab.Client().rollTo(t, planning.Policy{})
	})
}

// TestResumeWhileAHostIsDown: the transaction's host stops it, another one does not: its VM can't refer to a disk on
// local storage. When its own boots, that starts no unfinished VM, and the next run finishes it and restores onboot.
func TestResumeWhileAHostIsDown(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		at, host string
	}
	eachLong(t, sim.Options{Workers: 1, Hosts: 3}, map[string]story{
		"its own, parked":          {cluster.Recreate, "take-down/park/scsi1", "pve2"},
		"its own, deleted":         {cluster.Recreate, "bring-up/create-vm", "pve2"},
		"its own, started":         {cluster.Recreate, "bring-up/start", "pve2"},
		"its own, with a new disk": {cluster.Reimage, "bring-up/start", "pve2"},
		"another, not begun":       {cluster.Recreate, "", "pve3"},
		"another, parked":          {cluster.Recreate, "take-down/park/scsi1", "pve3"},
		"another, deleted":         {cluster.Recreate, "bring-up/create-vm", "pve3"},
		"another, started":         {cluster.Recreate, "bring-up/start", "pve3"},
	}, func(t *testing.T, lab *Lab, s story) {
		strategy(s.strategy)(lab)
		// Its disk has the same name as wk1's; but pve3 has another storage.
		must(t, lab.World.DefineVM("pve3", 500, map[string]string{"name": "other", "scsi0": "fast:1"}, nil))
		lab.Patch(sim.PatchedExtension)
		if s.at != "" {
			lab.rollKilledWhen(s.at)
		}
		time.Sleep(time.Minute)
		lab.World.CrashHost(s.host)
		time.Sleep(2 * time.Minute)
		if s.host == "pve2" {
			const down = "Proxmox host pve2 is offline"
			hostsRefused(t, lab.second().roll(planning.Policy{}), down)
			hostsRefused(t, lab.second().giveUp("wk1"), down)
			lab.World.BootHost(s.host)
			time.Sleep(5 * time.Minute)
			must(t, hostsStarts(lab))
		}
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		lab.World.BootHost(s.host) // no-op if it is up
		time.Sleep(2 * time.Minute)
		lab.requireRolledOn(t, "pve2")
	})
}

// hostsChanges calls f right after each change in Proxmox but the claim's, before its answer is sent.
func hostsChanges(lab *Lab, f func(n int, call record.Call)) {
	n := 0
	lab.Recorder.Hooks(nil, func(call record.Call) {
		if isForeignChange(call) {
			n++
			f(n, call)
		}
	})
}

// Wherever a host reboots, or at every fifth point, only recast ever starts the VM, and the next run completes.
func TestAHostThatRebootsAtEveryPoint(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		points := 0
		synctest.Test(t, func(t *testing.T) {
			lab := hostsLab(t, s)
			hostsChanges(lab, func(n int, _ record.Call) { points = n })
			must(t, lab.Client().roll(planning.Policy{})(t.Context()))
			lab.Recorder.Hooks(nil, nil)
		})
		mustBe(t, points >= 10, "an undisturbed roll changes Proxmox only %d times", points)
		for at := 1; at <= points; at++ {
			if !*crashAll && uint64(at)%5 != *crashSeed%5 {
				continue
			}
			off := time.Minute
			if at%2 == 0 {
				off = 5 * time.Minute
			}
			t.Run(fmt.Sprintf("%s/%d/%s", s, at, off), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					hostsReboot(t, s, off, func(lab *Lab, _ *Client, crash func(where string)) {
						hostsChanges(lab, func(n int, call record.Call) {
							if n == at {
								crash(call.Method + " " + call.Path)
							}
						})
					})
				})
			})
		}
	}
}

// The boot ISO takes a half-installed system disk for an installed one, and halts: the VM gets another one.
func TestAHostThatRebootsWhileTalosIsInstalled(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for _, after := range []time.Duration{time.Second, 10 * time.Second, 18 * time.Second, 30 * time.Second, 45 * time.Second} {
			t.Run(fmt.Sprintf("%s/%s", s, after), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					hostsReboot(t, s, time.Minute, func(_ *Lab, c *Client, crash func(where string)) {
						c.Emit = whenStarted("bring-up/wait-healthy", func() {
							time.AfterFunc(after, func() { crash(fmt.Sprintf("%s after the configuration was applied", after)) })
						})
					})
				})
			})
		}
	}
}

// TestKilledWhileTheDiskIsRenewed: after the half-installed disk is parked, and after the VM has got another one.
func TestKilledWhileTheDiskIsRenewed(t *testing.T) {
	type story struct {
		strategy  cluster.Strategy
		allocated bool
	}
	eachLong(t, sim.Options{Workers: 1, Hosts: 3}, map[string]story{
		"recreate, parked":    {cluster.Recreate, false},
		"recreate, allocated": {cluster.Recreate, true},
		"reimage, parked":     {cluster.Reimage, false},
		"reimage, allocated":  {cluster.Reimage, true},
	}, func(t *testing.T, lab *Lab, s story) {
		strategy(s.strategy)(lab)
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.Emit = whenStarted("bring-up/wait-healthy", func() { time.AfterFunc(12*time.Second, func() { lab.World.RebootHost("pve2", time.Minute) }) })
		mustBe(t, c.roll(planning.Policy{})(t.Context()) != nil, "the roll succeeded without its host")
		time.Sleep(10 * time.Minute)
		cut := moment{server: "/qemu/9031/move_disk POST", with: "disk=scsi0"}
		if s.allocated {
			cut = moment{server: "/qemu/9031/config POST", with: "scsi0=fast:"}
		}
		c = lab.Client()
		c.killedAt(t, cut, c.roll(planning.Policy{}))
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		lab.requireRolledOn(t, "pve2")
	})
}

func hostsLab(t *testing.T, s cluster.Strategy) *Lab {
	lab := New(t, sim.Options{Workers: 1, Hosts: 3})
	strategy(s)(lab)
	lab.Patch(sim.PatchedExtension)
	return lab
}

// hostsReboot rolls the worker while its host is off for some time, from the call of crash on.
func hostsReboot(t *testing.T, s cluster.Strategy, off time.Duration, arm func(lab *Lab, c *Client, crash func(where string))) {
	lab := hostsLab(t, s)
	crashed, c := make(chan string, 1), lab.Client()
	arm(lab, c, func(at string) {
		crashed <- at
		lab.World.CrashHost("pve2")
		time.AfterFunc(off, func() { lab.World.BootHost("pve2") })
	})
	err := c.roll(planning.Policy{})(t.Context())
	lab.Recorder.Hooks(nil, nil)
	time.Sleep(10 * time.Minute)
	var where string
	select {
	case where = <-crashed:
	default:
		t.Fatal("the host was not rebooted")
	}
	released := err != nil && strings.HasPrefix(err.Error(), "give the claim of cluster lab back: ") // that error needs no remedy
	require(t, err == nil || released || strings.Contains(fmt.Sprint(err, fault.Hints(err)), "pve2"),
		"%s: the error does not name the host: %v", where, err)
	must(t, hostsStarts(lab))
	next := lab.second().roll(planning.Policy{})(t.Context())
	if hostsHalfMade(lab, next) {
		next = lab.as("20000101-0000-cafe").roll(planning.Policy{})(t.Context())
	}
	mustBe(t, next == nil, "%s (%v): the next roll: %v", where, err, next)
	lab.requireRolledOn(t, "pve2")
}

// requireRolledOn fails unless wk1 is rolled, runs on that host, and nothing is left of the runs but its old disk.
func (l *Lab) requireRolledOn(t *testing.T, host string) {
	t.Helper()
	requireInSync(t, l)
	l.requireKept(1)
	l.requireRunning(host)
	requireNoClaim(t, l)
}

// hostsHalfMade follows the hint about a VM whose creation was interrupted: only root can remove that lock.
func hostsHalfMade(lab *Lab, err error) bool {
	for _, vm := range lab.World.VMs() {
		if hint := fmt.Sprintf("qm unlock %d && qm destroy %d", vm.ID, vm.ID); strings.Contains(fmt.Sprint(fault.Hints(err)), hint) {
			lab.World.SetLock(vm.ID, "")
			lab.done(lab.World.DestroyVM("root@pam", vm.Host, world.DestroyRequest{ID: vm.ID}))
			return true
		}
	}
	return false
}

// hostsStarts says whether a rebooted host has started a node's VM during its replacement, or a parking VM.
func hostsStarts(lab *Lab) error {
	var errs []error
	for _, task := range lab.World.Tasks() {
		vm := lab.vmWith(func(vm world.VM) bool { return strconv.Itoa(vm.ID) == task.ID })
		unwanted := vm.Config["onboot"] != "1" || strings.HasPrefix(vm.Config["name"], "recast-")
		if task.Type == "qmstart" && task.User == "root@pam" && unwanted {
			errs = append(errs, fmt.Errorf("VM %s was started at %s", task.ID, task.Start.Format(time.TimeOnly)))
		}
	}
	return errors.Join(errs...)
}

// twoHosts have wk1 on pve2; its disks are on a storage that all see.
func twoHosts() sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: true} }

// onto wants a node's VM on another host, and gives the token what that takes.
func (l *Lab) onto(node, host, settings string) {
	l.t.Helper()
	l.allow("Migrates", "VM.Migrate", "Sys.Console", "Mapping.Use")
	l.shape(node, settings)
	l.Replace("recast.yaml", "{name: "+node+",", "{name: "+node+", host: "+host+",")
}

func (l *Lab) requireOn(host string) {
	l.t.Helper()
	requireSame(l.t, host, l.hostOf(worker1), "it is on (-want +got)")
}

// TestMigrated moves a node's VM, by itself or before whatever else its node gets.
func TestMigrated(t *testing.T) {
	type story struct {
		settings string
		with     edit
		strategy cluster.Strategy
		starts   int
	}
	none := all()
	eachLong(t, twoHosts(), map[string]story{
		"while it runs":              {"tags: [moved]", none, cluster.Reshape, 0},
		"and nothing else":           {"", none, cluster.Reshape, 0},
		"before another memory":      {"memory: 6144", none, cluster.Reshape, 1},
		"before it is recreated":     {"memory: 6144", anImage, cluster.Recreate, 1},
		"before it is upgraded":      {"memory: 6144", imageBy(cluster.InPlace), cluster.InPlace, 1},
		"before its configuration":   {"", withConfig(needsReboot), cluster.ApplyConfig, 0},
		"off, with a device":         {"memory: 6144", mapped, cluster.Reshape, 1},
		"off, as HA manages it":      {"memory: 6144", underHA, cluster.Reshape, 1},
		"off, after it was upgraded": {"memory: 6144", all(mapped, imageBy(cluster.InPlace)), cluster.InPlace, 1},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.onto("wk1", "pve3", s.settings)
		s.with(lab)
		before := lab.Disks()
		requirePlanned(t, lab.planOf(lab.Client(), "wk1", planning.Policy{}), s.strategy)
		lab.Client().mustRoll(onlyWorker)
		lab.requireOn("pve3")
		requireCount(t, s.starts, lab.tasksOf("qmstart"), "starts")
		requireCount(t, 1, lab.tasksOf("qmigrate"), "migrations")
		for serial, sum := range before {
			require(t, s.strategy != cluster.Reshape || lab.Disks()[serial] == sum || !strings.HasPrefix(serial, "data"),
				"disk %s was changed", serial)
		}
		lab.requireServing("wk1")
	})
}

func underHA(l *Lab) { l.manageByHA(startedByUs()) }

// mapped gives wk1's VM a device that every host has, and which keeps it on its host while it runs.
func mapped(l *Lab) {
	l.World.AddMapping("pci", "gpu", "pve1", "pve2", "pve3")
	withDevice("mapping=gpu")(l)
}

func withDevice(device string) edit {
	return func(l *Lab) {
		l.t.Helper()
		must(l.t, l.World.PowerOff(worker1))
		must(l.t, l.World.SetConfig("root@pam", l.hostOf(worker1), world.ChangeRequest{ID: worker1, Set: map[string]string{"hostpci0": device}}))
		must(l.t, l.World.PowerOn(worker1))
		time.Sleep(3 * time.Minute)
		must(l.t, l.WaitReady(l.t.Context()))
	}
}

// TestNotMigrated: what the plan refuses, and what to do instead.
func TestNotMigrated(t *testing.T) {
	type story struct {
		shared bool
		with   edit
		to     string
		says   string
	}
	eachIn(t, func(s story) sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: s.shared} }, map[string]story{
		"local disks":                            {false, all(), "pve3", "on a storage of pve2 only, and a migration would replace it by a copy: on pve2: qm migrate 9031 pve3 --online --with-local-disks"},
		"no such host":                           {true, all(), "pve9", "Proxmox does not know pve9 as a host for it"},
		"a host's device":                        {true, withDevice("0000:01:00.0"), "pve3", "hostpci0 is a device of pve2"},
		"a mapped one, and nothing needs it off": {true, mapped, "pve3", "hostpci0 keeps it from being migrated while it runs, and nothing else needs it off"},
		"no privilege":                           {true, func(l *Lab) { l.World.AddRole("Migrates", "Sys.Console") }, "pve3", "lacks privileges: VM.Migrate on /vms"},
		"HA":                                     {true, underHA, "pve3", "ha-manager migrate vm:9031 pve3"},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.onto("wk1", s.to, "")
		s.with(lab)
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

// The answer to every k-th change is lost while VMs get another shape, or move to another host.
func TestReshapeWithLostAnswers(t *testing.T) {
	eachLong(t, twoWorkers, storiesOf[int64](1, 2, 3, 5), func(t *testing.T, lab *Lab, k int64) {
		lab.shapeAll("memory: 6144, tags: [talos]", "disks: [{slot: scsi1, size: 25G, cache: writeback}, {slot: scsi2, storage: fast, size: 1G}]")
		lab.rollUnanswered(k, 3)
		requireInSync(t, lab)
	})
	eachLong(t, twoHosts(), map[string]int64{"moved, 1": 1, "moved, 2": 2, "moved, 3": 3}, func(t *testing.T, lab *Lab, k int64) {
		lab.onto("wk1", "pve3", "tags: [moved]")
		lab.rollUnanswered(k, 1)
		requireInSync(t, lab)
	})
}

// TestLateWish: Proxmox migrates a VM, or puts it under HA, for a roll that is dead, while a later roll has the VM off.
// HA must not start it. No disk is lost, and the node is rolled in the end, once the VM is back.
func TestLateWish(t *testing.T) {
	type story struct {
		migrates bool
		when     func(record.Call) bool // it happens before that
	}
	parked, deleted := toVM("POST", "/qemu/9031/move_disk"), toVM("DELETE", "/qemu/9031")
	started := toVM("POST", "/qemu/9031/status/start")
	eachLongIn(t, func(s story) sim.Options {
		return map[bool]sim.Options{true: twoHosts(), false: oneWorker()}[s.migrates]
	}, map[string]story{
		"HA, before its disks are parked":          {false, parked},
		"HA, before it is deleted":                 {false, deleted},
		"HA, before it is started":                 {false, started},
		"a migration, before its disks are parked": {true, parked},
		"a migration, before it is deleted":        {true, deleted},
		"a migration, before it gets them back":    {true, func(c record.Call) bool { return toVM("POST", "/move_disk")(c) && !strings.Contains(c.Path, "/9031/") }},
		"a migration, before it is started":        {true, started},
	}, func(t *testing.T, lab *Lab, s story) {
		plain, asks := lab.Read("recast.yaml"), toVM("POST", "/cluster/ha/resources")
		if s.migrates {
			asks = toVM("POST", "/qemu/9031/migrate")
			lab.onto("wk1", "pve3", "")
		} else {
			lab.allowShape()
			lab.shape("wk1", "ha: {state: started}")
		}
		x := lab.rollKilledBy(asks, planning.Policy{})
		lab.Write("recast.yaml", plain)
		lab.Patch(sim.PatchedExtension)
		x.deliverBefore(func(c record.Call) bool {
			if s.when(c) && !s.migrates {
				x.deliver()
				time.Sleep(time.Minute) // HA's rounds
			}
			return s.when(c)
		}, 0)
		err := lab.second().roll(planning.Policy{})(t.Context())
		lab.Recorder.Hooks(nil, nil)
		x.deliver()
		require(t, !s.migrates || strings.HasSuffix(x.said, ": 200") && lab.hostOf(worker1) == "pve3",
			"the late migration: %q; it is on %s", x.said, lab.hostOf(worker1))
		requireNone(t, startedByHA(lab), "HA has started it")
		lab.RequireIntact()
		if err != nil {
			if lab.hostOf(worker1) == "pve3" {
				lab.migrate(worker1, "pve2")
			}
			must(t, lab.second().roll(planning.Policy{})(t.Context()))
		}
		lab.requireServing("wk1")
		requireInSync(t, lab)
	})
}

const (
	worker1   = 9031 // VMID of wk1
	worker1HA = "vm:9031"
)

// manageByHA puts wk1 under HA with its own settings and a rule, and lets recast's token change that. What it returns
// fails the test unless wk1 runs on that host, under HA as before.
func (l *Lab) manageByHA(r world.HAResource) (requireManaged func(host string)) {
	r.SID = worker1HA
	l.World.AddHA(r)
	l.World.AddHARule(world.HARule{ID: "near-storage", Type: "node-affinity", Resources: []string{worker1HA}, Options: map[string]string{"nodes": "pve1:2"}})
	l.allow("HA", "Sys.Console")
	time.Sleep(time.Minute) // for the manager's rounds
	resources, rules := l.World.HA(), l.World.HARules()
	resources[0].State = cmp.Or(resources[0].State, "started") // Proxmox's default
	return func(host string) {
		l.t.Helper()
		time.Sleep(time.Minute) // for the manager's rounds
		requireSame(l.t, resources, l.World.HA(), "HA resources (-before +after)")
		requireSame(l.t, rules, l.World.HARules(), "HA rules (-before +after)")
		l.requireRunning(host)
	}
}

func startedByUs() world.HAResource {
	return world.HAResource{State: "started", Options: map[string]string{"max_restart": "2", "max_relocate": "0", "comment": "storage node"}}
}

func startedByHA(lab *Lab) []world.Task {
	return slices.DeleteFunc(lab.tasksOf("qmstart"), func(task world.Task) bool { return task.User != "root@pam" })
}

// tasksOf are those of a type that Proxmox has done with wk1's VM.
func (l *Lab) tasksOf(kind string) []world.Task {
	return cluster.Where(l.World.Tasks(), func(task world.Task) bool { return task.Type == kind && task.ID == "9031" })
}

// requireRunning fails the test unless wk1's VM runs on that host and starts with it.
func (l *Lab) requireRunning(host string) {
	l.t.Helper()
	vm := valueOf(l.World.LookupVM(host, worker1))(l.t)
	require(l.t, vm.Running && vm.Config["onboot"] == "1", "on %q: %+v", l.hostOf(worker1), vm)
}

// TestAVMUnderHA rolls it: HA does not start it meanwhile, and manages it again as before.
func TestAVMUnderHA(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		resource world.HAResource
	}
	eachLong(t, oneWorker(), map[string]story{
		"recreate":          {cluster.Recreate, startedByUs()},
		"reimage":           {cluster.Reimage, startedByUs()},
		"in-place":          {cluster.InPlace, startedByUs()},
		"without settings":  {cluster.Recreate, world.HAResource{}},
		"in a group":        {cluster.Recreate, world.HAResource{State: "started", Group: "storage"}},
		"ignored by HA":     {cluster.Recreate, world.HAResource{State: "ignored", Options: map[string]string{"comment": "by hand"}}},
		"ignored, reimaged": {cluster.Reimage, world.HAResource{State: "ignored"}},
	}, func(t *testing.T, lab *Lab, s story) {
		strategy(s.strategy)(lab)
		requireManaged := lab.manageByHA(s.resource)
		lab.Patch(sim.PatchedExtension)
		c, removed := lab.Client(), false
		c.Emit = whenStarted("wk1/bring-up", func() { removed = len(lab.World.HA()) == 0 })
		must(t, c.roll(planning.Policy{})(t.Context()))
		require(t, removed == (s.strategy != cluster.InPlace), "out of HA while it was down: %t", removed)
		requireNone(t, startedByHA(lab), "HA has started it")
		requireManaged("pve1")
		requireInSync(t, lab)
	})
}

// HA does not recover a half-made VM whose host is down for long: it is out of HA since before it was powered off.
func TestAKilledRollOfAVMUnderHA(t *testing.T) {
	type story struct {
		at      string
		journal bool
		down    bool // the host is, for long
	}
	options := func(s story) sim.Options { return map[bool]sim.Options{true: twoHosts(), false: oneWorker()}[s.down] }
	eachLongIn(t, options, map[string]story{
		"out of HA, no journal":            {"take-down/park", false, false},
		"on, with the journal":             {"bring-up/start", true, false},
		"back in HA, no journal":           {"finish/restore-ha", false, false},
		"under HA again":                   {"finish/uncordon", true, false},
		"out of HA, the host down":         {"take-down/park/scsi0", true, true},
		"on, the host down":                {"bring-up/start", true, true},
		"not healthy again, the host down": {"bring-up/wait-healthy", true, true},
	}, func(t *testing.T, lab *Lab, s story) {
		host := lab.hostOf(worker1)
		requireManaged := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen(s.at)
		if s.down {
			time.Sleep(time.Minute)
			lab.World.CrashHost(host)
			time.Sleep(20 * time.Minute)
			requireSame(t, host, lab.hostOf(worker1), "it was recovered on (-want +got)")
			lab.World.BootHost(host)
			time.Sleep(5 * time.Minute)
			requireNone(t, startedByHA(lab), "it was started")
		}
		next := lab.second()
		if !s.journal {
			next = lab.elsewhere()
		}
		must(t, next.roll(planning.Policy{})(t.Context()))
		requireManaged(host)
		requireInSync(t, lab)
		lab.requireKept(1)
	})
}

// TestAStopThatFails leaves the node serving, and HA and onboot unchanged.
func TestAStopThatFails(t *testing.T) {
	type story struct{ fail, text string }
	eachLong(t, oneWorker(), map[string]story{
		"HA can't be changed": {"DELETE /cluster/ha/resources/" + worker1HA, `take VM 9031 "wk1" on pve1 out of Proxmox HA: `},
		"the VM is locked":    {"PUT /nodes/pve1/qemu/9031/config", `unset onboot of VM 9031 "wk1" on pve1: `},
	}, func(t *testing.T, lab *Lab, s story) {
		requireManaged := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		lab.World.FailNext(s.fail, "not now")
		requireError(t, lab.Client().roll(planning.Policy{})(t.Context()), "roll/workers/wk1/take-down/stop: "+s.text)
		lab.requireServing("wk1")
		requireManaged("pve1")
		requireDrift(t, lab, "wk1")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireManaged("pve1")
		requireDrift(t, lab)
	})
}

// TestParkingOnEveryHost rolls nodes on two hosts, with their own disks and with data VMs'.
func TestParkingOnEveryHost(t *testing.T) {
	eachLongIn(t, func(holder bool) sim.Options { return sim.Options{Workers: 2, Hosts: 2, Holder: holder} }, map[string]bool{"own disks": false, "disks of data VMs": true}, func(t *testing.T, lab *Lab, holder bool) {
		lab.setRoll("maxUnavailable: {workers: 2}")
		for _, run := range []string{"20000101-0000-0001", "20000101-0000-0002"} {
			lab.Patch(sim.PatchedExtension)
			must(t, lab.as(run).roll(planning.Policy{})(t.Context()))
		}
		for _, n := range lab.Nodes {
			parking := cluster.Where(lab.World.VMs(), func(vm world.VM) bool { return vm.Config["name"] == "recast-parking-"+n.Name })
			require(t, n.ControlPlane || len(parking) == 1 && parking[0].Host == n.Host, "%s is on %s: %+v", n.Name, n.Host, parking)
		}
		requireInSync(t, lab)
	})
}

// vmWith is a VM of which that holds; its zero value if there is none.
func (l *Lab) vmWith(is func(world.VM) bool) (found world.VM) {
	found, _ = cluster.Find(l.World.VMs(), is)
	return found
}

func (l *Lab) hostOf(id int) string {
	return l.vmWith(func(vm world.VM) bool { return vm.ID == id }).Host
}

func (l *Lab) migrate(id int, to string) {
	l.t.Helper()
	from := l.hostOf(id)
	vm := valueOf(l.World.LookupVM(from, id))(l.t)
	l.done(l.World.Migrate("", from, world.MigrateRequest{ID: id, Target: to, Online: vm.Running, WithLocalDisks: vm.Running}))
	time.Sleep(20 * time.Second) // until the cluster's list has it
}

// parkingsByHost are wk1's parking VMs: host, number of kept disks.
func (l *Lab) parkingsByHost() string {
	var out []string
	for _, vm := range l.World.VMs() {
		rec, ok, err := parking.ReadRecord(cluster.VM{ID: cluster.VMID(vm.ID), Config: vm.Config})
		must(l.t, err)
		if ok {
			out = append(out, fmt.Sprintf("%s:%d", vm.Host, len(rec.Kept)))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// A node that was moved between its rolls has a parking VM on each host, and rolls back only on that of its last disk.
func TestANodeThatWasMoved(t *testing.T) {
	options := func(shared bool) sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: shared} }
	eachLongIn(t, options, map[string]bool{"local storage": false, "shared storage": true}, func(t *testing.T, lab *Lab, _ bool) {
		roll := func(run, parked string) {
			t.Helper()
			lab.Patch(sim.PatchedExtension)
			must(t, lab.as(run).roll(planning.Policy{})(t.Context()))
			requireSame(t, parked, lab.parkingsByHost(), "kept disks by host (-want +got)")
		}
		roll("20000101-0001-aaaa", "pve2:1")
		lab.migrate(worker1, "pve3")
		roll("20000101-0010-aaaa", "pve2:1 pve3:1")
		lab.requireRunning("pve3")

		must(t, lab.as("20000101-0020-aaaa").goBack("wk1")(t.Context()))
		requireSame(t, "pve2:1 pve3:1", lab.parkingsByHost(), "kept disks by host after the rollback (-want +got)")
		requireDrift(t, lab, "wk1") // it runs the previous lock
		lab.migrate(worker1, "pve2")
		hostsRefused(t, lab.as("20000101-0030-aaaa").goBack("wk1"), "the system disk that run 20000101-0020-aaaa replaced is scsi",
			`"recast-parking-wk1" on pve3, and VM 9031 "wk1" on pve2 was moved since: on pve2: qm migrate 9031 pve3 --online --with-local-disks brings them together`)

		roll("20000101-0040-aaaa", "pve2:1 pve3:1") // each keeps roll.keepDisks disks
		requireInSync(t, lab)
		lab.requireKept(2)
	})
}

// If a VM is moved in the middle, nothing is destroyed, and the error says how to reunite it with its disks.
func TestMovedInTheMiddle(t *testing.T) {
	type story struct {
		at      string
		parking bool // that one is moved
		shared  bool
		online  bool // the VM runs
	}
	options := func(s story) sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: s.shared} }
	eachLongIn(t, options, map[string]story{
		"the VM, while its disks are parked": {at: "take-down/park/scsi1"},
		"the VM, on shared storage":          {at: "take-down/park/scsi1", shared: true},
		"the VM, when it runs again":         {at: "bring-up/wait-healthy", online: true},
		"the parking VM":                     {at: "take-down/park/scsi1", parking: true},
		"the parking VM, the VM deleted":     {at: "bring-up/create-vm", parking: true},
		"the parking VM, on shared storage":  {at: "bring-up/create-vm", parking: true, shared: true},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen(s.at)
		time.Sleep(2 * time.Minute)
		id, online := worker1, ""
		if s.parking {
			id = lab.parkingOf("wk1")
		}
		if s.online {
			online = " --online --with-local-disks"
		}
		lab.migrate(id, "pve3")
		before := len(lab.Recorder.Calls())
		says := fmt.Sprintf("on pve3: qm migrate %d pve2%s)", id, online)
		hostsRefused(t, lab.second().roll(planning.Policy{}), "was moved since", says)
		hostsRefused(t, lab.second().giveUp("wk1"), "was moved since", says)
		requireNone(t, changesOfNodes(lab.Recorder.Calls()[before:]), "changes")
		lab.migrate(id, "pve2")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		lab.requireRolledOn(t, "pve2")
	})
}

// TestHAMovesTheVM while it is still under HA: a new plan follows it until its node is drained; then the roll ends before
// it is powered off, and leaves a serving node.
func TestHAMovesTheVM(t *testing.T) {
	type story struct {
		at   string // the step before which it moves; "": at the confirmation
		says string
	}
	eachLong(t, sim.Options{Workers: 1, Hosts: 3, SharedDisks: true}, map[string]story{
		"between plan and gate":  {"", ""},
		"between gate and drain": {"take-down/remember", ""},
		"while it is drained":    {"take-down/drain", `VM 9031 "wk1" on pve3 was on pve2 when its replacement was begun`},
	}, func(t *testing.T, lab *Lab, s story) {
		requireManaged := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		var once sync.Once
		move := func() {
			once.Do(func() {
				require(t, lab.World.MigrateHA(worker1HA, "pve3") == nil, "HA does not move it") // not fatal: a roll calls this
				time.Sleep(2 * time.Minute)
			})
		}
		if s.at != "" {
			c.Emit = whenStarted(s.at, move)
		} else {
			c.Confirm = func(planning.Plan) (bool, error) { move(); return true, nil }
		}
		if err := c.roll(planning.Policy{})(t.Context()); s.says == "" {
			must(t, err) // with a new plan
		} else {
			requireRefused(t, err, s.says)
			requireManaged("pve3")
			lab.requireServing("wk1")
			must(t, lab.second().roll(planning.Policy{})(t.Context()))
		}
		requireManaged("pve3")
		requireInSync(t, lab)
		lab.requireKept(1)
	})
}

// TestAMoveMidRoll: a person migrates a VM whose turn has not come. A new plan rolls it where it is, and the report has all nodes.
func TestAMoveMidRoll(t *testing.T) {
	inStaleLab(t, sim.Options{Workers: 2, Hosts: 3, SharedDisks: true}, func(t *testing.T, lab *Lab) {
		c := lab.Client()
		c.Emit = whenStarted("wk1/bring-up", func() { lab.migrate(lab.node("wk2").VMID, "pve1") })
		rep := c.mustRoll(planning.Policy{})
		require(t, rep.Outcome == "done", "%+v", rep)
		requireSame(t, "pve1", lab.hostOf(lab.node("wk2").VMID), "host of wk2 (-want +got)")
		requireInSync(t, lab)
		run := valueOf(lab.Client().Project())(t).Runs().Read(rep.Run, past.Options{})
		requireSame(t, cluster.Fates{Done: []string{"wk1", "wk2"}}, *run.Fates, "fates (-want +got)")
		requireCount(t, 2, run.Plan.Work(), "nodes of the run's plan in the history")
	})
}
