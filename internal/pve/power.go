package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// settleTime bounds how long a VM may take to show the effect of a finished task. If
// Proxmox HA manages the VM, the task only queues the request.
const settleTime = 2 * time.Minute

// Start implements cluster.Power. A VM that already runs counts as started.
func (c *Client) Start(ctx context.Context, vm cluster.VM) error {
	err := c.switchTo(ctx, vm, "start", "running", nil)
	if e, ok := errors.AsType[*api.TaskError](err); ok && strings.HasSuffix(e.Exit, "already running") {
		err = nil
	}
	if err != nil {
		return err
	}
	return c.awaitState(ctx, vm, "running", settleTime)
}

// Shutdown implements cluster.Power. The VM still runs if it did not power off in time.
func (c *Client) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	// Rounded up: a timeout of 0 would not wait for the guest at all.
	seconds := max(1, int((grace+time.Second-1)/time.Second))
	params := map[string]string{"timeout": strconv.Itoa(seconds), "forceStop": "0"}
	if err := c.switchTo(ctx, vm, "shutdown", "stopped", params); err != nil {
		return err
	}
	// If Proxmox HA manages the VM, the guest's grace period begins when the task ends.
	return c.awaitState(ctx, vm, "stopped", grace+settleTime)
}

func (c *Client) Stop(ctx context.Context, vm cluster.VM) error {
	if err := c.switchTo(ctx, vm, "stop", "stopped", nil); err != nil {
		return err
	}
	return c.awaitState(ctx, vm, "stopped", settleTime)
}

// switchTo requests another state. If Proxmox HA manages the VM, an HA task forwards
// the request (Qemu.pm, vm_start, vm_stop and vm_shutdown).
func (c *Client) switchTo(ctx context.Context, vm cluster.VM, what, state string, params map[string]string) error {
	if params == nil {
		params = map[string]string{}
	}
	kind := "qm" + what
	if vm.HA {
		kind = map[string]string{"running": "hastart", "stopped": "hastop"}[state]
	}
	return c.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "status/"+what), params: params,
		worker: vmWorker(vm, kind), lockable: true, unseen: true, look: c.seeState(vm, state),
		repeatable: state == "running", // a running VM is not started again
	})
}

// awaitState waits until QEMU itself is in that state: QEMU may have paused a "running" VM because of an error.
func (c *Client) awaitState(ctx context.Context, vm cluster.VM, state string, within time.Duration) error {
	w := wait.For{Name: fmt.Sprintf("VM %d %s", vm.ID, state), First: firstPoll, Every: c.conn.Poll, Timeout: within}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		s, err := c.vmStatus(ctx, vm)
		if err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		c.seen.isOff(vm.ID, s.Status == "stopped")
		seen := s.Status
		if s.QMP != "" && s.QMP != s.Status {
			seen += ", " + s.QMP
		}
		switch s.QMP {
		case "internal-error", "io-error", "guest-panicked":
			if state == "running" {
				return false, "", wait.Stop(errors.New(seen))
			}
		}
		return s.Status == state && (s.QMP == state || s.QMP == "" && state == "stopped"), seen, nil
	})
}

func (c *Client) seeState(vm cluster.VM, state string) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		s, err := c.vmStatus(ctx, vm)
		if err != nil {
			return sight{}, err
		}
		seen := sight{state: untouched, what: vm.String() + " is " + s.Status}
		if s.Status == state {
			seen.state = reached
		}
		return seen, nil
	}
}

// Migration implements cluster.TieReader (qemu-server, API2/Qemu.pm, migrate_vm_precondition).
func (c *Client) Migration(ctx context.Context, vm cluster.VM, to string) (cluster.Migration, error) {
	var answer struct {
		Allowed   []string        `json:"allowed_nodes"`     // nil for a running VM before qemu-server 8aeaad24 (Proxmox VE 8.4), which checks only when it migrates
		NotOn     json.RawMessage `json:"not_allowed_nodes"` // an empty list where there are none, in older versions
		Disks     []volume        `json:"local_disks"`
		Resources []string        `json:"local_resources"`
		Mapped    []string        `json:"mapped-resources"`
		Dependent []string        `json:"dependent-ha-resources"`
	}
	if err := c.conn.Get(ctx, vmPath(vm, "migrate")+"?target="+url.QueryEscape(to), &answer); err != nil {
		return cluster.Migration{}, err
	}
	m := cluster.Migration{Allowed: answer.Allowed == nil || slices.Contains(answer.Allowed, to), Resources: answer.Resources, Along: answer.Dependent}
	m.LocalDisks = cluster.Each(answer.Disks, func(v volume) string { return v.Volid })
	m.WhileOff = slices.DeleteFunc(slices.Clone(answer.Resources), func(r string) bool { return slices.Contains(answer.Mapped, r) })
	if !m.Allowed {
		m.Lacks = lacks(answer.NotOn, to)
	}
	slices.Sort(m.LocalDisks)
	return m, nil
}

