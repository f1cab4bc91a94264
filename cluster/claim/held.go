package claim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Held is a claim that is ours for as long as Check returns nil. Its heartbeat ends with
// Release, with the context given to Acquire, or when the claim is lost.
type Held struct {
	claim  Claim
	place  place
	others place // where another run's claim may be; nil: nowhere
	stop   context.CancelFunc
	beats  sync.WaitGroup

	gone  chan struct{} // closed once the claim is lost
	mu    sync.Mutex
	alive time.Time // when the last change that is known to have arrived was sent
	fault error     // why no heartbeat has arrived since
	lost  error     // permanent; nothing is written after it
	doubt bool      // no heartbeat arrived for so long that another run may have ignored the claim

	ends map[context.Context]context.CancelCauseFunc // of contexts that end when the claim is lost

	excluding chan struct{} // holds a token while a goroutine checks the other place
	unseen    bool          // the other place could not be read yet
}

func hold(ctx context.Context, c Claim, sent time.Time) *Held {
	ctx, cancel := context.WithCancel(ctx)
	h := &Held{
		claim: c, stop: cancel, gone: make(chan struct{}), alive: sent,
		ends: map[context.Context]context.CancelCauseFunc{}, excluding: make(chan struct{}, 1),
	}
	h.place, h.others = h.claim.places()
	h.beats.Go(func() { h.beatOn(ctx) })
	return h
}

// Check reads the claim afresh and fails with fault.Claimed when it is no longer ours. If no
// heartbeat has arrived for half of Watch, it waits up to Watch for the next one, so that a
// short outage of Proxmox does not end a run; then it refuses.
func (h *Held) Check(ctx context.Context) error {
	start := time.Now()
	for {
		_, err := h.current(ctx)
		if err == nil {
			err = h.silence()
		} else if !h.claim.InLease || h.isLost() != nil || fault.KindOf(err) == fault.Refused {
			return &cluster.UnprovenError{Err: err} // the Proxmox client itself retries
		}
		if err == nil {
			break
		}
		if time.Since(start) >= h.claim.watch() {
			return &cluster.UnprovenError{Err: err}
		}
		select {
		case <-ctx.Done():
			return &cluster.UnprovenError{Err: err}
		case <-time.After(h.claim.heartbeat() / 3):
		}
	}
	if err := errors.Join(h.stillAlone(ctx), h.afterSilence(ctx)); err != nil {
		return &cluster.UnprovenError{Err: err}
	}
	return nil
}

// Cover adds these VMs to the claim as its nodes, and looks again for rivals that name one of them. It does nothing
// if the claim already names them.
func (h *Held) Cover(ctx context.Context, nodes []cluster.VMID) error {
	if !slices.ContainsFunc(nodes, func(id cluster.VMID) bool { return !slices.Contains(h.claim.Nodes, id) }) {
		return nil
	}
	err := h.change(ctx, func(s State) error {
		next := s
		next.Nodes, next.Beat = nodes, s.Beat+1
		return h.place.write(ctx, s, next)
	})
	if err != nil {
		return fmt.Errorf("claim the nodes of cluster %s: %w", h.claim.Cluster, err)
	}
	h.mu.Lock()
	h.claim.Nodes = nodes
	h.mu.Unlock()
	err = h.claim.lookAround(ctx, !h.claim.InLease, nil)
	if errors.Is(err, errYield) {
		err = fault.WithHint(fault.ClaimHeld.Of(fault.As(fault.Claimed, err)), "run the same command again")
	}
	return err
}

// Within returns ctx for as long as the claim is ours: losing the claim cancels ctx, with the loss as the cause.
func (h *Held) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.gone:
		end(h.lost)
	default:
		h.ends[ctx] = end
	}
	return ctx, func() {
		h.mu.Lock()
		delete(h.ends, ctx)
		h.mu.Unlock()
		end(nil)
	}
}

// Judge returns the error of a run that ended with err, which may be nil. A run that lost its claim reports the
// loss first, before any server's error.
func (h *Held) Judge(err error) error {
	if lost := h.Lost(); lost != nil {
		return fault.As(fault.Claimed, errors.Join(lost, err))
	}
	return err
}

// Lost says how the claim was lost; nil while the claim is ours, and after its release.
func (h *Held) Lost() error {
	select {
	case <-h.gone:
		return h.isLost()
	default:
		return nil
	}
}

