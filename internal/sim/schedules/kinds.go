package schedules

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

var errStruck = errors.New("struck by a fault")

func kinds() []kind {
	return slices.Concat(processKinds(), lateKinds(), clockKinds(), serverKinds(), machineKinds(), foreignKinds(), strangerKinds(), otherKinds(), preparedKinds(), surgeKinds())
}

// processKinds returns the faults of recast's own process and its answers.
func processKinds() []kind {
	die := func(away bool) func(*play, *struck) { return func(p *play, _ *struck) { p.kill(away) } }
	return []kind{
		{name: "kill", weight: 6, atCall: true, after: die(false)},
		{name: "kill-before", weight: 3, atCall: true, before: func(p *play, _ *struck) error { p.kill(false); return errStruck }},
		{name: "kill-away", weight: 4, atCall: true, after: die(true)},
		{name: "lost", weight: 4, atCall: true, after: func(p *play, _ *struck) { p.blink() }},
		{name: "dropped", weight: 3, atCall: true, before: func(*play, *struck) error { return errStruck }},
		{name: "second", weight: 2, act: func(p *play, _ *struck) (func(), error) { p.second(); return nil, nil }},
		{name: "twin", weight: 2, act: func(p *play, _ *struck) (func(), error) { p.twin(); return nil, nil }},
	}
}

// serverKinds returns the faults of Proxmox and of the API of Kubernetes.
func serverKinds() []kind {
	return []kind{
		{name: "task", weight: 3, atCall: true, litters: true, before: func(p *play, s *struck) error {
			if task := taskOf(s.call); task != "" {
				p.lab.World.FailNext(task, "command '/sbin/lvs' failed: exit code 5")
			}
			return nil
		}},
		{name: "refused", weight: 2, atCall: true, before: func(p *play, s *struck) error {
			if s.call.Proto == "proxmox" {
				p.lab.World.FailNext(s.call.Method+" "+pathOf(s.call), "unable to open file '/etc/pve/local/x' - Input/output error")
			}
			return nil
		}},
		{name: "worker", weight: 3, atCall: true, litters: true, after: func(p *play, _ *struck) {
			if tasks := p.lab.World.Tasks(); len(tasks) > 0 && tasks[0].Running {
				p.lab.World.KillTask(tasks[0].UPID)
			}
		}},
		{name: "quorum", weight: 4, lasts: true, litters: true, act: func(p *play, _ *struck) (func(), error) {
			p.lab.World.SetQuorum(false)
			return func() { p.lab.World.SetQuorum(true) }, nil
		}},
		{name: "daemon", weight: 2, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			host := p.hostOf(s.Where)
			p.lab.World.SetDaemon(host, false)
			return func() { p.lab.World.SetDaemon(host, true) }, nil
		}},
		{name: "host", weight: 3, onNode: true, lasts: true, etcd: true, litters: true, act: func(p *play, s *struck) (func(), error) {
			host := p.hostOf(s.Where)
			p.lab.World.CrashHost(host)
			return func() { p.lab.World.BootHost(host) }, nil
		}},
		full("full", sim.DiskStorage), full("full-isos", sim.ISOStorage),
		{name: "busy", weight: 2, lasts: true, act: func(p *play, _ *struck) (func(), error) {
			p.lab.World.BusyStorage(sim.DiskStorage, -1, world.RenameBusy)
			return func() { p.lab.World.BusyStorage(sim.DiskStorage, 0, 0) }, nil
		}},
		{name: "token", weight: 2, lasts: true, act: func(p *play, _ *struck) (func(), error) {
			id, _, _ := strings.Cut(p.lab.Token(), "=")
			p.lab.World.ExpireToken(id, true)
			return func() { p.lab.World.ExpireToken(id, false) }, nil
		}},
		{name: "api", weight: 2, lasts: true, act: func(p *play, _ *struck) (func(), error) {
			p.withoutAPI(1)
			return func() { p.withoutAPI(-1) }, nil
		}},
		slow("proxmox"), slow("talos"), slow("kubernetes"),
	}
}

// slow returns the fault of an API that processes requests only after the fault's end.
func slow(server string) kind {
	return kind{name: "slow-" + server, weight: 1, lasts: true, act: func(p *play, _ *struck) (func(), error) {
		return func() { _ = p.lab.Slow(server, 0) }, p.lab.Slow(server, longest) // a valid server
	}}
}

