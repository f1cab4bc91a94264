package pveapi

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/recast-sh/recast/internal/sim/world"
)

// The properties of a rule and of the options (pve-firewall, PVE/Firewall.pm,
// rule_properties and vm_option_properties).
var (
	ruleFields      = []string{"action", "comment", "dest", "dport", "enable", "icmp-type", "iface", "log", "macro", "proto", "source", "sport", "type"}
	firewallOptions = []string{"dhcp", "enable", "ipfilter", "log_level_in", "log_level_out", "macfilter", "ndp", "policy_in", "policy_out", "radv"}
)

func firewallRoutes() []route {
	const at = "/nodes/{node}/qemu/{vmid}/firewall"
	see, change := []demand{{"/vms/{vmid}", []string{"VM.Audit"}}}, []demand{{"/vms/{vmid}", []string{"VM.Config.Network"}}}
	return []route{
		{method: "GET", path: at + "/rules", permit: see, handle: seeFirewall(rulesOf)},
		{method: "POST", path: at + "/rules", permit: change, params: append([]string{"digest", "pos"}, ruleFields...), need: []string{"action", "type"}, handle: changeFirewall(addRule)},
		{method: "DELETE", path: at + "/rules/{pos}", permit: change, params: []string{"digest"}, handle: changeFirewall(deleteRule)},
		{method: "GET", path: at + "/options", permit: see, handle: seeFirewall(optionsOf)},
		{method: "PUT", path: at + "/options", permit: change, params: append([]string{"delete", "digest"}, firewallOptions...), handle: changeFirewall(setFirewallOptions)},
		{method: "GET", path: at + "/aliases", permit: see, handle: seeFirewall(aliasesOf)},
		{method: "POST", path: at + "/aliases", permit: change, params: []string{"cidr", "comment", "name"}, need: []string{"cidr", "name"}, handle: changeFirewall(addAlias)},
		{method: "DELETE", path: at + "/aliases/{name}", permit: change, params: []string{"digest"}, handle: changeFirewall(deleteAlias)},
		{method: "GET", path: at + "/ipset", permit: see, handle: seeFirewall(setsOf)},
		{method: "POST", path: at + "/ipset", permit: change, params: []string{"comment", "digest", "name"}, need: []string{"name"}, handle: changeFirewall(addSet)},
		{method: "GET", path: at + "/ipset/{name}", permit: see, handle: seeFirewall(membersOf)},
		{method: "POST", path: at + "/ipset/{name}", permit: change, params: []string{"cidr", "comment", "nomatch"}, need: []string{"cidr"}, handle: changeFirewall(addMember)},
		{method: "DELETE", path: at + "/ipset/{name}", permit: change, params: []string{"force"}, handle: changeFirewall(deleteSet)},
	}
}

func seeFirewall(show func(*call, world.Firewall) any) func(*call) (any, error) {
	return func(c *call) (any, error) { return show(c, c.FirewallOf(c.vmid())), nil }
}

func changeFirewall(change func(*call, *world.Firewall) error) func(*call) (any, error) {
	return func(c *call) (any, error) {
		return nil, c.ChangeFirewall(c.vmid(), func(f *world.Firewall) error { return change(c, f) })
	}
}

// withDigest adds to each entry the checksum of the list (PVE/Firewall.pm, copy_list_with_digest).
func withDigest(list []object) []object {
	h := sha1.New()
	for _, entry := range list {
		for _, key := range slices.Sorted(maps.Keys(entry)) {
			fmt.Fprintf(h, "%s:%v\n", key, entry[key])
		}
	}
	for _, entry := range list {
		entry["digest"] = hex.EncodeToString(h.Sum(nil))
	}
	return list
}

