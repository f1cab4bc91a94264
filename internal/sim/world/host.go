package world

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bootTime is the time from power on until a host starts its VMs.
const bootTime = 30 * time.Second

// HostDown reports whether a Proxmox node is powered off.
func (w *World) HostDown(host string) bool { return look(w, func() bool { return w.down[host] }) }

// crashOf returns the number of crashes of a host; a changed number means that earlier work was interrupted.
func (w *World) crashOf(host string) int { return look(w, func() int { return w.crashes[host] }) }

// CrashHost cuts a Proxmox node's power: its VMs go off and its tasks end without cleanup. CrashHost returns when the
// guests have ended.
func (w *World) CrashHost(host string) {
	w.mu.Lock()
	ended := w.cutPower(host)
	w.mu.Unlock()
	for _, p := range ended {
		p.kill()
	}
}

// cutPower cuts a host's power and returns the processes whose guests must still be killed; mu must be held.
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

// BootHost powers a node on again. When the node is up, it starts the VMs with onboot=1 sequentially, and HA handles
// its resources.
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

// RebootHost calls CrashHost, and BootHost after off.
func (w *World) RebootHost(host string, off time.Duration) {
	w.CrashHost(host)
	if w.Delay(off) {
		w.BootHost(host)
	}
}

// startAll runs the first task of a host that has quorum (startall in API2/Nodes.pm): it removes the lock of an
// interrupted backup; other locks stay.
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

// onBoot lists the VMs that a host starts by itself, in order. VMs under HA are not among them.
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

const (
	// fenceDelay is the time until HA fences a host: the host's watchdog resets a host whose lock was not renewed for
	// two minutes (NodeStatus.pm, Env/PVE2.pm).
	fenceDelay = 2 * time.Minute
	// recoveryDelay is the time until the manager's next round, in which it chooses another host.
	recoveryDelay = clusterRound
)

// fence recovers the HA resources of a host on other hosts if the host does not come back from that crash. If the
// host came back or crashed again, fence does nothing.
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

// recoverable reports whether HA moves a resource away from a fenced host: HA moves resources to be started, and also
// those to be stopped.
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

// recoverFrom moves the configurations of fenced resources to other hosts; their disks stay where they are. It reports
// whether any resource could not be moved for now (next_state_recovery and $fence_recovery_cleanup in Manager.pm).
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

// recoveryHost returns the host with the fewest resources among the hosts that a rule prefers, or else among all
// hosts; "" if a strict rule allows no host.
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

// preferredHosts parses "pve2:2,pve3" and returns the hosts of the highest priority that are up.
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

// rootDisk is a host's disk with / and /var/tmp.
type rootDisk struct{ total, used int64 }

// SetRootDisk sets the size and usage of a host's root disk.
func (w *World) SetRootDisk(host string, total, used int64) {
	w.set(func() { *w.root(host) = rootDisk{total: total, used: used} })
}

// RootDisk returns the size and usage of a host's root disk, including uploads in /var/tmp.
func (w *World) RootDisk(host string) (total, used int64) {
	w.mu.Look()
	defer w.mu.Unlock()
	d := w.root(host)
	return d.total, d.used
}

// root returns a host's root disk, by default 1 TiB with a tenth in use; mu must be held.
func (w *World) root(host string) *rootDisk {
	d, ok := w.roots[host]
	if !ok {
		d = &rootDisk{total: 1024 * gib, used: 102 * gib}
		w.roots[host] = d
	}
	return d
}

func (w *World) takeRoot(host string, more int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.root(host)
	if more > 0 && d.used+more > d.total {
		return false
	}
	d.used += more
	return true
}

// SetClock sets a host's clock off by offset from now on: earlier timestamps stay.
func (w *World) SetClock(host string, offset time.Duration) {
	w.set(func() { w.clocks[host] = offset })
}

func (w *World) Clock(host string) time.Time { return look(w, func() time.Time { return w.now(host) }) }

// now does the work of Clock; mu must be held.
func (w *World) now(host string) time.Time { return time.Now().Add(w.clocks[host]) }

// upBefore is the uptime of hosts when the world is made.
const upBefore = 24 * time.Hour

// Uptime returns a host's uptime, independent of its clock.
func (w *World) Uptime(host string) time.Duration {
	return look(w, func() time.Duration { return w.uptime(host) })
}

func (w *World) uptime(host string) time.Duration {
	return time.Duration(float64(time.Since(w.booted[host])) * w.speed)
}

// userHz is the number of clock ticks per second in /proc.
const userHz = 100

// ticks returns the start time of a process that starts now, in ticks since its host's boot (proc_pid_stat(5),
// starttime).
func (w *World) ticks(host string) int { return int(w.uptime(host) / (time.Second / userHz)) }

