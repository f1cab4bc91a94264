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

// state is the requested one; "enabled" is an alias of started.
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

// AddHARule adds a rule.
func (w *World) AddHARule(r HARule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.haRules = append(w.haRules, r)
}

// HA lists the HA resources by SID.
func (w *World) HA() []HAResource {
	w.mu.Lock()
	defer w.mu.Unlock()
	return haList(w.ha, false)
}

// HAServices lists the manager's services: the resources, and those removed since its last
// round.
func (w *World) HAServices() []HAResource {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(haList(w.ha, false), haList(w.haLeaving, true)...)
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
func (w *World) HARules() []HARule {
	w.mu.Look()
	defer w.mu.Unlock()
	return slices.Clone(w.haRules)
}

// HADigest is the checksum of the file with all resources.
func (w *World) HADigest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.haDigest()
}

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
	if err := w.check(user, "/", "Sys.Console"); err != nil {
		return err
	}
	if err := checkHAOptions(options); err != nil {
		return err
	}
	if err := w.checkQuorum(); err != nil {
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
	if err := w.check(user, "/", "Sys.Console"); err != nil {
		return err
	}
	if err := checkHAOptions(set); err != nil {
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
	for _, name := range del {
		if !slices.Contains(haOptions(), name) {
			return failf("update resource failed: no such option '%s'", name)
		}
		delete(s.options, name)
	}
	maps.Copy(s.options, set)
	w.manage(sid)
	return nil
}

// DeleteHA removes a VM from HA; it stays running or stopped. If it was to run and goes off before
// the manager's next round, it is started once more. With purge, Proxmox' default, the VM is also
// removed from rules, and rules without resources are deleted.
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

func haOptions() []string {
	return []string{"state", "group", "max_restart", "max_relocate", "failback", "comment"}
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
