package pveapi

import (
	"regexp"
	"slices"

	"github.com/recast-sh/recast/internal/sim/world"
)

var (
	firewallGroup = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9\-_]+$`)
	firewallIface = regexp.MustCompile(`^net\d+$`)
)

// verifyRule is verify_rule of PVE/Firewall.pm for a VM's rule, without macros and the
// formats of addresses and ports.
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
