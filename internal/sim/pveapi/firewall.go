package pveapi

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"

	"github.com/recast-sh/recast/internal/sim/world"
)

func firewallRoutes() []route {
	const at = "/nodes/{node}/qemu/{vmid}/firewall"
	return []route{
		{method: "GET", path: at + "/rules", handle: firewall(firewallRules)},
		{method: "GET", path: at + "/options", handle: firewall(firewallOptions)},
		{method: "GET", path: at + "/aliases", handle: firewall(firewallAliases)},
		{method: "GET", path: at + "/ipset", handle: firewall(firewallSets)},
	}
}

// firewall shows one section of a VM's firewall file, with the file's digest on
// every entry. A VM without a file has an empty one.
func firewall(show func(world.Firewall, string) any) func(*call) (any, error) {
	return func(c *call) (any, error) {
		if err := c.Check(c.user, vmPath(c.vmid()), "VM.Audit"); err != nil {
			return nil, err
		}
		f := c.FirewallOf(c.vmid())
		sum := sha1.Sum(fmt.Append(nil, f))
		return show(f, hex.EncodeToString(sum[:])), nil
	}
}

func firewallRules(f world.Firewall, digest string) any {
	list := []object{}
	for i, r := range f.Rules {
		entry := object{"pos": i, "type": r.Type, "action": r.Action, "enable": bit(!r.Disabled), "digest": digest}
		addText(entry, map[string]string{
			"macro": r.Macro, "iface": r.Iface, "proto": r.Proto, "source": r.Source, "dport": r.DPort, "comment": r.Comment,
		})
		list = append(list, entry)
	}
	return list
}

func firewallOptions(f world.Firewall, digest string) any {
	out := object{"digest": digest}
	for name, value := range f.Options {
		switch out[name] = value; value {
		case "0", "1":
			out[name] = atoi(value)
		}
	}
	return out
}

func firewallAliases(f world.Firewall, digest string) any {
	list := []object{}
	for _, a := range f.Aliases {
		list = append(list, object{"name": a.Name, "cidr": a.CIDR, "digest": digest})
	}
	return list
}

func firewallSets(f world.Firewall, digest string) any {
	list := []object{}
	for _, name := range f.IPSets {
		list = append(list, object{"name": name, "digest": digest})
	}
	return list
}
