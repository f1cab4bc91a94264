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
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// requireIntactAndKept is RequireIntact and a number of old system disks, besides those of
// cancelled replacements, such as a half-installed one.
func (l *Lab) requireIntactAndKept(n int) {
	l.t.Helper()
	l.RequireIntact()
	kept := 0
	for _, vm := range l.World.VMs() {
		rec, ok, err := parking.ReadRecord(cluster.VM{ID: cluster.VMID(vm.ID), Config: vm.Config})
		if err != nil || ok && rec.Open {
			l.t.Errorf("VM %d: open, or %v", vm.ID, err)
		}
		kept += len(slices.DeleteFunc(rec.Kept, func(k parking.KeptDisk) bool { return k.GivenUp }))
	}
	if kept != n {
		l.t.Errorf("%d old system disks are kept, want %d", kept, n)
	}
}

// hostOf is a VM's host; "" if there is no such VM.
func (l *Lab) hostOf(id int) string {
	for _, vm := range l.World.VMs() {
		if vm.ID == id {
			return vm.Host
		}
	}
	return ""
}

// migrate moves a VM as its administrator would, running or not.
func (l *Lab) migrate(id int, to string) {
	l.t.Helper()
	from := l.hostOf(id)
	vm, err := l.World.LookupVM(from, id)
	must(l.t, err)
	upid, err := l.World.Migrate("", from, world.MigrateRequest{ID: id, Target: to, Online: vm.Running, WithLocalDisks: vm.Running})
	must(l.t, err)
	if task, _ := l.World.WaitTask(upid); task.ExitStatus != "OK" {
		l.t.Fatalf("migrate VM %d to %s: %s", id, to, task.ExitStatus)
	}
	time.Sleep(20 * time.Second) // until the cluster's list has it
}

// parkingsByHost are wk1's parking VMs: host, number of kept disks.
func (l *Lab) parkingsByHost() string {
	var out []string
	for _, vm := range l.World.VMs() {
		rec, ok, err := parking.ReadRecord(cluster.VM{ID: cluster.VMID(vm.ID), Config: vm.Config})
		if err != nil {
			l.t.Error(err)
		}
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
	for name, shared := range map[string]bool{"local storage": false, "shared storage": true} {
		t.Run(name, func(t *testing.T) {
			long(t)
			inLab(t, sim.Options{Workers: 1, Hosts: 3, SharedDisks: shared}, func(t *testing.T, lab *Lab) {
				roll := func(run string) {
					t.Helper()
					lab.Patch(sim.PatchedExtension)
					must(t, lab.as(run).roll(planning.Policy{})(t.Context()))
				}
				requireParked := func(want string) {
					t.Helper()
					if got := lab.parkingsByHost(); got != want {
						t.Errorf("kept disks by host: %s, want %s", got, want)
					}
				}
				roll("20000101-0001-aaaa")
				requireParked("pve2:1")
				lab.migrate(worker1, "pve3")
				roll("20000101-0010-aaaa")
				requireParked("pve2:1 pve3:1")
				if lab.hostOf(worker1) != "pve3" {
					t.Errorf("wk1 is on %s", lab.hostOf(worker1))
				}

				must(t, errOf(lab.as("20000101-0020-aaaa").Rollback(t.Context(), planning.Policy{Only: []string{"wk1"}})))
				requireParked("pve2:1 pve3:1")
				requireDrift(t, lab, "wk1") // it runs the previous lock
				lab.migrate(worker1, "pve2")
				hostsRefused(t, "rollback", func() error {
					_, err := lab.as("20000101-0030-aaaa").Rollback(t.Context(), planning.Policy{Only: []string{"wk1"}})
					return err
				}, "the system disk that run 20000101-0020-aaaa replaced is scsi", `"recast-parking-wk1" on pve3, and VM 9031 "wk1" on pve2 was moved since: on pve2: qm migrate 9031 pve3 --online --with-local-disks brings them together`)

				roll("20000101-0040-aaaa")
				requireParked("pve2:1 pve3:1") // each keeps roll.keepDisks disks
				requireInSync(t, lab)
				if strays := lab.strays(); !shared && len(strays) > 0 {
					t.Errorf("no configuration names %q", strays)
				}
			})
		})
	}
}

// TestMovedInTheMiddle of a replacement: nothing is destroyed, the error says how to
// reunite the VMs, and then the replacement is finished.
func TestMovedInTheMiddle(t *testing.T) {
	long(t)
	type story struct {
		at      string
		parking bool // that one is moved
		shared  bool
		says    string
	}
	cases := map[string]story{
		"the VM, while its disks are parked": {"take-down/park/scsi1", false, false, "on pve3: qm migrate 9031 pve2)"},
		"the VM, on shared storage":          {"take-down/park/scsi1", false, true, "on pve3: qm migrate 9031 pve2)"},
		"the VM, when it runs again":         {"bring-up/wait-healthy", false, false, "on pve3: qm migrate 9031 pve2 --online --with-local-disks)"},
		"the parking VM":                     {"take-down/park/scsi1", true, false, "on pve3: qm migrate %d pve2)"},
		"the parking VM, the VM deleted":     {"bring-up/create-vm", true, false, "on pve3: qm migrate %d pve2)"},
		"the parking VM, on shared storage":  {"bring-up/create-vm", true, true, "on pve3: qm migrate %d pve2)"},
	}
	eachIn(t, func(c story) sim.Options { return sim.Options{Workers: 1, Hosts: 3, SharedDisks: c.shared} }, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen(c.at)
		time.Sleep(2 * time.Minute)
		id, says := worker1, c.says
		if c.parking {
			id = lab.parkingVM()
			says = fmt.Sprintf(c.says, id)
		}
		lab.migrate(id, "pve3")
		before := len(lab.Recorder.Calls())
		for what, run := range map[string]func(*Client) error{
			"roll":    func(c *Client) error { _, err := c.Roll(t.Context(), planning.Policy{}); return err },
			"recover": func(c *Client) error { _, err := c.Recover(t.Context(), "wk1"); return err },
		} {
			c := lab.second()
			err := run(c)
			if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "was moved since") || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %s", what, err, says)
			}
		}
		if changes := changesOfNodes(lab.Recorder.Calls()[before:]); len(changes) > 0 {
			t.Errorf("changes: %q", changes)
		}
		lab.migrate(id, "pve2")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		lab.requireIntactAndKept(1)
	})
}