func full(name, storage string) kind {
	return kind{name: name, weight: 1, lasts: true, act: func(p *play, _ *struck) (func(), error) {
		p.lab.World.FillStorage(storage)
		return func() { p.lab.World.FreeStorage(storage) }, nil
	}}
}

// machineKinds returns the faults of the nodes' machines.
func machineKinds() []kind {
	return []kind{
		{name: "mute", weight: 2, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			id := p.lab.Nodes[s.Where].VMID
			p.mute(id, true)
			return func() { p.mute(id, false) }, nil
		}},
		{name: "off", weight: 2, onNode: true, lasts: true, etcd: true, act: toVM(runs, func(p *play, s *struck, vm world.VM) (func(), error) {
			// A person starts it again, unless recast is replacing it.
			return func() { p.startAgain(s.Where) }, p.lab.World.PowerOff(vm.ID)
		})},
		{name: "reset", weight: 1, onNode: true, etcd: true, act: toVM(runs, func(p *play, _ *struck, vm world.VM) (func(), error) {
			_, err := p.lab.World.Reset("", vm.Host, vm.ID)
			return nil, err
		})},
		{name: "etcd", weight: 2, onNode: true, lasts: true, etcd: true, act: func(p *play, s *struck) (func(), error) {
			node := p.lab.Nodes[s.Where]
			if !node.ControlPlane {
				return nil, errNothing
			}
			return func() { _ = p.lab.BreakEtcd(node.Name, talosapi.EtcdFault{}) }, p.lab.BreakEtcd(node.Name, talosapi.EtcdFault{Down: true}) // it was just found
		}},
	}
}

// errNothing says that the fault does not apply now.
var errNothing = errors.New("there is nothing to do it to")

// toVM returns a fault's act on a node's VM. The act does nothing unless the VM exists and is accepts it.
func toVM(is func(world.VM) bool, act func(p *play, s *struck, vm world.VM) (func(), error)) func(*play, *struck) (func(), error) {
	return func(p *play, s *struck) (func(), error) {
		vm, err := p.vmOf(s.Where)
		if err != nil || !is(vm) {
			return nil, errNothing
		}
		return act(p, s, vm)
	}
}

func runs(vm world.VM) bool     { return vm.Running }
func rests(vm world.VM) bool    { return !vm.Running }
func unlocked(vm world.VM) bool { return vm.Config["lock"] == "" }
func anyhow(world.VM) bool      { return true }

// foreignKinds returns other people's changes of the VMs, as root@pam.
func foreignKinds() []kind {
	return []kind{
		{name: "cordon", weight: 3, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			return func() { p.uncordon(s.Where) }, p.cordon(s.Where)
		}},
		edited("memory", "memory", "8192"), edited("description", "description", "Somebody was here."),
		{name: "snapshot", weight: 1, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			id := p.lab.Nodes[s.Where].VMID
			return func() { _ = p.lab.World.DeleteSnapshot(id, "theirs") }, p.lab.World.AddSnapshot(id, world.Snapshot{Name: "theirs"}) // it may be gone with its VM
		}},
		{name: "locked", weight: 1, onNode: true, lasts: true, act: func(p *play, s *struck) (func(), error) {
			release, err := p.lab.World.HoldLock(p.lab.Nodes[s.Where].VMID)
			return release, err
		}},
		{name: "lock", weight: 1, onNode: true, foreign: true, act: toVM(unlocked, func(p *play, s *struck, vm world.VM) (func(), error) {
			p.lab.World.SetLock(vm.ID, "suspended")
			// After a reboot in between, the host could not start it.
			return func() {
				p.lab.World.SetLock(vm.ID, "")
				p.startAgain(s.Where)
			}, nil
		})},
		{name: "stop", weight: 1, onNode: true, foreign: true, etcd: true, act: toVM(runs, func(p *play, s *struck, vm world.VM) (func(), error) {
			return func() { p.startAgain(s.Where) }, p.task(p.lab.World.Stop("", vm.Host, vm.ID))
		})},
		{name: "start", weight: 1, onNode: true, foreign: true, act: toVM(rests, func(p *play, _ *struck, vm world.VM) (func(), error) {
			return nil, p.task(p.lab.World.Start("", vm.Host, vm.ID))
		})},
		{name: "migrate", weight: 1, onNode: true, foreign: true, act: func(p *play, s *struck) (func(), error) {
			vm, err := p.vmOf(s.Where)
			if err != nil || p.c.Hosts < 2 || p.c.Holder {
				return nil, errNothing
			}
			hosts := p.lab.World.Hosts()
			target := hosts[0]
			if target == vm.Host {
				target = hosts[1]
			}
			return nil, p.migrate(vm, target) // recast reverts it if it has begun
		}},
	}
}

