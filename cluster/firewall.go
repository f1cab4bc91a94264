package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FirewallConfig is the firewall of a VM, which Proxmox VE keeps in /etc/pve/firewall/VMID.fw and deletes
// with the VM; the zero value is that of a VM without one.
type FirewallConfig struct {
	Options FirewallEntry   // "enable", "policy_in"
	Aliases []FirewallEntry // "name", "cidr", "comment"; by name
	Sets    []FirewallSet   // IP sets; by name
	Rules   []FirewallEntry // "type", "action", "dport" …; the first that matches counts
}

// FirewallEntry is one object of a firewall, by the names that Proxmox' API has for its fields, as text. A
// field without a value is not in it.
type FirewallEntry map[string]string

// FirewallSet is an IP set.
type FirewallSet struct {
	Name, Comment string
	Members       []FirewallEntry // "cidr", "nomatch", "comment"; by address
}

// settable are the options that the API accepts. A file may have others ("ips"), which only an
// editor can write (pve-firewall, PVE/Firewall.pm, parse_vmfw_option).
var settable = []string{"dhcp", "enable", "ipfilter", "log_level_in", "log_level_out", "macfilter", "ndp", "policy_in", "policy_out", "radv"}

// Unsettable are the options that can't be given to another VM.
func (c FirewallConfig) Unsettable() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.Options)), func(name string) bool { return slices.Contains(settable, name) })
}

// Empty says that the VM has no firewall of its own.
func (c FirewallConfig) Empty() bool {
	return len(c.Options) == 0 && len(c.Aliases) == 0 && len(c.Sets) == 0 && len(c.Rules) == 0
}

// String is "2 rules, 1 option"; "" if there is no firewall.
func (c FirewallConfig) String() string {
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{len(c.Rules), "rule", "rules"},
		{len(c.Options), "option", "options"},
		{len(c.Aliases), "alias", "aliases"},
		{len(c.Sets), "IP set", "IP sets"},
	} {
		switch {
		case part.n == 1:
			parts = append(parts, "1 "+part.one)
		case part.n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.many))
		}
	}
	return strings.Join(parts, ", ")
}

// Sum identifies a firewall: a SHA-256 in hex; "" if there is none.
func (c FirewallConfig) Sum() string {
	if c.Empty() {
		return ""
	}
	b, err := json.Marshal(c) // with the keys of maps sorted
	if err != nil {
		panic(err) // all of it is text
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