func lacks(raw json.RawMessage, host string) []string {
	var hosts map[string]map[string][]json.RawMessage
	if err := json.Unmarshal(raw, &hosts); err != nil {
		return nil // the host is not among the allowed ones: that is enough
	}
	var out []string
	for _, what := range slices.Sorted(maps.Keys(hosts[host])) {
		for _, one := range hosts[host][what] {
			text := scalar(one)
			switch what {
			case "unavailable_storages":
				text = "storage " + text
			case "unavailable-resources":
				text = "what is mapped for " + text
			default:
				text = fmt.Sprintf("%s (%s)", what, one)
			}
			out = append(out, text)
		}
	}
	return out
}

// Migrate implements cluster.Power. After the migration, the old host refuses a second request: it has no such VM.
func (c *Client) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	if vm.HA { // no task ends with a migration by Proxmox HA
		return fault.Refusedf("Proxmox HA manages %s, and decides itself where it runs", vm)
	}
	params := map[string]string{"target": to}
	if vm.Running {
		params["online"] = "1"
	}
	err := c.carryOut(ctx, mutation{
		method: http.MethodPost, path: vmPath(vm, "migrate"), params: params,
		worker: vmWorker(vm, "qmigrate"), repeatable: true, look: c.seeMigrated(vm, to),
	})
	if err != nil {
		return err
	}
	w := wait.For{Name: fmt.Sprintf("VM %d on %s", vm.ID, to), First: firstPoll, Every: c.conn.Poll, Timeout: settleTime}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		seen, err := c.seeMigrated(vm, to)(ctx)
		return seen.state == reached, seen.what, api.StopOnAnswer(err)
	})
	if err == nil {
		c.seen.add(vm.ID, sighting{host: to, at: time.Now(), off: !vm.Running})
	}
	return err
}

// seeMigrated checks on which of the two hosts a VM is, and whether a task has locked it.
func (c *Client) seeMigrated(vm cluster.VM, to string) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		for _, host := range []string{to, vm.Host} {
			now := cluster.VM{ID: vm.ID, Host: host, Name: vm.Name}
			err := c.readConfig(ctx, &now)
			seen := sight{state: untouched, what: fmt.Sprintf("VM %d is on %s", vm.ID, host)}
			switch {
			case isNoConfig(err):
				continue
			case err != nil:
				return sight{}, err
			case now.Lock == "migrate":
				seen.state, seen.what = partial, seen.what+", and is being migrated"
			case host == to:
				seen.state = reached
			}
			return seen, nil
		}
		return sight{state: partial, what: fmt.Sprintf("VM %d is neither on %s nor on %s", vm.ID, vm.Host, to)}, nil
	}
}

const (
	haResources = "/cluster/ha/resources"
	haCurrent   = "/cluster/ha/status/current"
)

func sid(id cluster.VMID) string { return fmt.Sprintf("vm:%d", id) }

var (
	// noResource matches the answer about a resource that does not exist, status 500
	// (API2/HA/Resources.pm, api_copy_config).
	noResource = regexp.MustCompile(`no such resource '[^']*'`)
	// notManaged matches the answer to the removal of a resource that does not exist; "resource 'vm:101' is not HA
	// managed" before pve-ha-manager 2.0-7.
	notManaged = regexp.MustCompile(`not HA managed`)
)

func (c *Client) HAResource(ctx context.Context, id cluster.VMID) (*cluster.HAResource, error) {
	var raw rawConfig
	if err := c.conn.Get(ctx, haResources+"/"+sid(id), &raw); err != nil {
		if api.IsInternal(err, noResource) {
			return nil, nil
		}
		return nil, err
	}
	return haResource(id, raw)
}

func haResource(id cluster.VMID, raw rawConfig) (*cluster.HAResource, error) {
	settings, _, err := raw.normalise()
	if err != nil {
		return nil, fmt.Errorf("HA resource %s: %w", sid(id), err)
	}
	// A resource without a state is started (HA/Config.pm, read_and_check_resources_config).
	r := &cluster.HAResource{VMID: id, State: cmp.Or(settings["state"], "started"), Settings: settings}
	for _, key := range []string{"sid", "type", "state"} {
		delete(settings, key)
	}
	return r, nil
}