// afterSilence looks for rivals if no heartbeat arrived for a long time: a run may have begun without seeing our
// claim, because the claim's host was unreachable. Hosts that do not answer are judged as in lookAround.
func (h *Held) afterSilence(ctx context.Context) error {
	h.mu.Lock()
	doubt := h.doubt
	h.mu.Unlock()
	if !doubt {
		return nil
	}
	err := h.claim.lookAround(ctx, !h.claim.InLease, func(rival State) error {
		return h.lose(fmt.Errorf("to %s, which has begun meanwhile (%s)", rival, rival.where()))
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubt = false
	return nil
}

func (h *Held) silence() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	silent := wait.Elapsed(h.alive)
	if silent <= h.claim.watch()/2 {
		return nil
	}
	err := fault.ClaimLost.Refusedf("can't prove that we still hold the claim of cluster %s: no heartbeat has arrived for %s", h.claim.Cluster, silent.Round(time.Second))
	if h.fault != nil {
		err = fault.ClaimLost.Refusedf("%w: %w", err, h.fault)
	}
	return fault.WithHint(err, "run the same command again: it takes the claim back if nobody else has it")
}

// current reads the claim if it is ours. A lost claim stays lost.
func (h *Held) current(ctx context.Context) (State, error) {
	if err := h.isLost(); err != nil {
		return State{}, err
	}
	s, err := h.place.read(ctx)
	_, strange := errors.AsType[*strangeError](err)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return State{}, h.lose(fmt.Errorf("%s was deleted", h.place))
	case strange:
		return State{}, h.lose(err)
	case err != nil:
		return State{}, fmt.Errorf("read the claim of cluster %s: %w", h.claim.Cluster, err)
	case !s.heldBy(h.claim.Run, h.claim.Holder):
		return State{}, h.lose(fmt.Errorf("to %s", s))
	}
	return s, nil
}

func (h *Held) isLost() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *Held) lose(how error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil {
		err := fault.As(fault.Claimed, fmt.Errorf("lost the claim of cluster %s: %w", h.claim.Cluster, how))
		h.lost = fault.WithHint(fault.ClaimLost.Of(err), "this run must stop; recast status shows what it left")
		close(h.gone)
		for _, end := range h.ends {
			end(h.lost)
		}
	}
	return h.lost
}

func (h *Held) beatOn(ctx context.Context) {
	pause, failing := h.claim.heartbeat(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		err := h.beat(ctx)
		pause = h.claim.heartbeat()
		switch {
		case ctx.Err() != nil:
			return
		case h.isLost() != nil:
			h.claim.say("%v", h.isLost())
			return
		case err != nil:
			pause /= 3
			if !failing {
				h.claim.say("heartbeat of the claim of cluster %s: %v; trying again", h.claim.Cluster, err)
			}
		}
		failing = err != nil
	}
}

func (h *Held) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.claim.heartbeat())
	defer cancel()
	s, err := h.current(ctx)
	if err == nil {
		next := s
		next.Beat++
		sent := time.Now()
		if err = h.place.write(ctx, s, next); err == nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.doubt = h.doubt || wait.Elapsed(h.alive) > h.claim.watch()/2
			h.alive, h.fault = sent, nil
			return nil
		}
	}
	if errors.Is(err, cluster.ErrChanged) {
		if _, lost := h.current(ctx); lost != nil {
			err = lost
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = err
	return err
}

// Release stops the heartbeat and deletes the claim if it is still ours. It may be called again
// after an error, and does nothing after a success.
func (h *Held) Release(ctx context.Context) error {
	h.stop()
	h.beats.Wait()
	if h.isLost() != nil {
		return nil
	}
	err := h.giveBack(ctx)
	if h.isLost() != nil {
		return nil // the claim is another run's now, or deleted
	}
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.lost = fault.ClaimLost.Refusedf("the claim of cluster %s was given back", h.claim.Cluster)
		return nil
	}
	return fault.WithHint(fault.ClaimLost.Of(fmt.Errorf("give the claim of cluster %s back: %w", h.claim.Cluster, err)),
		"nothing needs to be done: the next run takes it over once its heartbeat has stood still for %s", h.claim.watch())
}

func (h *Held) giveBack(ctx context.Context) error {
	return h.change(ctx, func(s State) error { return h.place.remove(ctx, s) })
}

