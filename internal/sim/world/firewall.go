package world

// Firewall is the firewall of one VM: /etc/pve/firewall/<vmid>.fw.
type Firewall struct {
	Options map[string]string // "enable", "policy_in"
	Rules   []FirewallRule
	Aliases []FirewallAlias
	IPSets  []string
}

// FirewallRule is one rule; the first that matches counts.
type FirewallRule struct {
	Type, Action                       string // "in", "ACCEPT"
	Macro, Iface, Proto, Source, DPort string
	Comment                            string
	Disabled                           bool
}

// FirewallAlias is a name for an address.
type FirewallAlias struct{ Name, CIDR string }

// SetFirewall gives a VM its firewall file.
func (w *World) SetFirewall(vmid int, f Firewall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firewalls[vmid] = f
}

// FirewallOf is a VM's firewall; an empty one where there is no file. Whether
// there is such a VM is asked by nobody, as in Proxmox.
func (w *World) FirewallOf(vmid int) Firewall {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.firewalls[vmid]
}
