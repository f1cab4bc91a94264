package simtest

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
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

// manageByHA puts wk1 under HA with its own settings and a rule, and lets recast's token
// change that.
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

// allow gives recast a role with these privileges, besides its own.
func (l *Lab) allow(role string, privileges ...string) {
	l.World.AddRole(role, privileges...)
	for _, who := range []string{"recast@pve", "recast@pve!lab"} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: role, Propagate: true})
	}
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

// TestAKilledRollOfAVMUnderHA kills a roll before and after each of its changes of HA and
// of the VM's power, and runs it again.
func TestAKilledRollOfAVMUnderHA(t *testing.T) {
	type story struct {
		at      string
		journal bool
	}
	eachLong(t, oneWorker(), map[string]story{
		"out of HA, no journal":  {"take-down/park", false},
		"on, with the journal":   {"bring-up/start", true},
		"back in HA, no journal": {"finish/restore-ha", false},
		"under HA again":         {"finish/uncordon", true},
	}, func(t *testing.T, lab *Lab, s story) {
		before := lab.manageByHA(startedByUs())
		lab.Patch(sim.PatchedExtension)
		lab.rollKilledWhen(s.at)
		next := lab.second()
		if !s.journal {
			next = lab.elsewhere()
		}
		must(t, next.roll(planning.Policy{})(t.Context()))
		before.require(t, lab, "pve1")
		requireInSync(t, lab)
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

// TestLateHA: Proxmox puts a VM under HA for a roll that is dead, while a later roll has the VM off: HA
// must not start it.
func TestLateHA(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(record.Call) bool{
		"before its disks are parked": toVM("POST", "/qemu/9031/move_disk"),
		"before it is deleted":        toVM("DELETE", "/qemu/9031"),
		"before it is started":        toVM("POST", "/qemu/9031/status/start"),
	}, func(t *testing.T, lab *Lab, when func(record.Call) bool) {
		lab.allowShape()
		plain := lab.Read("recast.yaml")
		lab.shape("wk1", "ha: {state: started}")
		x := lab.rollKilledBy(toVM("POST", "/cluster/ha/resources"), planning.Policy{})
		must(t, os.WriteFile(filepath.Join(lab.Dir, "recast.yaml"), plain, 0o600))
		lab.Patch(sim.PatchedExtension)
		x.deliverBefore(func(c record.Call) bool {
			if !when(c) {
				return false
			}
			x.deliver()
			time.Sleep(time.Minute) // HA's rounds
			return true
		}, 0)
		err := lab.second().roll(planning.Policy{})(t.Context())
		lab.Recorder.Hooks(nil, nil)
		starts := startedByHA(lab)
		require(t, len(starts) == 0, "HA has started it: %q (%v)", starts, err)
		lab.RequireIntact()
		if err != nil {
			must(t, lab.second().roll(planning.Policy{})(t.Context()))
		}
		lab.requireServing("wk1")
		lab.RequireIntact()
	})
}