// change changes our claim as read. It does so again if a heartbeat was faster, or if an answer was lost: a heartbeat
// that was cancelled before its answer came may still have arrived.
func (h *Held) change(ctx context.Context, do func(State) error) (err error) {
	for range 3 {
		var s State
		if s, err = h.current(ctx); err == nil {
			err = do(s)
		}
		if !errors.Is(err, cluster.ErrChanged) && !errors.Is(err, cluster.ErrLostAnswer) {
			return err
		}
	}
	return err
}

// Guard returns a Proxmox that checks before every change that the claim is still ours.
func (h *Held) Guard(px cluster.Proxmox) cluster.Proxmox { return hookedTo(px, h.writeVM) }

// hooked sends every change of a Proxmox through a hook. It embeds only interfaces that read: without a method
// here for each change, it does not compile.
type hooked struct {
	cluster.Access
	cluster.Inventory
	cluster.Tasks
	px    cluster.Proxmox
	write hook
}

func hookedTo(px cluster.Proxmox, write hook) hooked {
	return hooked{Access: px, Inventory: px, Tasks: px, px: px, write: write}
}

func (g hooked) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	return g.write(ctx, cluster.VM{}, func(ctx context.Context, _ cluster.VM) error {
		return g.px.CreateVM(ctx, host, id, config)
	})
}

func (g hooked) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.SetConfig(ctx, vm, set, del) })
}

func (g hooked) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.FreeDisk(ctx, vm, key) })
}

func (g hooked) DeleteVM(ctx context.Context, vm cluster.VM) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.DeleteVM(ctx, vm) })
}

func (g hooked) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error {
		return g.px.MoveDisk(ctx, vm, key, to, toKey)
	}, to)
}

// SetFirewall does not change the configuration, so no lock of the VM delays it.
func (g hooked) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	return g.write(ctx, cluster.VM{}, func(ctx context.Context, _ cluster.VM) error {
		return g.px.SetFirewall(ctx, vm, want)
	})
}

func (g hooked) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.GrowDisk(ctx, vm, key, size) })
}

func (g hooked) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.Migrate(ctx, vm, to) })
}

// SetPool, like SetFirewall, does not change the configuration.
func (g hooked) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	return g.write(ctx, cluster.VM{}, func(ctx context.Context, _ cluster.VM) error { return g.px.SetPool(ctx, id, pool) })
}

func (g hooked) RemoveHA(ctx context.Context, id cluster.VMID) error {
	return g.write(ctx, cluster.VM{}, func(ctx context.Context, _ cluster.VM) error { return g.px.RemoveHA(ctx, id) })
}

func (g hooked) AddHA(ctx context.Context, r cluster.HAResource) error {
	return g.write(ctx, cluster.VM{}, func(ctx context.Context, _ cluster.VM) error { return g.px.AddHA(ctx, r) })
}

func (g hooked) SetHA(ctx context.Context, r cluster.HAResource) error {
	return g.write(ctx, cluster.VM{}, func(ctx context.Context, _ cluster.VM) error { return g.px.SetHA(ctx, r) })
}

func (g hooked) Start(ctx context.Context, vm cluster.VM) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.Start(ctx, vm) })
}

func (g hooked) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.Shutdown(ctx, vm, grace) })
}

func (g hooked) Stop(ctx context.Context, vm cluster.VM) error {
	return g.write(ctx, vm, func(ctx context.Context, vm cluster.VM) error { return g.px.Stop(ctx, vm) })
}

// GuardTalos returns a Talos that checks before every change that the claim is still ours.
func (h *Held) GuardTalos(t cluster.Talos) cluster.Talos {
	return guardedTalos{MachineReader: t, EtcdReader: t, talos: t, held: h}
}

// guardedTalos embeds only interfaces that read, as hooked does.
type guardedTalos struct {
	cluster.MachineReader
	cluster.EtcdReader
	talos cluster.Talos
	held  *Held
}

func (g guardedTalos) EtcdForfeit(ctx context.Context, addr netip.Addr, uuid string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.EtcdForfeit(ctx, addr, uuid) })
}

func (g guardedTalos) EtcdLeave(ctx context.Context, addr netip.Addr, uuid string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.EtcdLeave(ctx, addr, uuid) })
}

func (g guardedTalos) EtcdService(ctx context.Context, addr netip.Addr) (state, last string, err error) {
	return g.talos.EtcdService(ctx, addr)
}

