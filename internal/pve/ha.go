package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

const haResources = "/cluster/ha/resources"

// sid is a VM's ID in Proxmox HA.
func sid(id cluster.VMID) string { return fmt.Sprintf("vm:%d", id) }

var (
	// noResource matches the answer about a resource that does not exist, status 500
	// (API2/HA/Resources.pm, api_copy_config).
	noResource = regexp.MustCompile(`no such resource '[^']*'`)
	// notManaged matches the answer to its removal; "resource 'vm:101' is not HA
	// managed" before pve-ha-manager 2.0-7.
	notManaged = regexp.MustCompile(`not HA managed`)
)

// HAResource implements cluster.TieReader.
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
	// Without a state it is started (HA/Config.pm, read_and_check_resources_config).
	r := &cluster.HAResource{VMID: id, State: cmp.Or(settings["state"], "started"), Settings: settings}
	for _, key := range []string{"sid", "type", "state"} {
		delete(settings, key)
	}
	return r, nil
}

// haResource finds the VM's resource in the list of all, where each row also has the
// resource's errors (API2/HA/Resources.pm, index).
func (l *look) haResource(ctx context.Context, id cluster.VMID) (*cluster.HAResource, error) {
	bySID, err := once(ctx, l, "HA", func() (map[string]rawConfig, error) {
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

// RemoveHA implements cluster.HA. It returns when the cluster's resource manager has
// released the VM: until its next round, about every 10 s, it would restart a
// stopped VM.
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

// removeResource sends purge=0, because Proxmox would otherwise remove the VM from
// the rules that name it. A Proxmox that does not know the parameter either has no
// rules or removes the VM from them anyway.
func (c *Client) removeResource(ctx context.Context, id cluster.VMID) error {
	path := haResources + "/" + sid(id)
	remove := mutation{method: http.MethodDelete, path: path + "?purge=0", look: c.seeHA(id, nil)}
	err := c.changes.carryOut(ctx, remove)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusBadRequest && e.Params["purge"] != "" {
		if err := c.refuseRules(ctx, id); err != nil {
			return err
		}
		remove.path = path
		err = c.changes.carryOut(ctx, remove)
	}
	if api.IsInternal(err, notManaged) {
		return nil
	}
	return err
}

// refuseRules refuses if any HA rule names the VM.
func (c *Client) refuseRules(ctx context.Context, id cluster.VMID) error {
	var rules []struct{ Rule, Resources string }
	err := c.conn.Get(ctx, "/cluster/ha/rules", &rules)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusNotImplemented {
		return nil // Proxmox VE 8 has groups, which are a setting of the resource
	}
	if err != nil {
		return err
	}
	var named []string
	for _, r := range rules {
		if slices.Contains(splitList(r.Resources), sid(id)) {
			named = append(named, r.Rule)
		}
	}
	if len(named) == 0 {
		return nil
	}
	return fault.WithHint(
		fault.Refusedf("HA rules name %s (%s), and this Proxmox VE would change them when the resource is removed", sid(id), strings.Join(named, ", ")),
		"update pve-ha-manager, or take the VM out of these rules by hand")
}

// AddHA implements cluster.HA.
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
	// Proxmox refuses a resource that exists, so a second request is harmless.
	add := mutation{method: http.MethodPost, path: haResources, params: params, repeatable: true, look: c.seeHA(r.VMID, &r)}
	if err := c.changes.carryOut(ctx, add); err != nil {
		return err
	}
	return c.awaitHA(ctx, r.VMID, true)
}

// SetHA implements cluster.HA. The same settings twice change nothing.
func (c *Client) SetHA(ctx context.Context, r cluster.HAResource) error {
	params := maps.Clone(r.Settings)
	if params == nil {
		params = map[string]string{}
	}
	delete(params, "digest")
	params["state"] = cmp.Or(r.State, "started")
	return c.changes.carryOut(ctx, mutation{
		method: http.MethodPut, path: haResources + "/" + sid(r.VMID), params: params, repeatable: true, look: c.seeHAChange(r),
	})
}

// seeHAChange checks whether a VM's resource has these settings.
func (c *Client) seeHAChange(want cluster.HAResource) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		now, err := c.HAResource(ctx, want.VMID)
		switch {
		case err != nil:
			return sight{}, err
		case now == nil:
			return sight{superseded, sid(want.VMID) + " is not in Proxmox HA", cluster.ErrNotFound}, nil
		}
		if err := sameHA(*now, want); err != nil {
			return sight{state: untouched, what: err.Error()}, nil
		}
		return sight{state: reached, what: sid(want.VMID) + " is as wanted in Proxmox HA"}, nil
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

// haValues are all settings of a resource. "enabled" is the old word for
// "started" (HA/Config.pm).
func haValues(r cluster.HAResource) map[string]string {
	all := map[string]string{}
	maps.Copy(all, r.Settings)
	all["state"] = cmp.Or(r.State, "started")
	if r.State == "enabled" {
		all["state"] = "started"
	}
	return all
}

// awaitHA waits until Proxmox HA manages the VM, or no longer does. The HA status
// lists what is configured and what the resource manager still manages; the VM's own
// status shows only the former.
func (c *Client) awaitHA(ctx context.Context, id cluster.VMID, managed bool) error {
	name := "Proxmox HA releases " + sid(id)
	if managed {
		name = "Proxmox HA takes over " + sid(id)
	}
	return wait.Until(ctx, wait.For{Name: name, Every: c.conn.Poll, Timeout: settleTime}, func(ctx context.Context) (bool, string, error) {
		state, found, err := c.haState(ctx, id)
		if err != nil {
			return false, "", api.StopOnAnswer(err)
		}
		if !found {
			state = "not in HA"
		}
		return found == managed, state, nil
	})
}

func (c *Client) haState(ctx context.Context, id cluster.VMID) (state string, found bool, err error) {
	var rows []struct{ Type, SID, State string }
	if err := c.conn.Get(ctx, "/cluster/ha/status/current", &rows); err != nil {
		return "", false, err
	}
	for _, r := range rows {
		if r.Type == "service" && r.SID == sid(id) {
			return r.State, true, nil
		}
	}
	return "", false, nil
}

// seeHA checks whether a VM is in Proxmox HA as wanted; nil means not in it.
func (c *Client) seeHA(id cluster.VMID, want *cluster.HAResource) func(context.Context) (sight, error) {
	return func(ctx context.Context) (sight, error) {
		now, err := c.HAResource(ctx, id)
		switch {
		case err != nil:
			return sight{}, err
		case now == nil && want == nil:
			return sight{state: reached, what: sid(id) + " is not in Proxmox HA"}, nil
		case now == nil:
			return sight{state: untouched, what: sid(id) + " is not in Proxmox HA"}, nil
		case want == nil:
			return sight{state: untouched, what: sid(id) + " is in Proxmox HA"}, nil
		}
		if err := sameHA(*now, *want); err != nil {
			return sight{superseded, err.Error(), cluster.ErrExists}, nil
		}
		return sight{state: reached, what: sid(id) + " is in Proxmox HA"}, nil
	}
}
