package world

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

// haService is a resource and its managers' state.
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
	w.mu.Lock()
	defer w.mu.Unlock()
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
	return HAStatus{Configured: true, Managed: s.state() != "ignored", Group: s.options["group"], State: s.manager}
}

// CreateHA puts a VM under HA. The manager sees it in its next round.
func (w *World) CreateHA(user, sid string, options map[string]string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := firstError(w.check(user, "/", "Sys.Console"), checkHAOptions(options), w.checkQuorum()); err != nil {
		return err
	}
	sid, err := w.parseSID(sid)
	if err != nil {
		return err
	}
	if id, err := strconv.Atoi(strings.TrimPrefix(sid, "vm:")); err != nil || w.vms[id] == nil {
		return failf("resource '%s' does not exists in cluster", sid)
	}
	if w.ha[sid] != nil {
		return failf("create resource failed: resource ID '%s' already defined", sid)
	}
	w.ha[sid] = &haService{options: maps.Clone(options)}
	w.manage(sid)
	return nil
}

// ChangeHA changes a resource; a new requested state makes its managers act.
func (w *World) ChangeHA(user, sid string, set map[string]string, del []string, digest string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
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
	w.mu.Lock()
	defer w.mu.Unlock()
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
	w.mu.Lock()
	defer w.mu.Unlock()
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
	if len(wrong) > 0 {
		return badParams(wrong)
	}
	return nil
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

// hostManager starts or stops the VM with a task of root's and waits for the task. It retries a failed start
// max_restart times; then the state is "error".
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

// removeHA removes a resource from the configuration; the manager notices in its next round. mu must be held.
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

// requestMigration starts the task of a managed VM's migration: the task only asks HA.
func (w *World) requestMigration(user, host string, r MigrateRequest) string {
	what, command := fmt.Sprintf("migration for VM %d to node %s", r.ID, r.Target), fmt.Sprintf("migrate vm:%d %s", r.ID, r.Target)
	return w.askHA("hamigrate", user, host, r.ID, what, command, func(s *haService) { s.target = r.Target })
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
		w.mu.Lock()
		defer w.mu.Unlock()
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
