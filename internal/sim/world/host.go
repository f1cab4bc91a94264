package world

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
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
	defer w.mu.changing()()
	if !w.down[host] {
		return
	}
	delete(w.down, host)
	w.booted[host] = time.Now()
	w.resumeHA()
	w.spawn(func() {
		if w.Delay(bootTime) {
			defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
	ids := slices.DeleteFunc(w.vmids(), func(id int) bool {
		v := w.vms[id]
		return v.host != host || NumberOr(v.config["onboot"], 0) == 0 || v.config["template"] == "1" || w.haStatus(id).Managed || v.proc != nil
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
		for _, sid := range w.haOn(host) {
			if s := w.ha[sid]; away && quorum && s.recoverable() {
				s.manager = "fence"
			}
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
		n := NumberOr(priority, 0)
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

func (w *World) resumeHA() {
	for sid, s := range w.ha {
		if v := w.haVM(sid); v != nil && !w.down[v.host] && (s.manager == "fence" || s.manager == "recovery") {
			s.manager = s.state()
		}
		w.manage(sid)
	}
}

type rootDisk struct{ total, used int64 }

// SetRootDisk sets the size and usage of a host's root disk.
func (w *World) SetRootDisk(host string, total, used int64) {
	w.set(func() { *w.root(host) = rootDisk{total: total, used: used} })
}

// RootDisk returns the size and usage of a host's root disk, including uploads in /var/tmp.
func (w *World) RootDisk(host string) (total, used int64) {
	defer w.mu.looking()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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
	defer w.mu.looking()()
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
	defer w.mu.changing()()
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
	defer w.mu.changing()()
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

// HAResource is a resource of Proxmox HA as it is configured.
type HAResource struct {
	SID     string            // "vm:9011"
	State   string            // "started", "stopped", "disabled", "ignored"; "" means started
	Group   string            // an HA group, created if it does not exist
	Options map[string]string // "max_restart", "max_relocate", "failback", "comment"
	Manager string            // the manager's state: "started", "request_stop", "stopped", "error"; "" before its first round
	Leaving bool              // removed, but the manager has not noticed yet
}

// HARule is a rule of Proxmox HA.
type HARule struct {
	ID, Type  string   // "node-affinity" or "resource-affinity"
	Resources []string // SIDs
	Options   map[string]string
}

// HAStatus is the HA state of a VM.
type HAStatus struct {
	Configured bool // it is a resource
	Managed    bool // a resource that is not ignored
	Group      string
	State      string // of the manager
}

type haService struct {
	options map[string]string // state and group included
	manager string
	busy    bool   // its managers are working on it
	now     bool   // the next stop is a hard one
	timeout int    // of the next stop, in seconds
	failed  int    // consecutive failed starts
	target  string // host to migrate to
}

func haSID(vmid int) string { return "vm:" + strconv.Itoa(vmid) }

// state returns the requested state; "enabled" is an alias of started.
func (s *haService) state() string {
	if state := s.options["state"]; state != "" && state != "enabled" {
		return state
	}
	return "started"
}

// AddHA adds a resource that Proxmox HA's manager has seen already.
func (w *World) AddHA(r HAResource) {
	defer w.mu.changing()()
	s := &haService{options: maps.Clone(r.Options)}
	if s.options == nil {
		s.options = map[string]string{}
	}
	for name, value := range map[string]string{"state": r.State, "group": r.Group} {
		if value != "" {
			s.options[name] = value
		}
	}
	if r.Group != "" {
		w.haGroups[r.Group] = true
	}
	s.manager = cmp.Or(r.Manager, s.state())
	w.ha[r.SID] = s
	w.manage(r.SID)
}

func (w *World) AddHARule(r HARule) { w.set(func() { w.haRules = append(w.haRules, r) }) }

// HA lists the HA resources by SID.
func (w *World) HA() []HAResource { return look(w, func() []HAResource { return haList(w.ha, false) }) }

// HAServices lists the manager's services: the resources, and those removed since its last round.
func (w *World) HAServices() []HAResource {
	return look(w, func() []HAResource { return append(haList(w.ha, false), haList(w.haLeaving, true)...) })
}

func haList(services map[string]*haService, leaving bool) []HAResource {
	var list []HAResource
	for _, sid := range slices.Sorted(maps.Keys(services)) {
		s := services[sid]
		r := HAResource{SID: sid, State: s.options["state"], Group: s.options["group"], Options: maps.Clone(s.options), Manager: s.manager, Leaving: leaving}
		delete(r.Options, "state")
		delete(r.Options, "group")
		list = append(list, r)
	}
	return list
}

// HARules lists the rules in their order.
func (w *World) HARules() []HARule { return cloned(w, &w.haRules) }

// HADigest returns the checksum of the file with all resources.
func (w *World) HADigest() string { return look(w, w.haDigest) }

func (w *World) haDigest() string {
	h := sha1.New()
	for _, sid := range slices.Sorted(maps.Keys(w.ha)) {
		fmt.Fprintln(h, sid, w.ha[sid].options)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (w *World) haStatus(vmid int) HAStatus {
	s, ok := w.ha[haSID(vmid)]
	if !ok {
		return HAStatus{}
	}
	return HAStatus{Configured: true, Managed: s.state() != "ignored" && w.haDisarmed != "ignore", Group: s.options["group"], State: s.manager}
}

// DisarmHA disarms Proxmox HA, with which its managers do nothing, or arms it with the mode "" (pve-ha-manager
// b71218f, HA/Manager.pm, handle_disarm).
func (w *World) DisarmHA(user, mode string) error {
	defer w.mu.changing()()
	if err := firstError(w.check(user, "/", "Sys.Console"), w.checkQuorum()); err != nil {
		return err
	}
	if w.haDisarmed = mode; mode == "" {
		clear(w.haLeaving)
		for sid := range w.ha {
			w.manage(sid)
		}
	}
	return nil
}

// HADisarmed returns the resource mode while Proxmox HA is disarmed; "": it is armed.
func (w *World) HADisarmed() string { return look(w, func() string { return w.haDisarmed }) }

// CreateHA puts a VM under HA. The manager sees it in its next round.
func (w *World) CreateHA(user, sid string, options map[string]string) error {
	defer w.mu.changing()()
	if err := firstError(w.check(user, "/", "Sys.Console"), checkHAOptions(options), w.checkQuorum()); err != nil {
		return err
	}
	sid, err := w.parseSID(sid)
	if err != nil {
		return err
	}
	switch {
	case w.haVM(sid) == nil:
		return failf("resource '%s' does not exists in cluster", sid)
	case w.ha[sid] != nil:
		return failf("create resource failed: resource ID '%s' already defined", sid)
	}
	w.ha[sid] = &haService{options: maps.Clone(options)}
	w.manage(sid)
	return nil
}

// ChangeHA changes a resource; a new requested state makes its managers act.
func (w *World) ChangeHA(user, sid string, set map[string]string, del []string, digest string) error {
	defer w.mu.changing()()
	if err := firstError(w.check(user, "/", "Sys.Console"), checkHAOptions(set)); err != nil {
		return err
	}
	sid, err := w.parseSID(sid)
	if err != nil {
		return err
	}
	if group := set["group"]; group != "" && !w.haGroups[group] {
		return failf("HA group '%s' does not exist", group)
	}
	s := w.ha[sid]
	switch {
	case s != nil && s.manager == "error" && set["state"] != "disabled":
		return failf("service '%s' in error state, must be disabled and fixed first", sid)
	case !w.hasQuorum():
		return failf("update resource failed: cfs-lock 'domain-ha' error: no quorum!")
	case digest != "" && digest != w.haDigest():
		return failf("update resource failed: detected modified configuration - file changed by other user? Try again.")
	case s == nil:
		return failf("update resource failed: no such resource '%s'", sid)
	}
	known := []string{"state", "group", "max_restart", "max_relocate", "failback", "comment"}
	for _, name := range del {
		if !slices.Contains(known, name) {
			return failf("update resource failed: no such option '%s'", name)
		}
		delete(s.options, name)
	}
	maps.Copy(s.options, set)
	w.manage(sid)
	return nil
}

// DeleteHA removes a VM from HA; the VM stays running or stopped. A VM that was to run and goes off before the
// manager's next round is started once more. With purge, Proxmox' default, the VM is also removed from rules, and
// rules without resources are deleted.
func (w *World) DeleteHA(user, sid string, purge bool) error {
	defer w.mu.changing()()
	if err := w.check(user, "/", "Sys.Console"); err != nil {
		return err
	}
	sid, err := w.parseSID(sid)
	switch {
	case err != nil:
		return err
	case w.ha[sid] == nil:
		return failf("cannot delete service '%s', not HA managed!", sid)
	case !w.hasQuorum():
		return failf("delete resource failed: cfs-lock 'domain-ha' error: no quorum!")
	}
	w.removeHA(sid)
	if purge {
		w.purgeRules(sid)
	}
	return nil
}

// MigrateHA requests the migration of a resource to another host.
func (w *World) MigrateHA(sid, target string) error {
	defer w.mu.changing()()
	sid, err := w.parseSID(sid)
	switch {
	case err != nil:
		return err
	case w.ha[sid] == nil:
		return failf("no such resource '%s'", sid)
	case !slices.Contains(w.hosts, target):
		return failf("no such cluster node '%s'", target)
	}
	w.ha[sid].target = target
	w.manage(sid)
	return nil
}

func (w *World) purgeRules(sid string) {
	var kept []HARule
	for _, r := range w.haRules {
		left := slices.DeleteFunc(slices.Clone(r.Resources), func(s string) bool { return s == sid })
		if r.Resources = left; len(left) > 0 {
			kept = append(kept, r)
		}
	}
	w.haRules = kept
}

// parseSID also accepts a bare VMID.
func (w *World) parseSID(sid string) (string, error) {
	if id, err := strconv.Atoi(sid); err == nil {
		if w.vms[id] == nil {
			return "", failf("unable do add resource - VM/CT %d does not exist", id)
		}
		return haSID(id), nil
	}
	if !strings.Contains(sid, ":") {
		return "", failf("unable to parse service id '%s'", sid)
	}
	return sid, nil
}

// checkHAOptions validates options and normalizes booleans as Proxmox does, in place.
func checkHAOptions(options map[string]string) error {
	wrong := map[string]string{}
	for name, value := range options {
		switch name {
		case "state":
			states := []string{"started", "stopped", "enabled", "disabled", "ignored"}
			if !slices.Contains(states, value) {
				wrong[name] = fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", value, strings.Join(states, ", "))
			}
		case "max_restart", "max_relocate":
			if _, err := strconv.Atoi(value); err != nil {
				wrong[name] = fmt.Sprintf("type check ('integer') failed - got '%s'", value)
			}
		case "failback":
			on, ok := ParseBool(value)
			if !ok {
				wrong[name] = fmt.Sprintf("type check ('boolean') failed - got '%s'", value)
			}
			options[name] = map[bool]string{true: "1", false: "0"}[on]
		}
	}
	return BadParams(wrong)
}

// The cluster's manager checks its resources every ten seconds; a host's manager carries
// out its decisions a few seconds later.
const (
	clusterRound = 10 * time.Second
	hostRound    = 5 * time.Second
)

// manage starts HA's managers for a resource, if the managers do not run already; mu must be held.
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

// clusterManager decides what to do next, and reports whether there is more to do. Without quorum, or on a host that
// is down, there is nothing to do for now.
func (w *World) clusterManager(sid string, s *haService) (more bool) {
	v := w.haVM(sid)
	if w.ha[sid] != s || v == nil || !w.hasQuorum() || w.down[v.host] || w.haDisarmed != "" {
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
		s.manager = map[bool]string{false: "stopped", true: "request_stop"}[running]
		return running
	}
	return false
}

func (w *World) haVM(sid string) *vm {
	return w.vms[NumberOr(strings.TrimPrefix(sid, "vm:"), 0)]
}

// hostManager starts or stops the VM with a task of root's and waits for the task. It retries a failed start
// max_restart times; then the state is "error".
func (w *World) hostManager(sid string, s *haService) {
	w.mu.Lock()
	v := w.haVM(sid)
	if w.ha[sid] != s || v == nil || w.down[v.host] || w.haDisarmed != "" {
		w.mu.Unlock()
		return
	}
	upid := w.order(v, s)
	w.mu.Unlock()
	if upid == "" {
		return
	}
	t, _ := w.WaitTask(upid)
	defer w.mu.changing()()
	s.target = ""
	if t.Type != "qmstart" || t.ExitStatus == "OK" || v.proc != nil {
		s.failed = 0
		return
	}
	if s.failed++; s.failed > NumberOr(s.options["max_restart"], 1) {
		s.manager, s.failed = "error", 0
	}
}

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

// removeHA removes a resource from the configuration; the manager notices in its next round. mu must be held.
func (w *World) removeHA(sid string) {
	s := w.ha[sid]
	delete(w.ha, sid)
	w.haLeaving[sid] = s
	w.spawn(func() {
		w.Delay(clusterRound)
		defer w.mu.changing()()
		if w.haLeaving[sid] == s && w.haDisarmed == "" {
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
		defer w.mu.changing()()
		if v := w.haVM(sid); w.haLeaving[sid] == s && w.haDisarmed == "" && v != nil && v.proc == nil && !w.down[v.host] {
			w.startVM("root@pam", v.host, v.id)
		}
	})
}

// requestHA starts the task of a managed VM's start or stop: the task only asks HA.
func (w *World) requestHA(user, host string, id int, state string, apply func(*haService)) string {
	kind, word, command := "hastart", "start", "set vm:%d --state started"
	if state == "stopped" {
		kind, word, command = "hastop", "stop", "crm-command stop vm:%d 0"
	}
	return w.askHA(kind, user, host, id, fmt.Sprintf("%s for VM %d", word, id), fmt.Sprintf(command, id), func(s *haService) {
		s.options["state"] = state
		apply(s)
	})
}

func (w *World) askHA(kind, user, host string, id int, what, command string, apply func(*haService)) (upid string) {
	return w.startTask(host, kind, strconv.Itoa(id), user, func(t *task) error {
		if err := t.begin(taskTime); err != nil {
			return err
		}
		defer w.mu.changing()()
		t.logf("Requesting HA %s", what)
		s := w.ha[haSID(id)]
		if s == nil || s.manager == "error" || !w.hasQuorum() {
			return failf("command 'ha-manager %s' failed: exit code 255", command)
		}
		apply(s)
		w.manage(haSID(id))
		return nil
	})
}
