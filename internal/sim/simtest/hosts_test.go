package simtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// hostsQuick is the maximum time in which a command must detect a down host.
const hostsQuick = 30 * time.Second

// hostsRefused fails the test unless a command was refused, at once, with these words.
func hostsRefused(t *testing.T, what string, do func() error, want ...string) {
	t.Helper()
	began := time.Now()
	err := do()
	if fault.KindOf(err) != fault.Refused {
		t.Errorf("%s: %v, want a refusal", what, err)
	}
	said := fmt.Sprint(err, fault.Hints(err))
	for _, text := range want {
		if !strings.Contains(said, text) {
			t.Errorf("%s: it does not say %q: %s", what, text, said)
		}
	}
	if took := time.Since(began); took > hostsQuick {
		t.Errorf("%s: it took %s", what, took)
	}
}

// TestAHostIsDown with a node on it: everything known about the others is reported, and
// nothing is rolled.
func TestAHostIsDown(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 2, Hosts: 3}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.World.CrashHost("pve3")
		time.Sleep(2 * time.Minute)
		began, c := time.Now(), lab.Client()
		const down = "Proxmox host pve3 is offline"

		plan, err := c.Plan(t.Context(), planning.Policy{})
		must(t, err)
		const waits = "wk1: other nodes are not Ready: wk2: bring them back first; one more out would be one too many. A worker that is to stay away: kubectl cordon it, or name it in roll.ignoreNodes\n"
		want := "wk2: its VM 9032 is on pve3, and " + down + ": bring pve3 back, or leave the node out with --exclude"
		if got := strings.Join(plan.Refused(), "\n"); got != waits+want || !strings.Contains(strings.Join(plan.Warn, "\n"), down) {
			t.Errorf("the plan refuses %q, warns of %q", got, plan.Warn)
		}
		if work := plan.Work(); len(work) != 1 || work[0].Node != "wk1" || work[0].Strategy != cluster.Recreate {
			t.Errorf("work %+v", work)
		}
		drift, err := c.Drift(t.Context())
		must(t, err)
		for i, want := range []string{"cp1 false 0", "wk1 true 0", "wk2 false 1"} {
			if d := drift.Nodes[i]; fmt.Sprint(d.Node, " ", d.Stale, " ", len(d.Unread)) != want {
				t.Errorf("drift of %s: %+v, want %s", d.Node, d, want)
			}
		}
		status, err := c.Status(t.Context())
		must(t, err)
		if got := strings.Join(status.Problems, "\n"); got != down+", so VM 9032 can't be read" {
			t.Errorf("status: %q", got)
		}
		if took := time.Since(began); took > hostsQuick {
			t.Errorf("reading took %s", took)
		}

		before := lab.Recorder.Mutations()
		hostsRefused(t, "roll", func() error { _, err := lab.Client().Roll(t.Context(), planning.Policy{}); return err }, want)
		if n := lab.Recorder.Mutations() - before; n > 0 {
			t.Errorf("%d changing requests were sent", n)
		}
		hostsRefused(t, "roll --exclude wk2", func() error {
			_, err := lab.Client().Roll(t.Context(), planning.Policy{Exclude: []string{"wk2"}})
			return err
		}, "other nodes are not Ready: wk2")

		lab.World.BootHost("pve3")
		must(t, lab.WaitReady(t.Context()))
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
	})
}

// TestAHostOfOthersIsDown: its VM can't refer to a disk on local storage.
func TestAHostOfOthersIsDown(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 1, Hosts: 3}, func(t *testing.T, lab *Lab) {
		// Its disk has the same name as wk1's; but pve3 has another storage.
		must(t, lab.World.DefineVM("pve3", 500, map[string]string{"name": "other", "scsi0": "fast:1"}, nil))
		lab.Patch(sim.PatchedExtension)
		lab.World.CrashHost("pve3")
		time.Sleep(2 * time.Minute)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		requireDrift(t, lab)
		lab.requireIntactAndKept(1)

		lab.World.BootHost("pve3")
		time.Sleep(2 * time.Minute)
		must(t, lab.World.DefineVM("pve3", 9077, map[string]string{"name": "nobody-knows"}, nil))
		lab.World.CrashHost("pve3")
		lab.Patch(sim.PatchedExtension)
		hostsRefused(t, "roll beside what may be a parking VM", func() error { _, err := lab.second().Roll(t.Context(), planning.Policy{}); return err },
			"wk1: Proxmox host pve3 is offline: VM 9077 may be a parking VM with an unfinished replacement of this node: bring pve3 back first")
	})
}

