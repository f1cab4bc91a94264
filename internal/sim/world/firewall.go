package world

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Firewall is the firewall of one VM: /etc/pve/firewall/<vmid>.fw.
type Firewall struct {
	Options map[string]string // "enable", "policy_in"
	Rules   []FirewallRule
	Aliases []FirewallAlias
	IPSets  []FirewallSet
}

// FirewallRule is one rule by its API fields ("type", "action", "dport"); the first
// matching rule counts. A rule without "enable" is disabled.
type FirewallRule map[string]string

// FirewallAlias is a name for an address.
type FirewallAlias struct{ Name, CIDR, Comment string }

// FirewallSet is a set of addresses.
type FirewallSet struct {
	Name, Comment string
	Members       []FirewallMember
}

// FirewallMember is one address of a set.
type FirewallMember struct {
	CIDR, Comment string
	NoMatch       bool
}

func (f Firewall) clone() Firewall {
	f.Options = maps.Clone(f.Options)
	f.Rules, f.Aliases, f.IPSets = slices.Clone(f.Rules), slices.Clone(f.Aliases), slices.Clone(f.IPSets)
	for i, r := range f.Rules {
		f.Rules[i] = maps.Clone(r)
	}
	for i := range f.IPSets {
		f.IPSets[i].Members = slices.Clone(f.IPSets[i].Members)
	}
	return f
}

// SetFirewall sets a VM's firewall file.
func (w *World) SetFirewall(vmid int, f Firewall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.setFirewall(vmid, f.clone())
}

// setFirewall removes an empty file, as save_vmfw_conf does.
func (w *World) setFirewall(vmid int, f Firewall) {
	if len(f.Options)+len(f.Rules)+len(f.Aliases)+len(f.IPSets) == 0 {
		delete(w.firewalls, vmid)
		return
	}
	w.firewalls[vmid] = f
}

// ChangeFirewall changes a VM's firewall file under its lock, unless change fails. As in
// Proxmox, the VM need not exist.
func (w *World) ChangeFirewall(vmid int, change func(*Firewall) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.firewalls[vmid].clone()
	if err := change(&f); err != nil {
		return err
	}
	w.setFirewall(vmid, f)
	return nil
}

// FirewallOf is a VM's firewall; an empty one without a file.
func (w *World) FirewallOf(vmid int) Firewall {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.firewalls[vmid].clone()
}

// Alias is the index of an alias, by its name in any case; -1 if there is none.
func (f Firewall) Alias(name string) int {
	return slices.IndexFunc(f.Aliases, func(a FirewallAlias) bool { return strings.EqualFold(a.Name, name) })
}

// Set is the index of a set; -1 if there is none.
func (f Firewall) Set(name string) int {
	return slices.IndexFunc(f.IPSets, func(s FirewallSet) bool { return s.Name == name })
}

// aliasName distinguishes a name from an address.
var aliasName = regexp.MustCompile(`^(?:guest/|dc/)?([A-Za-z][A-Za-z0-9\-_]+)$`)

// Resolves says which alias or set in an address is missing (pve-firewall,
// PVE/Firewall.pm, verify_rule). The cluster has no sets or aliases.
func (f Firewall) Resolves(param, address string) error {
	if set, is := strings.CutPrefix(address, "+"); is {
		_, name, scoped := strings.Cut(set, "/")
		if !scoped {
			name = set
		}
		if f.Set(name) < 0 {
			return BadParam(param, "no such ipset '%s'", name)
		}
		return nil
	}
	if m := aliasName.FindStringSubmatch(address); m != nil && f.Alias(m[1]) < 0 {
		return BadParam(param, "no such alias '%s'", address)
	}
	return nil
}
