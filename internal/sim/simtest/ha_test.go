package simtest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	worker1   = 9031 // VMID of wk1
	worker1HA = "vm:9031"
)

// managed is what Proxmox HA knows.
type managed struct {
	resources []world.HAResource
	rules     []world.HARule
}

// manageByHA puts wk1 under HA with its own settings and a rule, and lets recast's token change that.
func (l *Lab) manageByHA(r world.HAResource) managed {
	r.SID = worker1HA
	l.World.AddHA(r)
	l.World.AddHARule(world.HARule{ID: "near-storage", Type: "node-affinity", Resources: []string{worker1HA}, Options: map[string]string{"nodes": "pve1:2"}})
	l.allow("HA", "Sys.Console")
	time.Sleep(time.Minute) // for the manager's rounds
	m := managed{l.World.HA(), l.World.HARules()}
	m.resources[0].State = cmp.Or(m.resources[0].State, "started") // Proxmox's default
	return m
}

func startedByUs() world.HAResource {
	return world.HAResource{State: "started", Options: map[string]string{"max_restart": "2", "max_relocate": "0", "comment": "storage node"}}
}

// startedByHA lists the tasks in which HA, or a booting host, has started wk1.
func startedByHA(lab *Lab) []string {
	var out []string
	for _, task := range lab.World.Tasks() {
		if task.Type == "qmstart" && task.ID == "9031" && task.User == "root@pam" {
			out = append(out, task.Start.Format(time.TimeOnly)+" "+task.ExitStatus)
		}
	}
	return out
}

// require fails the test unless wk1 runs on that host, under HA as before.
func (m managed) require(t *testing.T, lab *Lab, host string) {
	t.Helper()
	time.Sleep(time.Minute) // for the manager's rounds
	requireSame(t, m.resources, lab.World.HA(), "HA resources (-before +after)")
	requireSame(t, m.rules, lab.World.HARules(), "HA rules (-before +after)")
	lab.requireRunning(host)
}

// requireRunning fails the test unless wk1's VM runs on that host and starts with it.
func (l *Lab) requireRunning(host string) {
	l.t.Helper()
	vm := valueOf(l.World.LookupVM(host, worker1))(l.t)
	require(l.t, vm.Running && vm.Config["onboot"] == "1",
		"on %q, running %t, onboot %q", l.hostOf(worker1), vm.Running, vm.Config["onboot"])
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
		before := lab.manageByHA(s.resource)
		lab.Patch(sim.PatchedExtension)
		c, removed := lab.Client(), false
		c.Emit = whenStarted("wk1/bring-up", func() { removed = len(lab.World.HA()) == 0 })
		must(t, c.roll(planning.Policy{})(t.Context()))
		require(t, removed == (s.strategy != cluster.InPlace), "out of HA while it was down: %t", removed)
		requireNone(t, startedByHA(lab), "HA has started it")
		before.require(t, lab, "pve1")
		requireInSync(t, lab)
	})
}

// TestAKilledRollOfAVMUnderHA kills a roll before and after each of its changes of HA and of the VM's power, and runs
// it again. HA does not recover a half-made VM whose host is down for long: it is out of HA since before it was powered
// off.
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
		before := lab.manageByHA(startedByUs())
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
		before.require(t, lab, host)
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
		before := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		lab.World.FailNext(s.fail, "not now")
		requireError(t, lab.Client().roll(planning.Policy{})(t.Context()), "roll/workers/wk1/take-down/stop: "+s.text)
		lab.requireServing("wk1")
		before.require(t, lab, "pve1")
		requireDrift(t, lab, "wk1")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		before.require(t, lab, "pve1")
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
		hosts := map[string]string{}
		for _, vm := range lab.World.VMs() {
			if node, ok := strings.CutPrefix(vm.Config["name"], "recast-parking-"); ok {
				hosts[node] += vm.Host
			}
		}
		for _, n := range lab.Nodes {
			if !n.ControlPlane && hosts[n.Name] != n.Host {
				t.Errorf("%s is on %s, its parking VM on %q", n.Name, n.Host, hosts[n.Name])
			}
		}
		requireInSync(t, lab)
	})
}

// vmWith is a VM of which that holds; its zero value if there is none.
func (l *Lab) vmWith(is func(world.VM) bool) (found world.VM) {
	for _, vm := range l.World.VMs() {
		if is(vm) {
			return vm
		}
	}
	return found
}

// hostOf is a VM's host; "" if there is no such VM.
func (l *Lab) hostOf(id int) string {
	return l.vmWith(func(vm world.VM) bool { return vm.ID == id }).Host
}

// migrate moves a VM as its administrator would, running or not.
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

// TestANodeThatWasMoved between its rolls has a parking VM on each host where it was
// rolled, and can roll back only on the host of its last system disk.
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
		hostsRefused(t, "rollback", lab.as("20000101-0030-aaaa").goBack("wk1"), "the system disk that run 20000101-0020-aaaa replaced is scsi",
			`"recast-parking-wk1" on pve3, and VM 9031 "wk1" on pve2 was moved since: on pve2: qm migrate 9031 pve3 --online --with-local-disks brings them together`)

		roll("20000101-0040-aaaa", "pve2:1 pve3:1") // each keeps roll.keepDisks disks
		requireInSync(t, lab)
		lab.requireKept(2)
	})
}

// TestMovedInTheMiddle of a replacement: nothing is destroyed, the error says how to
// reunite the VMs, and then the replacement is finished.
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
		hostsRefused(t, "roll", lab.second().roll(planning.Policy{}), "was moved since", says)
		hostsRefused(t, "recover", lab.second().giveUp("wk1"), "was moved since", says)
		requireNone(t, changesOfNodes(lab.Recorder.Calls()[before:]), "changes")
		lab.migrate(id, "pve2")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		lab.requireRolledOn(t, "pve2")
	})
}

// TestHAMovesTheVM while it is still under HA: that is detected before it is powered off, and leaves a serving node.
func TestHAMovesTheVM(t *testing.T) {
	type story struct {
		at   string // the step before which it moves; "": at the confirmation
		says string
	}
	eachLong(t, sim.Options{Workers: 1, Hosts: 3, SharedDisks: true}, map[string]story{
		"between plan and gate":  {"", `VM 9031 "wk1" on pve3 was on pve2 when the plan was made`},
		"between gate and drain": {"take-down/remember", `VM 9031 "wk1" on pve3 was on pve2 when the plan was made`},
		"while it is drained":    {"take-down/drain", `VM 9031 "wk1" on pve3 was on pve2 when its replacement was begun`},
	}, func(t *testing.T, lab *Lab, s story) {
		before := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		move := func() {
			require(t, lab.World.MigrateHA(worker1HA, "pve3") == nil, "HA does not move it") // not fatal: a roll calls this
			time.Sleep(2 * time.Minute)
		}
		if s.at != "" {
			c.Emit = whenStarted(s.at, move)
		} else {
			c.Confirm = func(planning.Plan) (bool, error) { move(); return true, nil }
		}
		requireRefused(t, c.roll(planning.Policy{})(t.Context()), s.says)
		before.require(t, lab, "pve3")
		lab.requireServing("wk1")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		before.require(t, lab, "pve3")
		requireInSync(t, lab)
		lab.requireKept(1)
	})
}