// unchanged does the work of assert_if_modified (pve-common, PVE/Tools.pm): without a checksum in the request it
// succeeds.
func (c *call) unchanged(list []object) error {
	if want := c.params["digest"]; want != "" && (len(list) == 0 || list[0]["digest"] != want) {
		return &world.Error{Status: http.StatusInternalServerError, Message: "detected modified configuration - file changed by other user? Try again."}
	}
	return nil
}

// rules returns the rules with their checksum. The checksum does not depend on the positions of the rules.
func rules(f world.Firewall) []object {
	return withDigest(listed(f.Rules, func(r world.FirewallRule) object {
		entry := object{"enable": 0}
		for name, value := range r {
			if entry[name] = value; name == "enable" {
				entry[name] = atoi(value)
			}
		}
		return entry
	}))
}

// rulesOf returns the rules, each with its position; an invalid rule also has its errors (parse_fw_rule).
func rulesOf(_ *call, f world.Firewall) any {
	list := rules(f)
	for i, entry := range list {
		entry["pos"] = i
		if wrong, is := errors.AsType[*world.Error](verifyRule(f.Rules[i], f)); is {
			entry["errors"] = wrong.Params
		}
	}
	return list
}

// addRule inserts a rule before all others, whatever the position in the request
// (PVE/API2/Firewall/Rules.pm, create_rule).
func addRule(c *call, f *world.Firewall) error {
	r := world.FirewallRule{"enable": "0"}
	for _, name := range ruleFields {
		if value := c.params[name]; value != "" && value != "-" {
			r[name] = value
		}
	}
	if err := verifyRule(r, *f); err != nil {
		return err
	}
	f.Rules = slices.Insert(f.Rules, 0, r)
	return nil
}

func deleteRule(c *call, f *world.Firewall) error {
	if err := c.unchanged(rules(*f)); err != nil {
		return err
	}
	at, err := strconv.Atoi(c.vars["pos"])
	if err != nil || at >= len(f.Rules) {
		return &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("no rule at position %s", c.vars["pos"])}
	}
	f.Rules = slices.Delete(f.Rules, at, at+1)
	return nil
}

func optionsOf(_ *call, f world.Firewall) any {
	out := object{}
	for name, value := range f.Options {
		switch out[name] = value; value {
		case "0", "1":
			out[name] = atoi(value)
		}
	}
	return withDigest([]object{out})[0]
}

func setFirewallOptions(c *call, f *world.Firewall) error {
	if err := c.unchanged([]object{optionsOf(c, *f).(object)}); err != nil {
		return err
	}
	if f.Options == nil {
		f.Options = map[string]string{}
	}
	for _, name := range list(c.params["delete"]) {
		if !slices.Contains(firewallOptions, name) {
			return world.BadParam("delete", "no such option '%s'", name)
		}
		delete(f.Options, name)
	}
	for _, name := range firewallOptions {
		if value, is := c.params[name]; is {
			f.Options[name] = value
		}
	}
	return nil
}

func aliasesOf(_ *call, f world.Firewall) any {
	return withDigest(listed(f.Aliases, func(a world.FirewallAlias) object {
		return object{"name": a.Name, "cidr": a.CIDR}.with(map[string]string{"comment": a.Comment})
	}))
}

