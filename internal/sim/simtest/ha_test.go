package simtest

import (
	"cmp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	worker1   = 9031 // VMID of wk1
	worker1HA = "vm:9031"
)

// manageByHA puts wk1 under HA with its own settings and a rule, and lets recast's token
// change that.
func (l *Lab) manageByHA(r world.HAResource) {
	r.SID = worker1HA
	l.World.AddHA(r)
	l.World.AddHARule(world.HARule{ID: "near-storage", Type: "node-affinity", Resources: []string{worker1HA}, Options: map[string]string{"nodes": "pve1:2"}})
	l.World.AddRole("HA", "Sys.Console")
	for _, who := range []string{"recast@pve", "recast@pve!lab"} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: "HA", Propagate: true})
	}
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

// requireManaged compares HA's state with that before a roll.
func requireManaged(t *testing.T, lab *Lab, resources []world.HAResource, rules []world.HARule) {
	t.Helper()
	time.Sleep(time.Minute) // for the manager's rounds
	if diff := gocmp.Diff(resources, lab.World.HA()); diff != "" {
		t.Errorf("HA resources (-before +after):\n%s", diff)
	}
	if diff := gocmp.Diff(rules, lab.World.HARules()); diff != "" {
		t.Errorf("HA rules (-before +after):\n%s", diff)
	}
	vm, err := lab.World.LookupVM("pve1", worker1)
	if err != nil || !vm.Running || vm.Config["onboot"] != "1" {
		t.Errorf("running %t, onboot %q, %v", vm.Running, vm.Config["onboot"], err)
	}
}

// TestAVMUnderHA rolls it: HA does not start it meanwhile, and manages it again as before.
func TestAVMUnderHA(t *testing.T) {
	long(t)
	type story struct {
		strategy cluster.Strategy
		resource world.HAResource
	}
	cases := map[string]story{
		"recreate":          {cluster.Recreate, startedByUs()},
		"reimage":           {cluster.Reimage, startedByUs()},
		"in-place":          {cluster.InPlace, startedByUs()},
		"without settings":  {cluster.Recreate, world.HAResource{}},
		"in a group":        {cluster.Recreate, world.HAResource{State: "started", Group: "storage"}},
		"ignored by HA":     {cluster.Recreate, world.HAResource{State: "ignored", Options: map[string]string{"comment": "by hand"}}},
		"ignored, reimaged": {cluster.Reimage, world.HAResource{State: "ignored"}},
	}
	eachInLab(t, oneWorker(), cases, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: " + string(c.strategy))
		lab.manageByHA(c.resource)
		time.Sleep(time.Minute)
		resources, rules := lab.World.HA(), lab.World.HARules()
		resources[0].State = cmp.Or(resources[0].State, "started") // Proxmox's default
		lab.Patch(sim.PatchedExtension)
		cl, removed := lab.Client(), false
		cl.Emit = whenStarted("wk1/bring-up", func() { removed = len(lab.World.HA()) == 0 })
		must(t, cl.roll(planning.Policy{})(t.Context()))
		if removed != (c.strategy != cluster.InPlace) {
			t.Errorf("out of HA while it was down: %t", removed)
		}
		if starts := startedByHA(lab); len(starts) > 0 {
			t.Errorf("HA has started it: %q", starts)
		}
		requireManaged(t, lab, resources, rules)
		requireInSync(t, lab)
	})
}

// TestAKilledRollOfAVMUnderHA kills a roll before and after each of its changes of HA and
// of the VM's power, and runs it again.
func TestAKilledRollOfAVMUnderHA(t *testing.T) {
	long(t)
	cases := map[string]bool{ // with the journal
		"take-down/park": false, "bring-up/start": true, "finish/restore-ha": false, "finish/uncordon": true,
	}
	for at, journal := range cases {
		t.Run(at, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.manageByHA(startedByUs())
				time.Sleep(time.Minute)
				resources, rules := lab.World.HA(), lab.World.HARules()
				lab.Patch(sim.PatchedExtension)
				lab.rollKilledWhen(at)
				next := lab.second()
				if !journal {
					next = lab.elsewhere()
				}
				if _, err := next.Roll(t.Context(), planning.Policy{}); err != nil {
					t.Fatalf("the next roll: %v", err)
				}
				requireManaged(t, lab, resources, rules)
				requireInSync(t, lab)
			})
		})
	}
}

