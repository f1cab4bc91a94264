package world

import (
	"strconv"
	"strings"
	"time"
)

// The cluster's manager checks its resources every ten seconds; a host's manager carries
// out its decisions a few seconds later.
const (
	clusterRound = 10 * time.Second
	hostRound    = 5 * time.Second
)

// manage starts HA's managers for a resource, if they do not run already; mu must be held.
func (w *World) manage(sid string) {
	s := w.ha[sid]
	if s == nil || s.busy {
		return
	}
	s.busy = true
	if !w.spawn(func() { w.runManagers(sid, s) }) {
		s.busy = false
	}
}

// runManagers runs rounds until the VM is in the requested state.
func (w *World) runManagers(sid string, s *haService) {
	for {
		if !w.Delay(clusterRound) {
			return
		}
		w.mu.Lock()
		more := w.clusterManager(sid, s)
		s.busy = more
		w.mu.Unlock()
		if !more || !w.Delay(hostRound) {
			return
		}
		w.hostManager(sid, s)
	}
}

// clusterManager decides what to do next, and says whether there is anything to do.
// Without quorum, or on a host that is down, there is nothing for now.
func (w *World) clusterManager(sid string, s *haService) (more bool) {
	v := w.haVM(sid)
	if w.ha[sid] != s || v == nil || !w.hasQuorum() || w.down[v.host] {
		return false
	}
	running := v.proc != nil && !v.proc.paused
	if s.target != "" && s.target != v.host && s.manager != "error" && !w.down[s.target] {
		s.manager = "migrate"
		return true
	}
	s.target = ""
	switch s.state() {
	case "ignored":
		s.manager = ""
	case "started":
		if s.manager == "error" {
			return false
		}
		s.manager = "started"
		return !running
	case "stopped", "disabled":
		s.manager = "stopped"
		if running {
			s.manager = "request_stop"
		}
		return running
	}
	return false
}

func (w *World) haVM(sid string) *vm {
	id, err := strconv.Atoi(strings.TrimPrefix(sid, "vm:"))
	if err != nil {
		return nil
	}
	return w.vms[id]
}

// hostManager starts or stops the VM with a task of root's and waits for it. It retries a
// failed start max_restart times; then the state is "error".
func (w *World) hostManager(sid string, s *haService) {
	w.mu.Lock()
	v := w.haVM(sid)
	if w.ha[sid] != s || v == nil || w.down[v.host] {
		w.mu.Unlock()
		return
	}
	upid := w.order(v, s)
	w.mu.Unlock()
	if upid == "" {
		return
	}
	t, _ := w.WaitTask(upid)
	w.mu.Lock()
	defer w.mu.Unlock()
	s.target = ""
	if t.Type != "qmstart" || t.ExitStatus == "OK" || v.proc != nil {
		s.failed = 0
		return
	}
	limit := 1
	if n, err := strconv.Atoi(s.options["max_restart"]); err == nil {
		limit = n
	}
	if s.failed++; s.failed > limit {
		s.manager, s.failed = "error", 0
	}
}

// order starts the task for the manager's decision.
func (w *World) order(v *vm, s *haService) (upid string) {
	const root = "root@pam"
	switch {
	case s.manager == "migrate":
		return w.migrateVM(root, v.host, MigrateRequest{ID: v.id, Target: s.target, Online: true})
	case s.manager == "started" && v.proc == nil:
		return w.startVM(root, v.host, v.id)
	case s.manager != "request_stop":
		return ""
	case s.now:
		upid = w.stopVM(root, v.host, v.id)
	default:
		timeout := time.Duration(s.timeout) * time.Second
		upid = w.shutdownVM(root, v.host, ShutdownRequest{ID: v.id, Timeout: timeout, ForceStop: true})
	}
	s.now, s.timeout = false, 0
	return upid
}

// removeHA removes a resource from the configuration; the manager notices in its next round.
// mu must be held.
func (w *World) removeHA(sid string) {
	s := w.ha[sid]
	delete(w.ha, sid)
	w.haLeaving[sid] = s
	w.spawn(func() {
		w.Delay(clusterRound)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.haLeaving[sid] == s {
			delete(w.haLeaving, sid)
		}
	})
}

// guestEnded tells HA that a VM's process has ended; mu must be held.
func (w *World) guestEnded(sid string) {
	w.manage(sid)
	s := w.haLeaving[sid]
	if s == nil || s.manager != "started" {
		return
	}
	w.spawn(func() {
		w.Delay(hostRound)
		w.mu.Lock()
		defer w.mu.Unlock()
		if v := w.haVM(sid); w.haLeaving[sid] == s && v != nil && v.proc == nil && !w.down[v.host] {
			w.startVM("root@pam", v.host, v.id)
		}
	})
}

// requestMigration is the task of a managed VM's migration: it only asks HA.
func (w *World) requestMigration(user, host string, r MigrateRequest) string {
	return w.startTask(host, "hamigrate", strconv.Itoa(r.ID), user, func(t *task) error {
		if err := t.begin(taskTime); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		t.logf("Requesting HA migration for VM %d to node %s", r.ID, r.Target)
		s := w.ha[haSID(r.ID)]
		if s == nil || s.manager == "error" || !w.hasQuorum() {
			return failf("command 'ha-manager migrate vm:%d %s' failed: exit code 255", r.ID, r.Target)
		}
		s.target = r.Target
		w.manage(haSID(r.ID))
		return nil
	})
}

// requestHA is the task of a managed VM's start or stop: it only asks HA.
func (w *World) requestHA(user, host string, id int, state string, apply func(*haService)) string {
	kind, word, command := "hastart", "start", "set vm:%d --state started"
	if state == "stopped" {
		kind, word, command = "hastop", "stop", "crm-command stop vm:%d 0"
	}
	return w.startTask(host, kind, strconv.Itoa(id), user, func(t *task) error {
		if err := t.begin(taskTime); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		t.logf("Requesting HA %s for VM %d", word, id)
		s := w.ha[haSID(id)]
		if s == nil || s.manager == "error" || !w.hasQuorum() {
			return failf("command 'ha-manager "+command+"' failed: exit code 255", id)
		}
		s.options["state"] = state
		apply(s)
		w.manage(haSID(id))
		return nil
	})
}