func (g guardedTalos) EtcdRecover(ctx context.Context, addr netip.Addr, uuid string, snapshot io.Reader) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.EtcdRecover(ctx, addr, uuid, snapshot) })
}

func (g guardedTalos) EtcdBootstrap(ctx context.Context, addr netip.Addr, uuid string, content cluster.EtcdContent) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.EtcdBootstrap(ctx, addr, uuid, content) })
}

func (g guardedTalos) PullInstaller(ctx context.Context, addr netip.Addr, uuid, installer string, say func(string)) (supported bool, err error) {
	return written(ctx, g.held, func(ctx context.Context) (bool, error) {
		return g.talos.PullInstaller(ctx, addr, uuid, installer, say)
	})
}

func (g guardedTalos) PullImage(ctx context.Context, addr netip.Addr, uuid string, c cluster.Component, image string, say func(string)) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.PullImage(ctx, addr, uuid, c, image, say) })
}

func (g guardedTalos) Install(ctx context.Context, addr netip.Addr, uuid, installer string, how cluster.Reboot, say func(string)) (reboots bool, err error) {
	return written(ctx, g.held, func(ctx context.Context) (bool, error) {
		return g.talos.Install(ctx, addr, uuid, installer, how, say)
	})
}

func (g guardedTalos) RestartKubelet(ctx context.Context, addr netip.Addr, uuid string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.RestartKubelet(ctx, addr, uuid) })
}

func (g guardedTalos) Reboot(ctx context.Context, addr netip.Addr, uuid string, how cluster.Reboot) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.Reboot(ctx, addr, uuid, how) })
}

func (g guardedTalos) Rollback(ctx context.Context, addr netip.Addr, uuid string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.Rollback(ctx, addr, uuid) })
}

func (g guardedTalos) ReplaceConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.ReplaceConfig(ctx, addr, uuid, config) })
}

func (g guardedTalos) TryConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret, limit time.Duration) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.TryConfig(ctx, addr, uuid, config, limit) })
}

func (g guardedTalos) StageConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.talos.StageConfig(ctx, addr, uuid, config) })
}

func (g guardedTalos) CheckConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) (reboots bool, err error) {
	// the dry run may end a trial
	return written(ctx, g.held, func(ctx context.Context) (bool, error) {
		return g.talos.CheckConfig(ctx, addr, uuid, config)
	})
}

// GuardMaintenance returns a Maintenance that applies a configuration only while the claim is still ours.
func (h *Held) GuardMaintenance(m cluster.Maintenance) cluster.Maintenance {
	return guardedMaintenance{MaintenanceReader: m, maintenance: m, held: h}
}

// guardedMaintenance embeds only what reads, as guardedKube does.
type guardedMaintenance struct {
	cluster.MaintenanceReader
	maintenance cluster.Maintenance
	held        *Held
}

func (g guardedMaintenance) ApplyConfig(ctx context.Context, addr netip.Addr, who cluster.Proof, config cluster.Secret) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.maintenance.ApplyConfig(ctx, addr, who, config) })
}

// GuardKube returns a Kube that checks before every change that the claim is still ours.
func (h *Held) GuardKube(k cluster.Kube) cluster.Kube {
	return guardedKube{KubeReader: k, kube: k, held: h}
}

// guardedKube embeds only interfaces that read, as hooked does.
type guardedKube struct {
	cluster.KubeReader
	kube cluster.Kube
	held *Held
}

func (g guardedKube) Cordon(ctx context.Context, node string, why cluster.Mark) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.Cordon(ctx, node, why) })
}

func (g guardedKube) Uncordon(ctx context.Context, node string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.Uncordon(ctx, node) })
}

func (g guardedKube) DeleteNode(ctx context.Context, node, uid string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.DeleteNode(ctx, node, uid) })
}

func (g guardedKube) SetFailedBuild(ctx context.Context, node, build string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.SetFailedBuild(ctx, node, build) })
}

func (g guardedKube) SetBooted(ctx context.Context, node string, b cluster.Booted) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.SetBooted(ctx, node, b) })
}

func (g guardedKube) RestoreMetadata(ctx context.Context, node string, m cluster.NodeMetadata) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.RestoreMetadata(ctx, node, m) })
}