func addAlias(c *call, f *world.Firewall) error {
	name := c.params["name"]
	if f.Alias(name) >= 0 {
		return world.BadParam("name", "alias '%s' already exists", name)
	}
	f.Aliases = append(f.Aliases, world.FirewallAlias{Name: name, CIDR: c.params["cidr"], Comment: c.params["comment"]})
	slices.SortFunc(f.Aliases, func(a, b world.FirewallAlias) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func deleteAlias(c *call, f *world.Firewall) error {
	if err := c.unchanged(aliasesOf(c, *f).([]object)); err != nil {
		return err
	}
	if i := f.Alias(c.vars["name"]); i >= 0 {
		f.Aliases = slices.Delete(f.Aliases, i, i+1)
	}
	return nil
}

func setsOf(_ *call, f world.Firewall) any {
	return withDigest(listed(f.IPSets, func(s world.FirewallSet) object {
		return object{"name": s.Name}.with(map[string]string{"comment": s.Comment})
	}))
}

func addSet(c *call, f *world.Firewall) error {
	name := c.params["name"]
	if f.Set(name) >= 0 {
		return world.BadParam("name", "IPSet '%s' already exists", name)
	}
	f.IPSets = append(f.IPSets, world.FirewallSet{Name: name, Comment: c.params["comment"]})
	slices.SortFunc(f.IPSets, func(a, b world.FirewallSet) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// deleteSet deletes a set; as in save_ipset, the set need not exist.
func deleteSet(c *call, f *world.Firewall) error {
	i := f.Set(c.vars["name"])
	switch {
	case i < 0:
		return nil
	case len(f.IPSets[i].Members) > 0 && !c.flag("force"):
		return &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("IPSet '%s' is not empty", c.vars["name"])}
	}
	f.IPSets = slices.Delete(f.IPSets, i, i+1)
	return nil
}

func membersOf(c *call, f world.Firewall) any {
	i := f.Set(c.vars["name"])
	if i < 0 {
		return []object{}
	}
	return withDigest(listed(f.IPSets[i].Members, func(m world.FirewallMember) object {
		entry := object{"cidr": m.CIDR}.with(map[string]string{"comment": m.Comment})
		if m.NoMatch {
			entry["nomatch"] = 1
		}
		return entry
	}))
}

// addMember adds a member to a set, and creates a missing set (PVE/API2/Firewall/IPSet.pm, save_ipset). Members are
// sorted by address.
func addMember(c *call, f *world.Firewall) error {
	m := world.FirewallMember{CIDR: c.params["cidr"], Comment: c.params["comment"], NoMatch: c.flag("nomatch")}
	if err := f.Resolves("cidr", m.CIDR); err != nil {
		return err
	}
	i := f.Set(c.vars["name"])
	if i < 0 {
		f.IPSets, i = append(f.IPSets, world.FirewallSet{Name: c.vars["name"]}), len(f.IPSets)
	}
	for _, other := range f.IPSets[i].Members {
		if other.CIDR == m.CIDR {
			return world.BadParam("cidr", "address '%s' already exists", m.CIDR)
		}
	}
	f.IPSets[i].Members = append(f.IPSets[i].Members, m)
	slices.SortFunc(f.IPSets[i].Members, func(a, b world.FirewallMember) int { return cmp.Compare(a.CIDR, b.CIDR) })
	return nil
}

var (
	firewallGroup = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9\-_]+$`)
	firewallIface = regexp.MustCompile(`^net\d+$`)
)

// verifyRule does the work of verify_rule of PVE/Firewall.pm for a VM's rule, without macros and the formats of
// addresses and ports.
func verifyRule(r world.FirewallRule, f world.Firewall) error {
	kind, action, proto := r["type"], r["action"], r["proto"]
	switch {
	case kind == "in" || kind == "out":
		if !slices.Contains([]string{"ACCEPT", "DROP", "REJECT"}, action) {
			return world.BadParam("action", "unknown action '%s'", action)
		}
	case kind != "group":
		return world.BadParam("type", "invalid rule type '%s' for rule_env 'vm'", kind)
	case !firewallGroup.MatchString(action):
		return world.BadParam("action", "invalid characters in security group name")
	}
	if iface := r["iface"]; iface != "" && !firewallIface.MatchString(iface) {
		return world.BadParam("iface", `value does not match the regex pattern 'net\d+'`)
	}
	for _, port := range []string{"dport", "sport"} {
		if r[port] != "" && proto == "" {
			return world.BadParam("proto", "missing property - '%s' requires this property", port)
		}
	}
	for _, end := range []string{"source", "dest"} {
		if err := f.Resolves(end, r[end]); err != nil {
			return err
		}
	}
	return nil
}