// parkingVM is the number of the only parking VM.
func (l *Lab) parkingVM() int {
	l.t.Helper()
	for _, vm := range l.World.VMs() {
		if strings.HasPrefix(vm.Config["name"], "recast-parking-") {
			return vm.ID
		}
	}
	l.t.Fatal("there is no parking VM")
	return 0
}

// TestHAMovesTheVM while it is still under HA: that is detected before it is powered off,
// and leaves a serving node.
func TestHAMovesTheVM(t *testing.T) {
	long(t)
	move := func(lab *Lab) {
		if err := lab.World.MigrateHA(worker1HA, "pve3"); err != nil {
			lab.t.Error(err)
		}
		time.Sleep(2 * time.Minute)
	}
	type story struct {
		arm  func(lab *Lab, c *Client)
		says string
	}
	cases := map[string]story{
		"between plan and gate": {func(lab *Lab, c *Client) {
			c.Confirm = func(planning.Plan) (bool, error) { move(lab); return true, nil }
		}, `VM 9031 "wk1" on pve3 was on pve2 when the plan was made`},
		"between gate and drain": {func(lab *Lab, c *Client) {
			c.Emit = whenStarted("take-down/remember", func() { move(lab) })
		}, `VM 9031 "wk1" on pve3 was on pve2 when the plan was made`},
		"while it is drained": {func(lab *Lab, c *Client) {
			c.Emit = whenStarted("take-down/drain", func() { move(lab) })
		}, `VM 9031 "wk1" on pve3 was on pve2 when its replacement was begun`},
	}
	eachInLab(t, sim.Options{Workers: 1, Hosts: 3, SharedDisks: true}, cases, func(t *testing.T, lab *Lab, tc story) {
		lab.manageByHA(startedByUs())
		time.Sleep(time.Minute)
		resources, rules := lab.World.HA(), lab.World.HARules()
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		tc.arm(lab, c)
		if _, err := c.Roll(t.Context(), planning.Policy{}); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("err = %v, want %s", err, tc.says)
		}
		requireOnHost(t, lab, "pve3", resources, rules)
		node, err := lab.Kube.Node(t.Context(), "wk1")
		if err != nil || node.Spec.Unschedulable || !isReady(node) {
			t.Errorf("wk1 does not serve any more (%v)", err)
		}
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireOnHost(t, lab, "pve3", resources, rules)
		requireDrift(t, lab)
		lab.requireIntactAndKept(1)
	})
}

// TestHADoesNotRecoverAHalfMadeVM whose host is down for long: it is out of HA since
// before it was powered off, and back under HA at the end.
func TestHADoesNotRecoverAHalfMadeVM(t *testing.T) {
	long(t)
	for _, at := range []string{"take-down/park/scsi0", "bring-up/start", "bring-up/wait-healthy"} {
		t.Run(at, func(t *testing.T) {
			inLab(t, sim.Options{Workers: 1, Hosts: 3, SharedDisks: true}, func(t *testing.T, lab *Lab) {
				lab.manageByHA(startedByUs())
				time.Sleep(time.Minute)
				resources, rules := lab.World.HA(), lab.World.HARules()
				lab.Patch(sim.PatchedExtension)
				lab.rollKilledWhen(at)
				time.Sleep(time.Minute)
				lab.World.CrashHost("pve2")
				time.Sleep(20 * time.Minute)
				if host := lab.hostOf(worker1); host != "pve2" {
					t.Errorf("it was recovered on %q", host)
				}
				lab.World.BootHost("pve2")
				time.Sleep(5 * time.Minute)
				if starts := startedByHA(lab); len(starts) > 0 {
					t.Errorf("it was started: %q", starts)
				}
				must(t, lab.second().roll(planning.Policy{})(t.Context()))
				requireOnHost(t, lab, "pve2", resources, rules)
				requireDrift(t, lab)
				lab.requireIntactAndKept(1)
			})
		})
	}
}

// requireOnHost: wk1 runs there, under HA as before.
func requireOnHost(t *testing.T, lab *Lab, host string, resources []world.HAResource, rules []world.HARule) {
	t.Helper()
	time.Sleep(time.Minute) // for the manager's rounds
	vm, err := lab.World.LookupVM(host, worker1)
	if err != nil || !vm.Running || vm.Config["onboot"] != "1" {
		t.Errorf("on %q, running %t, onboot %q, %v", lab.hostOf(worker1), vm.Running, vm.Config["onboot"], err)
	}
	if got := lab.World.HA(); fmt.Sprint(got) != fmt.Sprint(resources) {
		t.Errorf("HA resources %+v, before %+v", got, resources)
	}
	if got := lab.World.HARules(); fmt.Sprint(got) != fmt.Sprint(rules) {
		t.Errorf("HA rules %+v, before %+v", got, rules)
	}
}
