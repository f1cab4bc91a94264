package simtest

import (
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

// TestHAMovesTheVM while it is still under HA: that is detected before it is powered off,
// and leaves a serving node.
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
			must(t, lab.World.MigrateHA(worker1HA, "pve3"))
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

// TestHADoesNotRecoverAHalfMadeVM whose host is down for long: it is out of HA since
// before it was powered off, and back under HA at the end.
func TestHADoesNotRecoverAHalfMadeVM(t *testing.T) {
	steps := storiesOf("take-down/park/scsi0", "bring-up/start", "bring-up/wait-healthy")
	eachLong(t, sim.Options{Workers: 1, Hosts: 3, SharedDisks: true}, steps, func(t *testing.T, lab *Lab, at string) {
		before := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen(at)
		time.Sleep(time.Minute)
		lab.World.CrashHost("pve2")
		time.Sleep(20 * time.Minute)
		requireSame(t, "pve2", lab.hostOf(worker1), "it was recovered on (-want +got)")
		lab.World.BootHost("pve2")
		time.Sleep(5 * time.Minute)
		requireNone(t, startedByHA(lab), "it was started")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		before.require(t, lab, "pve2")
		requireInSync(t, lab)
		lab.requireKept(1)
	})
}