// haResource finds the VM's resource in the list of all, where each row also has the
// resource's errors (API2/HA/Resources.pm, index).
func (l *look) haResource(ctx context.Context, id cluster.VMID) (*cluster.HAResource, error) {
	bySID, err := once(l, "HA", func() (map[string]rawConfig, error) {
		var rows []rawConfig
		err := l.conn.Get(ctx, haResources+"?type=vm", &rows)
		bySID := make(map[string]rawConfig, len(rows))
		for _, r := range rows {
			delete(r, "errors")
			bySID[scalar(r["sid"])] = r
		}
		return bySID, err
	})
	if raw, managed := bySID[sid(id)]; managed && err == nil {
		return haResource(id, raw)
	}
	return nil, err
}

// haDisarmed says that Proxmox HA, of which the VM is a resource, is disarmed (pve-ha-manager 5.1.3, API2/HA/Status.pm):
// then its manager neither releases a VM nor takes one.
func (l *look) haDisarmed(ctx context.Context, ha *cluster.HAResource) ([]string, error) {
	if ha == nil {
		return nil, nil
	}
	return once(l, "HA status", func() (out []string, err error) {
		var rows []haRow
		err = l.conn.Get(ctx, haCurrent, &rows)
		for _, r := range rows {
			if r.Type == "fencing" && strings.HasPrefix(r.Armed, "disarm") {
				out = append(out, fmt.Sprintf("Proxmox HA is %s, and neither releases a VM nor takes one until ha-manager crm-command arm-ha", r.Status))
			}
		}
		return out, err
	})
}

// Rebalancing implements pipeline.Hypervisor. A token without Sys.Audit on / sees no settings (pve-manager, API2/Cluster.pm, get_options).
// Their names are those of pve-cluster 9.1.2, DataCenterConfig.pm, $crs_format. ha-auto-rebalance does nothing with the scheduler basic, which
// is the default (pve-ha-manager 5.2.0, Manager.pm, load_balance).
func (c *Client) Rebalancing(ctx context.Context) (when []string, err error) {
	var options struct {
		CRS struct {
			Scheduler string          `json:"ha"`
			Always    json.RawMessage `json:"ha-auto-rebalance"`
			OnStart   json.RawMessage `json:"ha-rebalance-on-start"`
		}
	}
	err = c.conn.Get(ctx, "/cluster/options", &options)
	crs := options.CRS
	if toBool(crs.Always) && (crs.Scheduler == "static" || crs.Scheduler == "dynamic") {
		when = append(when, "ha-auto-rebalance, at any time")
	}
	if toBool(crs.OnStart) {
		when = append(when, "ha-rebalance-on-start, when HA starts a VM")
	}
	return when, err
}

// haRow is a row of the status of Proxmox HA.
type haRow struct {
	Type, SID, State, Status string
	Armed                    string `json:"armed-state"`
}

// RemoveHA implements cluster.HA. It returns when the cluster's resource manager has released the VM: until its next
// round, about every 10 s, it would restart a stopped VM.
func (c *Client) RemoveHA(ctx context.Context, id cluster.VMID) error {
	r, err := c.HAResource(ctx, id)
	if err == nil && r != nil {
		err = c.removeResource(ctx, id)
	}
	if err != nil {
		return err
	}
	return c.awaitHA(ctx, id, false)
}

// removeResource sends purge=0, because Proxmox would otherwise remove the VM from the rules that name it. A Proxmox
// that does not know the parameter either has no rules or removes the VM from them anyway.
func (c *Client) removeResource(ctx context.Context, id cluster.VMID) error {
	path := haResources + "/" + sid(id)
	look := c.seeHA(id, func(now *cluster.HAResource) sight {
		if now != nil {
			return sight{state: untouched, what: sid(id) + " is in Proxmox HA"}
		}
		return sight{state: reached, what: sid(id) + " is not in Proxmox HA"}
	})
	remove := mutation{method: http.MethodDelete, path: path + "?purge=0", look: look}
	err := c.carryOut(ctx, remove)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusBadRequest && e.Params["purge"] != "" {
		if err := c.refuseRules(ctx, id); err != nil {
			return err
		}
		remove.path = path
		err = c.carryOut(ctx, remove)
	}
	if api.IsInternal(err, notManaged) {
		return nil
	}
	return err
}

func (c *Client) refuseRules(ctx context.Context, id cluster.VMID) error {
	type rule struct{ Rule, Resources string }
	rules, err := get[[]rule](ctx, c.conn, "/cluster/ha/rules")
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusNotImplemented {
		return nil // Proxmox VE 8 has groups, which are a setting of the resource
	}
	if err != nil {
		return err
	}
	named := cluster.Each(cluster.Where(rules, func(r rule) bool { return slices.Contains(splitList(r.Resources), sid(id)) }), func(r rule) string { return r.Rule })
	if len(named) == 0 {
		return nil
	}
	return fault.WithHint(
		fault.Refusedf("HA rules name %s (%s), and this Proxmox VE would change them when the resource is removed", sid(id), strings.Join(named, ", ")),
		"update pve-ha-manager, or take the VM out of these rules by hand")
}