// edited returns the fault of a changed value of a VM's key. The value is reverted in the end.
func edited(name, key, value string) kind {
	return kind{name: name, weight: 1, onNode: true, foreign: true, act: toVM(anyhow, func(p *play, s *struck, vm world.VM) (func(), error) {
		old := vm.Config[key]
		set := func(to string) error {
			return p.lab.World.SetConfig("", p.hostOf(s.Where), world.ChangeRequest{ID: vm.ID, Set: map[string]string{key: to}})
		}
		return func() {
			if now, err := p.vmOf(s.Where); err == nil && now.Merged()[key] == value {
				_ = set(old) // the VM was just found
				if now, err := p.vmOf(s.Where); err == nil && now.Merged()[key] != now.Config[key] {
					_ = set(value) // it already runs with that value, and would have to be restarted
				}
			}
		}, set(value)
	})}
}

func pathOf(call record.Call) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(call.Path, "/api2/json"), "?")
	return path
}

// taskOf returns the type of the task that a call to Proxmox starts; "" for none.
func taskOf(call record.Call) string {
	path := pathOf(call)
	_, last, _ := strings.Cut(path, "/qemu/")
	_, last, _ = strings.Cut(last, "/")
	switch {
	case call.Proto != "proxmox":
		return ""
	case call.Method == "DELETE" && strings.Contains(path, "/qemu/"):
		return "qmdestroy"
	case call.Method != "POST":
		return ""
	case strings.HasSuffix(path, "/qemu"):
		return "qmcreate"
	}
	return map[string]string{
		"move_disk": "qmmove", "config": "qmconfig", "status/start": "qmstart", "status/stop": "qmstop", "status/shutdown": "qmshutdown",
	}[last]
}

// task waits for another user's task.
func (p *play) task(upid string, err error) error {
	if err != nil {
		return err
	}
	if t, _ := p.lab.World.WaitTask(upid); t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS") {
		return errors.New(t.ExitStatus)
	}
	return nil
}

func (p *play) migrate(vm world.VM, target string) error {
	return p.task(p.lab.World.Migrate("", vm.Host, world.MigrateRequest{ID: vm.ID, Target: target, Online: vm.Running, WithLocalDisks: vm.Running}))
}

func (p *play) start(vm world.VM) { _ = p.task(p.lab.World.Start("", vm.Host, vm.ID)) } // callers check the result

// startAgain starts a node's stopped VM, unless recast is replacing it. Without quorum it retries for some time.
func (p *play) startAgain(node int) {
	if !p.needsStart(node) {
		return
	}
	p.beside.Go(func() {
		for range 20 {
			sleep(p.ctx, 30*time.Second)
			if !p.needsStart(node) {
				return
			}
		}
	})
}

// needsStart tries to start a node's VM, and reports whether the VM is still stopped.
func (p *play) needsStart(node int) bool {
	vm, err := p.vmOf(node)
	if err != nil || vm.Running || p.inExchange(node) {
		return false
	}
	p.start(vm)
	vm, err = p.vmOf(node)
	return err == nil && !vm.Running
}

// cordon cordons a node like a person who does not check whether the node is cordoned already.
func (p *play) cordon(node int) error {
	name := p.lab.Nodes[node].Name
	k, err := p.lab.Kube.Node(p.ctx, name)
	if err != nil || k.Spec.Unschedulable {
		return errNothing
	}
	p.lab.Cordon(name, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cordoned[name] = true
	return nil
}

func (p *play) uncordon(node int) {
	name := p.lab.Nodes[node].Name
	p.mu.Lock()
	delete(p.cordoned, name)
	p.mu.Unlock()
	p.lab.Cordon(name, false)
}

// mute makes a machine accept requests without answering. The machine calls back while it
// holds Silence's lock, so the caller must not hold p.mu.
func (p *play) mute(vmid int, on bool) {
	p.mu.Lock()
	p.muted[vmid] = on
	p.mu.Unlock()
	p.lab.Silence(func(r talosapi.Request) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.muted[r.VMID]
	})
}

func (p *play) withoutAPI(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.apiAway += n
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
