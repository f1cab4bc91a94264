package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// fenceDelay is the time until HA fences a host: its watchdog has reset it when its lock was
	// not renewed for two minutes (NodeStatus.pm, Env/PVE2.pm).
	fenceDelay = 2 * time.Minute
	// recoveryDelay is the manager's next round, in which it chooses another host.
	recoveryDelay = clusterRound
)

// fence recovers the HA resources of a host on other hosts if it does not come back from
// that crash. If it came back or crashed again, fence does nothing.
func (w *World) fence(host string, crash int) {
	for {
		if !w.Delay(fenceDelay) {
			return
		}
		w.mu.Lock()
		away, quorum := w.down[host] && w.crashes[host] == crash, w.hasQuorum()
		if away && quorum {
			w.markFenced(host)
		}
		w.mu.Unlock()
		if !away {
			return
		}
		if quorum {
			break
		}
	}
	for w.Delay(recoveryDelay) {
		w.mu.Lock()
		left := w.recoverFrom(host)
		w.mu.Unlock()
		if !left {
			return
		}
	}
}

// recoverable says whether HA moves a resource away from a fenced host: those to be
// started, and those to be stopped too.
func (s *haService) recoverable() bool {
	return s.manager != "error" && slices.Contains([]string{"started", "stopped"}, s.state())
}

func (w *World) markFenced(host string) {
	for _, sid := range w.haOn(host) {
		if s := w.ha[sid]; s.recoverable() {
			s.manager = "fence"
		}
	}
}

// haOn lists the resources on a host, by SID.
func (w *World) haOn(host string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.ha)), func(sid string) bool {
		v := w.haVM(sid)
		return v == nil || v.host != host
	})
}

// recoverFrom moves the configurations of fenced resources to other hosts; their disks
// stay where they are. It says whether any could not be moved for now (next_state_recovery
// and $fence_recovery_cleanup in Manager.pm).
func (w *World) recoverFrom(host string) (left bool) {
	for _, sid := range w.haOn(host) {
		s, v := w.ha[sid], w.haVM(sid)
		if s.manager != "fence" && s.manager != "recovery" {
			continue
		}
		s.manager = "recovery"
		target := w.recoveryHost(sid)
		if target == "" || !w.hasQuorum() {
			left = true
			continue
		}
		if harmless := []string{"backup", "mounted", "migrate", "clone", "rollback", "snapshot", "snapshot-delete", "suspending", "suspended"}; slices.Contains(harmless, v.config["lock"]) {
			delete(v.config, "lock")
		}
		v.host, s.manager = target, "started"
		if s.state() == "stopped" {
			s.manager = "stopped"
		}
		w.manage(sid)
	}
	return left
}

// recoveryHost is the host with the fewest resources among those that a rule prefers, or
// else among all; "" if a strict rule allows none.
func (w *World) recoveryHost(sid string) string {
	up := slices.DeleteFunc(slices.Clone(w.hosts), func(host string) bool { return w.down[host] })
	for _, r := range w.haRules {
		if r.Type != "node-affinity" || !slices.Contains(r.Resources, sid) || r.Options["disable"] == "1" {
			continue
		}
		preferred := preferredHosts(r.Options["nodes"], up)
		if strict, ok := ParseBool(r.Options["strict"]); len(preferred) > 0 || ok && strict {
			up = preferred
		}
	}
	if len(up) == 0 {
		return ""
	}
	slices.Sort(up)
	return slices.MinFunc(up, func(a, b string) int { return len(w.haOn(a)) - len(w.haOn(b)) })
}

// preferredHosts parses "pve2:2,pve3": those of the highest priority that are up.
func preferredHosts(nodes string, up []string) (best []string) {
	highest := -1
	for entry := range strings.SplitSeq(nodes, ",") {
		host, priority, _ := strings.Cut(strings.TrimSpace(entry), ":")
		n, err := strconv.Atoi(priority)
		if err != nil {
			n = 0
		}
		switch {
		case !slices.Contains(up, host) || n < highest:
		case n > highest:
			highest, best = n, []string{host}
		default:
			best = append(best, host)
		}
	}
	return best
}

// resumeHA makes HA's managers check every resource again.
func (w *World) resumeHA() {
	for sid, s := range w.ha {
		if v := w.haVM(sid); v != nil && !w.down[v.host] && (s.manager == "fence" || s.manager == "recovery") {
			s.manager = s.state()
		}
		w.manage(sid)
	}
}