func (c *Client) AddHA(ctx context.Context, r cluster.HAResource) error {
	now, err := c.HAResource(ctx, r.VMID)
	if err != nil {
		return err
	}
	if now != nil {
		return sameHA(*now, r)
	}
	params := make(map[string]string, len(r.Settings)+2)
	maps.Copy(params, r.Settings)
	params["sid"], params["state"] = sid(r.VMID), cmp.Or(r.State, "started")
	look := c.seeHA(r.VMID, func(now *cluster.HAResource) sight {
		if now == nil {
			return sight{state: untouched, what: sid(r.VMID) + " is not in Proxmox HA"}
		}
		if err := sameHA(*now, r); err != nil {
			return sight{superseded, err.Error(), cluster.ErrExists}
		}
		return sight{state: reached, what: sid(r.VMID) + " is in Proxmox HA"}
	})
	// Proxmox refuses a resource that exists, so a second request is harmless.
	add := mutation{method: http.MethodPost, path: haResources, params: params, repeatable: true, look: look}
	if err := c.carryOut(ctx, add); err != nil {
		return err
	}
	return c.awaitHA(ctx, r.VMID, true)
}

// SetHA implements cluster.HA. Sending the same settings twice changes nothing more.
func (c *Client) SetHA(ctx context.Context, r cluster.HAResource) error {
	params := map[string]string{}
	maps.Copy(params, r.Settings)
	delete(params, "digest")
	params["state"] = cmp.Or(r.State, "started")
	look := c.seeHA(r.VMID, func(now *cluster.HAResource) sight {
		if now == nil {
			return sight{superseded, sid(r.VMID) + " is not in Proxmox HA", cluster.ErrNotFound}
		}
		if err := sameHA(*now, r); err != nil {
			return sight{state: untouched, what: err.Error()}
		}
		return sight{state: reached, what: sid(r.VMID) + " is as wanted in Proxmox HA"}
	})
	return c.carryOut(ctx, mutation{
		method: http.MethodPut, path: haResources + "/" + sid(r.VMID), params: params, repeatable: true, look: look,
	})
}

// seeHA observes a VM's resource in Proxmox HA; judge gets nil if there is none.
func (c *Client) seeHA(id cluster.VMID, judge func(now *cluster.HAResource) sight) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		now, err := c.HAResource(ctx, id)
		if err != nil {
			return sight{}, err
		}
		return judge(now), nil
	}
}

// sameHA returns an error that names the settings that differ.
func sameHA(now, want cluster.HAResource) error {
	is, should := haValues(now), haValues(want)
	var differ []string
	keys := slices.AppendSeq(slices.Collect(maps.Keys(is)), maps.Keys(should))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if is[key] != should[key] {
			differ = append(differ, fmt.Sprintf("%s is %q, not %q", key, is[key], should[key]))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%s is in Proxmox HA already with other settings: %s", sid(now.VMID), strings.Join(differ, ", ")),
		"see whose they are (ha-manager config), and correct them with ha-manager set %s", sid(now.VMID))
}

// haValues returns all settings of a resource. "enabled" is the old word for "started" (HA/Config.pm).
func haValues(r cluster.HAResource) map[string]string {
	all := map[string]string{}
	maps.Copy(all, r.Settings)
	all["state"] = cmp.Or(r.State, "started")
	if r.State == "enabled" {
		all["state"] = "started"
	}
	return all
}

// awaitHA waits until Proxmox HA manages the VM, or no longer does. The HA status lists the configured resources and
// those that the resource manager still manages; the VM's own status shows only the configured ones.
func (c *Client) awaitHA(ctx context.Context, id cluster.VMID, managed bool) error {
	name := "Proxmox HA releases " + sid(id)
	if managed {
		name = "Proxmox HA takes over " + sid(id)
	}
	return wait.Until(ctx, wait.For{Name: name, Every: c.conn.Poll, Timeout: settleTime}, func(ctx context.Context) (bool, string, error) {
		var rows []haRow
		if err := c.conn.Get(ctx, haCurrent, &rows); err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		for _, r := range rows {
			if r.Type == "service" && r.SID == sid(id) {
				return managed, r.State, nil
			}
		}
		return !managed, "not in HA", nil
	})
}