func (g guardedKube) SetProxyImage(ctx context.Context, from, to string) error {
	return g.held.Write(ctx, func(ctx context.Context) error { return g.kube.SetProxyImage(ctx, from, to) })
}

func (g guardedKube) HoldRebuild(ctx context.Context, system, node, run string, atLeast time.Duration) (said string, err error) {
	return written(ctx, g.held, func(ctx context.Context) (string, error) {
		return g.kube.HoldRebuild(ctx, system, node, run, atLeast)
	})
}

func (g guardedKube) GiveBack(ctx context.Context, system string, nodes ...string) (said string, err error) {
	return written(ctx, g.held, func(ctx context.Context) (string, error) {
		return g.kube.GiveBack(ctx, system, nodes...)
	})
}

// Drain evicts pods one by one, for minutes. If a heartbeat finds meanwhile that the claim was lost, Drain ends
// with the loss as its error.
func (g guardedKube) Drain(ctx context.Context, node string, o cluster.DrainOptions, say func(string)) error {
	return g.held.Write(ctx, func(ctx context.Context) error {
		err := g.kube.Drain(ctx, node, o, say)
		if lost := g.held.isLost(); err != nil && lost != nil {
			return lost
		}
		return err
	})
}

// Write sends one change. Before that, it reads the claim afresh and requires that it is ours. While the change is
// sent, losing the claim ends ctx. Every guard of this package, the prunes and the uploads of a roll send what they
// change through Write.
func (h *Held) Write(ctx context.Context, send func(context.Context) error) error {
	if err := h.Check(ctx); err != nil {
		return err
	}
	ctx, end := h.Within(ctx)
	defer end()
	return send(ctx)
}

func written[T any](ctx context.Context, h *Held, send func(context.Context) (T, error)) (result T, err error) {
	err = h.Write(ctx, func(ctx context.Context) error {
		result, err = send(ctx)
		return err
	})
	return result, err
}

// hook sends one change of Proxmox, at the time and under the conditions that it decides. vm is the VM whose lock
// Proxmox respects for the change; the zero VM: none. send gets vm as last read. others are further VMs that the
// change involves.
type hook func(ctx context.Context, vm cluster.VM, send func(context.Context, cluster.VM) error, others ...cluster.VMID) error

func (h *Held) writeVM(ctx context.Context, vm cluster.VM, send func(context.Context, cluster.VM) error, _ ...cluster.VMID) error {
	return h.Write(ctx, func(ctx context.Context) error { return send(ctx, vm) })
}

// lockWait bounds the wait for another task on a VM. recast takes no node out when a backup is due, so a person
// started that task.
const lockWait = 15 * time.Minute

// WithPatience returns a Proxmox that waits, and says so, while another task, such as a backup, locks a VM that is
// to be changed. Afterwards it makes the change only if the VM is otherwise unchanged.
func WithPatience(px cluster.Proxmox, poll time.Duration, say func(text string)) cluster.Proxmox {
	p := &patient{poll: poll, say: say}
	p.hooked = hookedTo(px, p.change)
	return p
}

type patient struct {
	hooked
	poll time.Duration
	say  func(text string)
}

// VM waits for the end of a backup that started the VM: while a stopped VM is backed up, it runs without a guest
// (pve-manager's vzdump, in qemu-server, PVE/VZDump/QemuServer.pm, enforce_vm_running_for_backup).
func (p *patient) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := p.px.VM(ctx, id)
	if err != nil || !forBackup(vm) {
		return vm, err
	}
	if _, err := p.free(ctx, vm.ID, forBackup); err != nil {
		return vm, err
	}
	return p.px.VM(ctx, id)
}

// VMState waits like VM if the VM may run only for a backup.
func (p *patient) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	s, err := p.px.VMState(ctx, id)
	if err != nil || s.QMP != "prelaunch" {
		return s, err
	}
	vm, err := p.VM(ctx, id)
	return vm.State(), err
}

func forBackup(vm cluster.VM) bool { return vm.Running && vm.Lock == "backup" && vm.QMP == "prelaunch" }

