package world

import (
	"fmt"
	"strconv"
	"time"
)

// PowerOn starts a VM at once, without task or permission checks, to build a lab.
func (w *World) PowerOn(id int) error {
	w.mu.Lock()
	v, ok := w.vms[id]
	if !ok {
		w.mu.Unlock()
		return fmt.Errorf("power on VM %d: there is none", id)
	}
	p, err := w.launch(v)
	w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("power on VM %d: %w", id, err)
	}
	w.boot(p)
	return nil
}

// PowerOff stops a VM's process at once and returns when its guest has ended.
func (w *World) PowerOff(id int) error {
	w.mu.Lock()
	v, ok := w.vms[id]
	if !ok {
		w.mu.Unlock()
		return fmt.Errorf("power off VM %d: there is none", id)
	}
	p := v.proc
	ended := w.endProcess(v, p)
	w.mu.Unlock()
	if ended {
		p.kill()
	}
	return nil
}

// Start starts a VM in a task. Only the task checks that the VM exists. For a VM under HA
// it only asks HA, and the task ends long before the VM runs.
func (w *World) Start(user, host string, id int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(id), "VM.PowerMgmt"); err != nil {
		return "", err
	}
	if err := w.checkQuorum(); err != nil {
		return "", err
	}
	if w.haStatus(id).Managed {
		return w.requestHA(user, host, id, "started", func(*haService) {}), nil
	}
	return w.startVM(user, host, id), nil
}

// startVM starts the task; mu must be held.
func (w *World) startVM(user, host string, id int) (upid string) {
	return w.startTask(host, "qmstart", strconv.Itoa(id), user, func(t *task) error {
		return w.withVM(t, host, id, func(v *vm) error {
			p, err := w.launch(v)
			if err == nil && v.temporaryVariables() {
				t.warnf("no efidisk configured! Using temporary efivars disk.")
			}
			w.mu.Unlock()
			if err == nil {
				w.boot(p)
			}
			w.mu.Lock()
			return err
		})
	})
}

// Stop stops a VM's process in a task; stopping a stopped VM succeeds. Under HA it is a request, as in
// Start.
func (w *World) Stop(user, host string, id int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(id), "VM.PowerMgmt"); err != nil {
		return "", err
	}
	if w.haStatus(id).Managed {
		return w.requestHA(user, host, id, "stopped", func(s *haService) { s.now = true }), nil
	}
	return w.stopVM(user, host, id), nil
}

func (w *World) stopVM(user, host string, id int) (upid string) {
	return w.startTask(host, "qmstop", strconv.Itoa(id), user, func(t *task) error {
		return w.withVM(t, host, id, func(v *vm) error {
			w.cut(v, v.proc)
			return nil
		})
	})
}

// ShutdownRequest asks for a clean shutdown.
type ShutdownRequest struct {
	ID        int
	Timeout   time.Duration // 0 means a minute
	ForceStop bool          // stop the process after the timeout
}

// Shutdown presses a VM's power button in a task and waits for the guest to power off.
func (w *World) Shutdown(user, host string, r ShutdownRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(r.ID), "VM.PowerMgmt"); err != nil {
		return "", err
	}
	if w.haStatus(r.ID).Managed {
		return w.requestHA(user, host, r.ID, "stopped", func(s *haService) { s.timeout = int(r.Timeout.Seconds()) }), nil
	}
	return w.shutdownVM(user, host, r), nil
}

func (w *World) shutdownVM(user, host string, r ShutdownRequest) (upid string) {
	if r.Timeout == 0 {
		r.Timeout = time.Minute
	}
	return w.startTask(host, "qmshutdown", strconv.Itoa(r.ID), user, func(t *task) error {
		return w.withVM(t, host, r.ID, func(v *vm) error { return w.powerButton(t, v, r) })
	})
}

// Reset restarts a VM's guest in a task; the process keeps running.
func (w *World) Reset(user, host string, id int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(id), "VM.PowerMgmt"); err != nil {
		return "", err
	}
	v, err := w.vmOn(host, id)
	if err != nil {
		return "", err
	}
	if v.proc == nil {
		return "", failf("VM %d not running", id)
	}
	return w.startTask(host, "qmreset", strconv.Itoa(id), user, func(t *task) error {
		return w.withVM(t, host, id, w.restart)
	}), nil
}

// withVM runs a worker under the lock of a VM's configuration. It calls act with mu held;
// act may release it meanwhile.
func (w *World) withVM(t *task, host string, id int, act func(*vm) error) error {
	unlock, err := w.lockConfig(id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := t.begin(taskTime); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	v, err := w.vmOn(host, id)
	if err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	return act(v)
}

// cut ends a process and waits for its guest's end; mu is held, but released meanwhile.
func (w *World) cut(v *vm, p *process) {
	ended := w.endProcess(v, p)
	w.mu.Unlock()
	if ended {
		p.kill()
	}
	w.mu.Lock()
}

// powerButton is the shutdown worker; mu is held, but released meanwhile.
func (w *World) powerButton(t *task, v *vm, r ShutdownRequest) error {
	p := v.proc
	if p == nil {
		return nil
	}
	expected := agentEnabled(v.config["agent"])
	w.mu.Unlock()
	_, answers := w.askAgent(v.id)
	gone, err := w.pressAndWait(t, p, r.Timeout, expected && !answers)
	w.mu.Lock()
	switch {
	case err != nil:
		return err
	case gone:
		return nil
	case r.ForceStop:
		t.warnf("VM still running - terminating now with SIGTERM")
		w.cut(v, p)
		return nil
	}
	return failf("VM quit/powerdown failed - got timeout")
}

// pressAndWait presses the button and waits for the end of the process. With deadAgent,
// three seconds pass first, waiting for an agent that doesn't answer.
func (w *World) pressAndWait(t *task, p *process, timeout time.Duration, deadAgent bool) (gone bool, err error) {
	if deadAgent {
		if err := t.delay(3 * time.Second); err != nil {
			return false, err
		}
	}
	<-p.booted
	p.guest.Shutdown()
	timer := time.NewTimer(w.scaled(timeout))
	defer timer.Stop()
	select {
	case <-p.gone:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-w.done:
		return false, ErrClosed
	case <-t.stop:
		return false, errInterrupted
	}
}

// restart ends the guest and boots the same machine again; mu is held, but released meanwhile.
func (w *World) restart(v *vm) error {
	old := v.proc
	if old == nil || w.closed {
		return failf("VM %d not running", v.id)
	}
	p := &process{started: old.started, gone: make(chan struct{}), booted: make(chan struct{})}
	p.hw = w.hardware(v, p)
	p.hw.BootOrder, p.hw.NVRAM = old.hw.BootOrder, old.hw.NVRAM
	v.proc = p
	close(old.gone)
	w.mu.Unlock()
	old.kill()
	w.boot(p)
	w.mu.Lock()
	return nil
}