// TestResumeWhileAHostIsDown: the transaction's host stops it, another one does not.
func TestResumeWhileAHostIsDown(t *testing.T) {
	long(t)
	for name, own := range map[string]bool{"its own": true, "another": false} {
		for _, at := range []string{"take-down/park/scsi1", "bring-up/create-vm", "bring-up/start"} {
			t.Run(name+"/"+at, func(t *testing.T) {
				inLab(t, sim.Options{Workers: 1, Hosts: 3}, func(t *testing.T, lab *Lab) {
					must(t, lab.World.DefineVM("pve3", 500, map[string]string{"name": "other"}, nil))
					lab.Patch(sim.PatchedExtension)
					lab.rollKilledWhen(at)
					host := map[bool]string{true: "pve2", false: "pve3"}[own]
					lab.World.CrashHost(host)
					time.Sleep(2 * time.Minute)
					if own {
						down := "Proxmox host pve2 is offline"
						hostsRefused(t, "roll", func() error { _, err := lab.second().Roll(t.Context(), planning.Policy{}); return err }, down)
						hostsRefused(t, "recover", func() error { _, err := lab.second().Recover(t.Context(), "wk1"); return err }, down)
						lab.World.BootHost(host)
						time.Sleep(5 * time.Minute)
					}
					must(t, lab.second().roll(planning.Policy{})(t.Context()))
					if !own {
						lab.World.BootHost(host)
						time.Sleep(2 * time.Minute)
					}
					requireDrift(t, lab)
					lab.requireIntactAndKept(1)
					requireNoClaim(t, lab)
				})
			})
		}
	}
}

// hostsChanges calls f with the number of each change in Proxmox, without the claim's,
// right after it has acted and before the answer is sent.
func hostsChanges(lab *Lab, f func(n int, call record.Call)) {
	n := 0
	lab.Recorder.Hooks(nil, func(call record.Call) {
		ofClaim := call.Params["vmid"] == strconv.Itoa(claimVM) || strings.Contains(call.Path, fmt.Sprintf("/qemu/%d", claimVM))
		if call.Proto == "proxmox" && call.Mutation && !ofClaim {
			n++
			f(n, call)
		}
	})
}

// TestAHostThatRebootsAtEveryPoint of a replacement: only recast ever starts the VM, and
// the next run completes normally. It plays every fifth point, unless as many kills as in
// make crash are requested.
func TestAHostThatRebootsAtEveryPoint(t *testing.T) {
	long(t)
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		r := hostsReboot{strategy: strategy}
		points := 0
		synctest.Test(t, func(t *testing.T) { points = r.points(t) })
		if points < 10 {
			t.Fatalf("an undisturbed roll changes Proxmox only %d times", points)
		}
		for at := 1; at <= points; at++ {
			if !*crashAll && *crashSlice == 0 && uint64(at)%5 != *crashSeed%5 {
				continue
			}
			r := r
			r.off = time.Minute
			if at%2 == 0 {
				r.off = 5 * time.Minute
			}
			t.Run(fmt.Sprintf("%s/%d/%s", strategy, at, r.off), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r.run(t, func(lab *Lab, _ *Client, crash func(where string)) {
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

// TestAHostThatRebootsWhileTalosIsInstalled leaves a system disk that the boot ISO takes
// for installed, so it halts: the VM gets another one.
func TestAHostThatRebootsWhileTalosIsInstalled(t *testing.T) {
	long(t)
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for _, after := range []time.Duration{time.Second, 10 * time.Second, 18 * time.Second, 30 * time.Second, 45 * time.Second} {
			r := hostsReboot{strategy: strategy, off: time.Minute}
			t.Run(fmt.Sprintf("%s/%s", strategy, after), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r.run(t, func(_ *Lab, c *Client, crash func(where string)) {
						c.Emit = whenStarted("bring-up/wait-healthy", func() {
							time.AfterFunc(after, func() { crash(fmt.Sprintf("%s after the configuration was applied", after)) })
						})
					})
				})
			})
		}
	}
}

// TestKilledWhileTheDiskIsRenewed: after the half-installed disk is parked, and after the
// VM has got another one.
func TestKilledWhileTheDiskIsRenewed(t *testing.T) {
	long(t)
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for name, changes := range map[string]func(call record.Call) bool{
			"parked": func(call record.Call) bool {
				return strings.HasSuffix(call.Path, "/qemu/9031/move_disk") && call.Params["disk"] == "scsi0"
			},
			"allocated": func(call record.Call) bool {
				return strings.HasSuffix(call.Path, "/qemu/9031/config") && strings.HasPrefix(call.Params["scsi0"], "fast:")
			},
		} {
			t.Run(string(strategy)+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := hostsReboot{strategy: strategy, off: time.Minute}
					lab := r.lab(t)
					c := lab.Client()
					c.Emit = whenStarted("bring-up/wait-healthy", func() { time.AfterFunc(12*time.Second, func() { lab.World.RebootHost("pve2", r.off) }) })
					if _, err := c.Roll(t.Context(), planning.Policy{}); err == nil {
						t.Fatal("the roll succeeded without its host")
					}
					time.Sleep(10 * time.Minute)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					killed, next := false, lab.second()
					lab.Recorder.Hooks(nil, func(call record.Call) {
						if !killed && call.Proto == "proxmox" && call.Mutation && changes(call) {
							killed = true
							next.Kill()
							cancel()
						}
					})
					_, err := next.Roll(ctx, planning.Policy{})
					lab.Recorder.Hooks(nil, nil)
					if !killed {
						t.Fatalf("it was not killed: %v", err)
					}
					must(t, lab.as("20000101-0000-cafe").roll(planning.Policy{})(t.Context()))
					requireDrift(t, lab)
					lab.requireIntactAndKept(1)
					if strays := lab.strays(); len(strays) > 0 {
						t.Errorf("no configuration names %q", strays)
					}
				})
			})
		}
	}
}