// TestHAThatMayNotBeChanged is detected before anything is touched.
func TestHAThatMayNotBeChanged(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.AddHA(world.HAResource{SID: worker1HA, State: "started"})
		lab.Patch(sim.PatchedExtension)
		before := lab.Recorder.Mutations()
		_, err := lab.Client().Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "lacks privileges: Sys.Console on /") ||
			!strings.Contains(strings.Join(fault.Hints(err), ""), "pveum acl modify / ") {
			t.Errorf("err = %v, hints %q", err, fault.Hints(err))
		}
		if n := lab.Recorder.Mutations() - before; n > 0 {
			t.Errorf("%d changing requests were sent", n)
		}
	})
}

// TestAStopThatFails leaves the node serving, and HA and onboot unchanged.
func TestAStopThatFails(t *testing.T) {
	long(t)
	type story struct{ fail, text string }
	cases := map[string]story{
		"HA can't be changed": {"DELETE /cluster/ha/resources/" + worker1HA, `take VM 9031 "wk1" on pve1 out of Proxmox HA: `},
		"the VM is locked":    {"PUT /nodes/pve1/qemu/9031/config", `unset onboot of VM 9031 "wk1" on pve1: `},
	}
	eachInLab(t, oneWorker(), cases, func(t *testing.T, lab *Lab, c story) {
		lab.manageByHA(startedByUs())
		time.Sleep(time.Minute)
		resources, rules := lab.World.HA(), lab.World.HARules()
		lab.Patch(sim.PatchedExtension)
		lab.World.FailNext(c.fail, "not now")
		_, err := lab.Client().Roll(t.Context(), planning.Policy{})
		if err == nil || !strings.Contains(err.Error(), "roll/workers/wk1/take-down/stop: "+c.text) {
			t.Errorf("err = %v", err)
		}
		node, err := lab.Kube.Node(t.Context(), "wk1")
		if err != nil || node.Spec.Unschedulable || !isReady(node) {
			t.Errorf("wk1 does not serve any more (%v)", err)
		}
		requireManaged(t, lab, resources, rules)
		requireDrift(t, lab, "wk1")
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireManaged(t, lab, resources, rules)
		requireDrift(t, lab)
	})
}

// TestAHostThatReboots with a stopped node on it, after a run was killed or during one:
// nothing starts an unfinished VM, and the next run finishes it and restores onboot.
func TestAHostThatReboots(t *testing.T) {
	long(t)
	type story struct {
		strategy cluster.Strategy
		at       string
		alive    bool
	}
	cases := map[string]story{
		"parked":              {cluster.Recreate, "take-down/park/scsi1", false},
		"deleted":             {cluster.Recreate, "bring-up/create-vm", false},
		"blank":               {cluster.Reimage, "bring-up/start", false},
		"under a living roll": {cluster.Recreate, "take-down/park/scsi1", true},
	}
	eachInLab(t, sim.Options{Workers: 1, Hosts: 2}, cases, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: " + string(c.strategy))
		lab.Patch(sim.PatchedExtension)
		if c.alive {
			cl := lab.Client()
			cl.Emit = whenStarted(c.at, func() { lab.World.CrashHost("pve2") })
			if _, err := cl.Roll(t.Context(), planning.Policy{}); err == nil {
				t.Fatal("the roll succeeded without its host")
			}
		} else {
			lab.rollKilledWhen(c.at)
			time.Sleep(time.Minute)
			lab.World.CrashHost("pve2")
		}
		time.Sleep(time.Minute)
		lab.World.BootHost("pve2")
		time.Sleep(5 * time.Minute)
		if vm, err := lab.World.LookupVM("pve2", worker1); err == nil && vm.Running {
			t.Error("the VM was started")
		}
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		vm, err := lab.World.LookupVM("pve2", worker1)
		if err != nil || vm.Config["onboot"] != "1" {
			t.Errorf("onboot %q, %v", vm.Config["onboot"], err)
		}
		requireInSync(t, lab)
		requireNoClaim(t, lab)
	})
}

// TestParkingOnEveryHost rolls nodes on two hosts, with their own disks and with data VMs'.
func TestParkingOnEveryHost(t *testing.T) {
	long(t)
	eachIn(t, func(holder bool) sim.Options { return sim.Options{Workers: 2, Hosts: 2, Holder: holder} }, map[string]bool{"own disks": false, "disks of data VMs": true}, func(t *testing.T, lab *Lab, holder bool) {
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