// ProxyFailure is the way in which requests from one host's API to another's fail: a status of AnyEvent::HTTP, which
// Proxmox passes on, and the delay.
type ProxyFailure struct {
	Status int
	Reason string
	After  time.Duration
	Acts   bool // the other host executes the request, but its answer is lost
}

// The ways in which a host can't reach another, or gets no answer within the thirty seconds that pveproxy waits.
var (
	ConnectionRefused  = ProxyFailure{Status: 595, Reason: "Connection refused"}
	NoRouteToHost      = ProxyFailure{Status: 595, Reason: "No route to host", After: 3 * time.Second}
	ConnectionTimedOut = ProxyFailure{Status: 595, Reason: "Connection timed out", After: 30 * time.Second}
	CertificateFailed  = ProxyFailure{Status: 596, Reason: "certificate verify failed"}
	AnswerTimedOut     = ProxyFailure{Status: 596, Reason: "Connection timed out", After: 30 * time.Second, Acts: true}
)

// BreakProxy makes a host unreachable for the APIs of all others; nothing else fails. The zero ProxyFailure repairs it.
func (w *World) BreakProxy(host string, f ProxyFailure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f == (ProxyFailure{}) {
		delete(w.proxies, host)
		return
	}
	w.proxies[host] = f
}

// SetDaemon sets whether a host's pvedaemon runs. The host's pveproxy needs pvedaemon for requests that require root.
func (w *World) SetDaemon(host string, runs bool) { w.set(func() { w.noDaemon[host] = !runs }) }

// DaemonRuns reports whether a host's pvedaemon runs.
func (w *World) DaemonRuns(host string) bool {
	return look(w, func() bool { return !w.noDaemon[host] })
}

// ProxyFailure says how requests to a host through another host fail, if they do.
func (w *World) ProxyFailure(host string) (f ProxyFailure, broken bool) {
	w.mu.Look()
	defer w.mu.Unlock()
	if w.down[host] {
		return NoRouteToHost, true
	}
	f, broken = w.proxies[host]
	return f, broken
}

// Ceph is the state, as Ceph reports it, of the Ceph that the Proxmox hosts run themselves.
type Ceph struct {
	Checks map[string]CephCheck // health checks that fail, by code
	Silent bool                 // its monitors don't answer
}

// CephCheck is a health check that fails.
type CephCheck struct {
	Severity string // "HEALTH_WARN", "HEALTH_ERR"
	Message  string
}

// Health returns the worst severity.
func (c Ceph) Health() string {
	order := []string{"HEALTH_OK", "HEALTH_WARN", "HEALTH_ERR"}
	worst := 0
	for _, check := range c.Checks {
		worst = max(worst, slices.Index(order, check.Severity))
	}
	return order[worst]
}

// SetCeph sets up Ceph on the hosts, or changes what Ceph reports.
func (w *World) SetCeph(c Ceph) {
	w.set(func() { w.ceph = &Ceph{Checks: maps.Clone(c.Checks), Silent: c.Silent} })
}

// Ceph returns what the hosts' Ceph reports. Without Ceph, the error is the error of a host on which Ceph is not
// installed (pve-manager, PVE/Ceph/Tools.pm, check_ceph_installed).
func (w *World) Ceph() (Ceph, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ceph == nil:
		return Ceph{}, errors.New("binary not installed: /usr/bin/ceph-mon")
	case w.ceph.Silent:
		return Ceph{}, errors.New("rados_connect failed - Connection timed out") // librados-perl, RADOS.pm
	}
	return Ceph{Checks: maps.Clone(w.ceph.Checks)}, nil
}

// VNet is a network of Proxmox' SDN, on all hosts. The IPAM of its zone is not simulated.
type VNet struct {
	Name, Zone string
	IPAM       bool
}

func (w *World) AddVNet(v VNet) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vnets = append(w.vnets, v)
	slices.SortFunc(w.vnets, func(a, b VNet) int { return cmp.Compare(a.Name, b.Name) })
}

// VNets lists the VNets, by name.
func (w *World) VNets() []VNet { return cloned(w, &w.vnets) }

// LocalBridge is the only bridge of every host.
const LocalBridge = "vmbr0"

// localZone contains every bridge that is not a VNet (pve-access-control, RPCEnvironment.pm, check_sdn_bridge).
const localZone = "localnetwork"

func (w *World) zoneOf(bridge string) string {
	if i := slices.IndexFunc(w.vnets, func(v VNet) bool { return v.Name == bridge }); i >= 0 {
		return w.vnets[i].Zone
	}
	return localZone
}