// hostsReboot is a roll of wk1 whose host reboots.
type hostsReboot struct {
	strategy cluster.Strategy
	off      time.Duration
}

func (r hostsReboot) lab(t *testing.T) *Lab {
	lab := New(t, sim.Options{Workers: 1, Hosts: 3})
	lab.setRoll("strategy: " + string(r.strategy))
	lab.Patch(sim.PatchedExtension)
	return lab
}

// points is the number of changes in Proxmox of an undisturbed roll.
func (r hostsReboot) points(t *testing.T) (points int) {
	lab := r.lab(t)
	hostsChanges(lab, func(n int, _ record.Call) { points = n })
	defer lab.Recorder.Hooks(nil, nil)
	must(t, lab.Client().roll(planning.Policy{})(t.Context()))
	return points
}

func (r hostsReboot) run(t *testing.T, arm func(lab *Lab, c *Client, crash func(where string))) {
	lab := r.lab(t)
	crashed, c := make(chan string, 1), lab.Client()
	arm(lab, c, func(at string) {
		crashed <- at
		lab.World.CrashHost("pve2")
		time.AfterFunc(r.off, func() { lab.World.BootHost("pve2") })
	})
	_, err := c.Roll(t.Context(), planning.Policy{})
	lab.Recorder.Hooks(nil, nil)
	time.Sleep(10 * time.Minute)
	var where string
	select {
	case where = <-crashed:
	default:
		t.Fatal("the host was not rebooted")
	}
	released := err != nil && strings.HasPrefix(err.Error(), "give the claim of cluster lab back: ") // that error needs no remedy
	if err != nil && !released && !strings.Contains(fmt.Sprint(err, fault.Hints(err)), "pve2") {
		t.Errorf("%s: the error does not name the host: %v", where, err)
	}
	if broken := hostsStarts(lab); broken != nil {
		t.Errorf("%s: %v", where, broken)
	}
	_, next := lab.second().Roll(t.Context(), planning.Policy{})
	if hostsHalfMade(lab, next) {
		_, next = lab.as("20000101-0000-cafe").Roll(t.Context(), planning.Policy{})
	}
	if next != nil {
		t.Fatalf("%s (%v): the next roll: %v", where, err, next)
	}
	requireDrift(t, lab)
	lab.requireIntactAndKept(1)
	requireNoClaim(t, lab)
	if vm, err := lab.World.LookupVM("pve2", worker1); err != nil || vm.Config["onboot"] != "1" || !vm.Running {
		t.Errorf("%s: onboot %q, running %t, %v", where, vm.Config["onboot"], vm.Running, err)
	}
}

// hostsHalfMade follows the hint about a VM whose creation was interrupted: only root can
// remove that lock.
func hostsHalfMade(lab *Lab, err error) bool {
	for _, vm := range lab.World.VMs() {
		if hint := fmt.Sprintf("qm unlock %d && qm destroy %d", vm.ID, vm.ID); strings.Contains(fmt.Sprint(fault.Hints(err)), hint) {
			lab.World.SetLock(vm.ID, "")
			upid, err := lab.World.DestroyVM("root@pam", vm.Host, world.DestroyRequest{ID: vm.ID})
			must(lab.t, err)
			lab.World.WaitTask(upid)
			return true
		}
	}
	return false
}

// hostsStarts says whether a rebooted host has started a node's VM during its replacement,
// or a parking VM.
func hostsStarts(lab *Lab) error {
	vms := map[string]map[string]string{}
	for _, vm := range lab.World.VMs() {
		vms[strconv.Itoa(vm.ID)] = vm.Config
	}
	var errs []error
	for _, task := range lab.World.Tasks() {
		if task.Type != "qmstart" || task.User != "root@pam" {
			continue
		}
		config, there := vms[task.ID]
		if !there || config["onboot"] != "1" || strings.HasPrefix(config["name"], "recast-") {
			errs = append(errs, fmt.Errorf("VM %s was started at %s", task.ID, task.Start.Format(time.TimeOnly)))
		}
	}
	return errors.Join(errs...)
}
