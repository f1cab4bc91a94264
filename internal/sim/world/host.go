package world

import (
	"slices"
	"strconv"
	"time"
)

// bootTime is what a host takes from power on until it starts its VMs.
const bootTime = 30 * time.Second

// HostDown says that a Proxmox node is switched off.
func (w *World) HostDown(host string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down[host]
}

// CrashHost cuts a Proxmox node's power: its VMs are off, its tasks end where
// they are, and nothing cleans up behind them. It returns when the guests have ended.
func (w *World) CrashHost(host string) {
	w.mu.Lock()
	ended := w.cutPower(host)
	w.mu.Unlock()
	for _, p := range ended {
		p.kill()
	}
}

// cutPower returns the processes whose guests are yet to be killed; mu must be held.
func (w *World) cutPower(host string) []*process {
	w.down[host] = true
	for _, t := range w.tasks {
		if t.Host == host && t.Running {
			t.kill()
		}
	}
	var ended []*process
	for _, id := range w.vmids() {
		v := w.vms[id]
		if p := v.proc; v.host == host && p != nil {
			v.proc, v.qmp = nil, ""
			v.stopped, v.ranSince = time.Now(), p.started
			close(p.gone)
			ended = append(ended, p)
		}
	}
	return ended
}

// BootHost switches a node on again. When it is up it starts what has
// onboot=1, one after the other, and HA sees to its resources.
func (w *World) BootHost(host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.down[host] {
		return
	}
	delete(w.down, host)
	w.spawn(func() {
		if w.Delay(bootTime) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.startAll(host)
		}
	})
	for sid := range w.ha {
		w.manage(sid)
	}
}

// RebootHost is CrashHost, and BootHost after a while.
func (w *World) RebootHost(host string, off time.Duration) {
	w.CrashHost(host)
	if w.Delay(off) {
		w.BootHost(host)
	}
}

func (w *World) startAll(host string) {
	if w.down[host] {
		return
	}
	w.startTask(host, "startall", "", "root@pam", func(t *task) error {
		for _, id := range w.onBoot(host) {
			w.mu.Lock()
			t.logf("Starting VM %d", id)
			upid := w.startVM("root@pam", host, id)
			w.mu.Unlock()
			if ended, _ := w.WaitTask(upid); ended.ExitStatus != "OK" {
				w.mu.Lock()
				t.warnf("Starting VM %d failed: %s", id, ended.ExitStatus)
				w.mu.Unlock()
			}
			if err := t.begin(0); err != nil {
				return err
			}
		}
		return nil
	})
}

// onBoot lists the VMs that a host starts by itself; those under HA are HA's.
func (w *World) onBoot(host string) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(w.vmids(), func(id int) bool {
		v := w.vms[id]
		on, err := strconv.Atoi(v.config["onboot"])
		return v.host != host || err != nil || on == 0 || v.config["template"] == "1" || w.haStatus(id).Managed || v.proc != nil
	})
}
