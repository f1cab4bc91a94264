package world

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bootTime is the time from power on until a host starts its VMs.
const bootTime = 30 * time.Second

// HostDown says whether a Proxmox node is powered off.
func (w *World) HostDown(host string) bool {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.down[host]
}

// crashOf counts the crashes of a host; a changed number means that earlier work was
// interrupted.
func (w *World) crashOf(host string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.crashes[host]
}

// CrashHost cuts a Proxmox node's power: its VMs go off and its tasks end without cleanup.
// It returns when the guests have ended.
func (w *World) CrashHost(host string) {
	w.mu.Lock()
	ended := w.cutPower(host)
	w.mu.Unlock()
	for _, p := range ended {
		p.kill()
	}
}

// cutPower returns the processes whose guests must still be killed; mu must be held.
func (w *World) cutPower(host string) []*process {
	w.down[host] = true
	w.crashes[host]++
	crash := w.crashes[host]
	w.spawn(func() { w.fence(host, crash) })
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

// BootHost powers a node on again. When it is up it starts the VMs with onboot=1
// sequentially, and HA handles its resources.
func (w *World) BootHost(host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.down[host] {
		return
	}
	delete(w.down, host)
	w.booted[host] = time.Now()
	w.resumeHA()
	w.spawn(func() {
		if w.Delay(bootTime) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.startAll(host)
		}
	})
}

// RebootHost is CrashHost, then BootHost after off.
func (w *World) RebootHost(host string, off time.Duration) {
	w.CrashHost(host)
	if w.Delay(off) {
		w.BootHost(host)
	}
}

// startAll is the first task of a host that has quorum (startall in API2/Nodes.pm): it
// removes the lock of an interrupted backup; other locks stay.
func (w *World) startAll(host string) {
	if w.down[host] {
		return
	}
	w.startTask(host, "startall", "", "root@pam", func(t *task) error {
		for !w.Quorate() {
			if err := t.delay(time.Second); err != nil {
				return err
			}
		}
		w.liftBackupLocks(t, host)
		for _, id := range w.onBoot(host) {
			if err := w.startOne(t, host, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *World) liftBackupLocks(t *task, host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.vmids() {
		if v := w.vms[id]; v.host == host && v.config["lock"] == "backup" {
			delete(v.config, "lock")
			t.logf("removed left over backup lock from '%d'!", id)
		}
	}
}

// startOne starts a VM and waits for its startup delay, three seconds by default.
func (w *World) startOne(t *task, host string, id int) error {
	w.mu.Lock()
	v := w.vms[id]
	if v == nil || v.proc != nil {
		w.mu.Unlock()
		return nil
	}
	up := startupNumber(v.config["startup"], "up", 3)
	t.logf("Starting VM %d", id)
	upid := w.startVM("root@pam", host, id)
	w.mu.Unlock()
	if ended, _ := w.WaitTask(upid); ended.ExitStatus != "OK" && !strings.HasPrefix(ended.ExitStatus, "WARNINGS") {
		t.printf("Starting VM %d failed: %s", id, ended.ExitStatus)
		return t.begin(0)
	}
	return t.begin(time.Duration(up) * time.Second)
}

// startupNumber reads one number of "order=1,up=30,down=60"; the first may lack its key.
func startupNumber(startup, name string, otherwise int) int {
	for part := range strings.SplitSeq(startup, ",") {
		value, named := strings.CutPrefix(part, name+"=")
		if !named && (name != "order" || strings.Contains(part, "=")) {
			continue
		}
		if n, err := strconv.Atoi(value); err == nil {
			return n
		}
	}
	return otherwise
}

// onBoot lists the VMs that a host starts by itself, in order, without those under HA.
func (w *World) onBoot(host string) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := slices.DeleteFunc(w.vmids(), func(id int) bool {
		v := w.vms[id]
		on, err := strconv.Atoi(v.config["onboot"])
		return v.host != host || err != nil || on == 0 || v.config["template"] == "1" || w.haStatus(id).Managed || v.proc != nil
	})
	order := func(id int) int { return startupNumber(w.vms[id].config["startup"], "order", math.MaxInt) }
	slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(order(a), order(b)) })
	return ids
}
