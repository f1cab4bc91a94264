package pve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"

	"github.com/recast-sh/recast/internal/wait"
)

// derived are the fields that Proxmox adds when it shows an entry.
var derived = []string{"digest", "ipversion", "pos"}

// Firewall implements cluster.TieReader.
func (c *Client) Firewall(ctx context.Context, vm cluster.VM) (cluster.FirewallConfig, error) {
	f, _, err := c.firewall(ctx, vm)
	return f, err
}

// firewall reads a VM's firewall. wrong lists the rules that Proxmox itself no
// longer accepts, for example because a cluster alias was deleted.
func (c *Client) firewall(ctx context.Context, vm cluster.VM) (f cluster.FirewallConfig, wrong []string, err error) {
	var options map[string]json.RawMessage
	var rules, aliases, sets []map[string]json.RawMessage
	if err := wait.All(
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/rules"), &rules) },
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/options"), &options) },
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/aliases"), &aliases) },
		func() error { return c.conn.Get(ctx, vmPath(vm, "firewall/ipset"), &sets) },
	); err != nil {
		return f, nil, err
	}
	for i, r := range rules {
		if why, has := r["errors"]; has {
			wrong = append(wrong, fmt.Sprintf("rule %d: %s", i, why))
			delete(r, "errors")
		}
	}
	f.Rules, f.Aliases = firewallEntries(rules), firewallEntries(aliases)
	if o := firewallEntry(options); len(o) > 0 {
		f.Options = o
	}
	for _, s := range firewallEntries(sets) {
		var members []map[string]json.RawMessage
		if err := c.conn.Get(ctx, vmPath(vm, "firewall/ipset/"+url.PathEscape(s["name"])), &members); err != nil {
			return f, nil, err
		}
		f.Sets = append(f.Sets, cluster.FirewallSet{Name: s["name"], Comment: s["comment"], Members: firewallEntries(members)})
	}
	return f, wrong, nil
}

func firewallEntries(list []map[string]json.RawMessage) (out []cluster.FirewallEntry) {
	for _, fields := range list {
		out = append(out, firewallEntry(fields))
	}
	return out
}

// firewallEntry returns the fields without the derived ones. Proxmox shows numbers
// as numbers or as text.
func firewallEntry(fields map[string]json.RawMessage) cluster.FirewallEntry {
	out := cluster.FirewallEntry{}
	for name, raw := range fields {
		text := string(raw)
		if err := json.Unmarshal(raw, &text); err != nil {
			text = string(raw)
		}
		if text != "" && text != "null" && !slices.Contains(derived, name) {
			out[name] = text
		}
	}
	return out
}

// SetFirewall implements cluster.Editor. None of its changes runs in a worker.
func (c *Client) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	now, err := c.Firewall(ctx, vm)
	if err != nil {
		return err
	}
	for _, m := range firewallChanges(vm, now, want) {
		if err := c.conn.Change(ctx, m.method, m.path, m.params, nil); err != nil {
			return fmt.Errorf("set up the firewall of %s: %w", vm, err)
		}
	}
	now, err = c.Firewall(ctx, vm)
	if err == nil && now.Sum() != want.Sum() {
		err = fmt.Errorf("the firewall of %s differs from what was written: Proxmox shows %s: %w", vm, cmp.Or(now.String(), "none"), cluster.ErrChanged)
	}
	return err
}

// firewallChanges turns one firewall into another: a part that differs is rewritten.
// Aliases come before the sets that name them, and both before the rules. A new rule
// always goes to the top, whatever position is requested (pve-firewall,
// PVE/API2/Firewall/Rules.pm, create_rule).
func firewallChanges(vm cluster.VM, now, want cluster.FirewallConfig) (list []mutation) {
	change := func(method, path string, params map[string]string) {
		list = append(list, mutation{method: method, path: vmPath(vm, "firewall/"+path), params: params})
	}
	aliases, sets, rules := !reflect.DeepEqual(now.Aliases, want.Aliases), !reflect.DeepEqual(now.Sets, want.Sets), !reflect.DeepEqual(now.Rules, want.Rules)
	if rules {
		for range now.Rules {
			change(http.MethodDelete, "rules/0", nil)
		}
	}
	if sets {
		for _, s := range now.Sets {
			change(http.MethodDelete, "ipset/"+url.PathEscape(s.Name)+"?force=1", nil)
		}
	}
	if aliases {
		for _, a := range now.Aliases {
			change(http.MethodDelete, "aliases/"+url.PathEscape(a["name"]), nil)
		}
		for _, a := range want.Aliases {
			change(http.MethodPost, "aliases", a)
		}
	}
	if sets {
		for _, s := range want.Sets {
			params := map[string]string{"name": s.Name}
			if s.Comment != "" {
				params["comment"] = s.Comment
			}
			change(http.MethodPost, "ipset", params)
			for _, member := range s.Members {
				change(http.MethodPost, "ipset/"+url.PathEscape(s.Name), member)
			}
		}
	}
	if rules {
		for _, r := range slices.Backward(want.Rules) {
			change(http.MethodPost, "rules", r)
		}
	}
	if !maps.Equal(now.Options, want.Options) {
		params := map[string]string{}
		maps.Copy(params, want.Options)
		gone := slices.DeleteFunc(slices.Sorted(maps.Keys(now.Options)), func(name string) bool { return want.Options[name] != "" })
		if len(gone) > 0 {
			params["delete"] = strings.Join(gone, ",")
		}
		change(http.MethodPut, "options", params)
	}
	return list
}