// free waits while held is true for a VM; waited is false if it never was.
func (p *patient) free(ctx context.Context, id cluster.VMID, held func(cluster.VM) bool) (waited bool, err error) {
	w := wait.For{Name: fmt.Sprintf("VM %d free", id), Every: p.poll, Timeout: lockWait, Seen: func(seen string) { p.say(fmt.Sprintf("waiting for VM %d: %s", id, seen)) }}
	last := cluster.VM{ID: id}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		vm, err := p.px.VM(ctx, id)
		if errors.Is(err, cluster.ErrNotFound) {
			return true, "", nil
		}
		if err != nil || !held(vm) {
			return err == nil, "", err
		}
		waited, last = true, vm
		return false, "it is locked (" + vm.Lock + ")", nil
	})
	if !waited {
		return false, err
	}
	return true, fault.WithHint(fault.VMLocked.Of(err), "%s. Then run the same command again", last.Unlock())
}

// change is the hook: it makes a change of vm that also involves others. If Proxmox refuses the change because of a
// lock, change tries again after the lock ends. A lock is part of the configuration and so changes its digest. The
// digest does not cover the others, so change checks that they are unchanged.
func (p *patient) change(ctx context.Context, vm cluster.VM, send func(context.Context, cluster.VM) error, others ...cluster.VMID) error {
	if vm.ID == 0 { // no lock delays the change
		return send(ctx, vm)
	}
	ids := append([]cluster.VMID{vm.ID}, others...)
	for start := time.Now(); ; {
		err := send(ctx, vm)
		if !errors.Is(err, cluster.ErrLocked) && !errors.Is(err, cluster.ErrChanged) || time.Since(start) >= lockWait {
			return err
		}
		before, errLook := p.look(ctx, others)
		if errLook != nil {
			return errors.Join(err, errLook)
		}
		waited := false
		for _, id := range ids {
			w, errLock := p.free(ctx, id, cluster.Locked)
			if errLock != nil {
				return errors.Join(err, errLock)
			}
			waited = waited || w
		}
		if err := p.lasting(ctx, ids, err); err != nil {
			return err
		}
		now, errLook := p.look(ctx, ids)
		if errLook != nil {
			return errors.Join(err, errLook)
		}
		for i, was := range append([]cluster.VM{vm}, before...) {
			switch {
			case sameButLock(was, now[i]) && (i == 0 || !now[i].Running): // a running target would get the disk by hot-plug
			case i == 0 && errors.Is(err, cluster.ErrChanged):
				return err
			default:
				return fmt.Errorf("%w; then %s was %w", err, now[i], cluster.ErrChanged)
			}
		}
		if !waited { // the lock had already ended
			select {
			case <-ctx.Done():
				return err
			case <-time.After(p.poll):
			}
		}
		vm = now[0]
		if err := cluster.RequireQuorum(ctx, p.px); err != nil {
			return err
		}
	}
}

func (p *patient) look(ctx context.Context, ids []cluster.VMID) ([]cluster.VM, error) {
	var vms []cluster.VM
	for _, id := range ids {
		vm, err := p.px.VM(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("look up VM %d: %w", id, err)
		}
		vms = append(vms, vm)
	}
	return vms, nil
}

// sameButLock reports whether a VM is unchanged since the change was decided, apart from its lock.
func sameButLock(a, b cluster.VM) bool {
	without := func(vm cluster.VM) map[string]string {
		config := maps.Clone(vm.Config)
		delete(config, "lock")
		return config
	}
	return a.Host == b.Host && maps.Equal(without(a), without(b)) && slices.Equal(a.Pending, b.Pending)
}

// lasting returns the refusal with the lock that caused it, if no task will release that lock, else nil.
func (p *patient) lasting(ctx context.Context, ids []cluster.VMID, refused error) error {
	for _, id := range ids {
		vm, err := p.px.VM(ctx, id)
		if err != nil || vm.Lock == "" || cluster.Locked(vm) {
			continue
		}
		return fault.WithHint(fault.VMLocked.Errorf("%s is locked (%s): %w", vm, vm.Lock, refused),
			"%s", vm.Unlock())
	}
	return nil
}

// Start also waits if the VM already runs, but only to be backed up.
func (p *patient) Start(ctx context.Context, vm cluster.VM) error {
	return p.change(ctx, vm, func(ctx context.Context, vm cluster.VM) error {
		err := p.px.Start(ctx, vm)
		if err == nil {
			return nil
		}
		if now, errLook := p.px.VM(ctx, vm.ID); errLook == nil && forBackup(now) {
			return fmt.Errorf("%w (backup): %w", cluster.ErrLocked, err)
		}
		return err
	})
}
