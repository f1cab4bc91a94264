package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/terraform"
)

// Outage is a change that takes the machine of a node down for a while.
type Outage struct {
	Node    string       `json:"node"`
	VMID    cluster.VMID `json:"vmid,omitempty"`
	Address string       `json:"address"` // of the resource
	What    string       `json:"what"`    // "reboots", "upgrades", "may reboot"
	Why     []string     `json:"why"`     // the attributes, as they change
}

// outage adds a change for each node that it is about. A machine that no node is told by may be any of them, as one that
// is reset. A VM that is stopped is a threat: nobody starts it again.
func (v *Verdict) outage(c *config.Config, d *terraform.Document, o terraform.Outage) {
	for _, name := range nodesOf(c, d, o) {
		if o.New && !slices.ContainsFunc(c.Nodes, func(n config.Node) bool { return n.Name == name && !d.Makes(n.VMID, n.Name) }) {
			continue // nothing runs there yet
		}
		if o.How == terraform.Stops {
			v.Threats = append(v.Threats, Threat{
				Node: name, VMID: cluster.VMID(o.VM.VMID), Host: o.VM.Host, Address: o.VM.Address, What: string(o.How), Prevents: o.Prevents(),
				Loses: []string{"no data; the machine is off until somebody starts it"}, Because: strings.Join(o.Why, ", "),
			})
			continue
		}
		v.Outages = append(v.Outages, Outage{Node: name, VMID: cluster.VMID(o.VM.VMID), Address: o.VM.Address, What: string(o.How), Why: o.Why})
	}
}

func nodesOf(c *config.Config, d *terraform.Document, o terraform.Outage) (names []string) {
	if o.VM.VMID != 0 {
		for _, n := range c.Nodes {
			if isOf(n, o.VM) {
				names = append(names, n.Name)
			}
		}
		return names
	}
	for _, n := range c.Nodes {
		if o.Node != "" && isMachine(c, d, n, o.Node) {
			names = append(names, n.Name)
		}
	}
	switch {
	case len(names) > 0:
		return names
	case o.Node != "":
		return []string{"the machine " + o.Node}
	case strings.HasPrefix(o.VM.Type, "talos_"):
		return []string{"the machine of " + o.VM.Address}
	}
	return []string{"the VM of " + o.VM.Address}
}

// isMachine says whether an address or a name is that of a node's machine.
func isMachine(c *config.Config, d *terraform.Document, n config.Node, at string) bool {
	if n.Name == at || n.Address == at || strings.HasPrefix(strings.Join(c.ShapeOf(n).IPConfig, ","), "ip="+at+"/") {
		return true
	}
	return slices.ContainsFunc(d.VMs, func(vm terraform.VM) bool { return isOf(n, vm) && terraform.Machine{Node: at}.Of(vm) }) ||
		slices.ContainsFunc(d.Machines, func(m terraform.Machine) bool { return m.Node == at && m.Hostname == n.Name })
}

// worker says whether a node is known to be a worker, by its configuration or by Terraform. Who is not, counts as
// a control plane.
func worker(c *config.Config, d *terraform.Document, by map[string]string, name string) bool {
	i := slices.IndexFunc(c.Nodes, func(n config.Node) bool { return n.Name == name })
	if i < 0 {
		return false
	}
	n := c.Nodes[i]
	if r := c.Talos.MachineConfigs.Render; r.Given() {
		return !slices.Contains(r.ControlPlanes, name)
	}
	if n.Surge {
		return true
	}
	if role := by[name]; role != "" {
		return role == cluster.Worker
	}
	roles := map[string]bool{}
	for _, m := range d.Machines {
		if m.Role != "" && (m.Hostname == name || m.Node != "" && isMachine(c, d, n, m.Node)) {
			roles[m.Role] = true
		}
	}
	return roles["worker"] && len(roles) == 1
}

// tooMany says why what a plan takes down at a time is too much; "" if it is not. What is only rebooted if Talos finds that
// it has to be, does not count.
func tooMany(c *config.Config, d *terraform.Document, by map[string]string, outages []Outage) string {
	var down, controls []string
	for _, o := range outages {
		if o.What == string(terraform.MayReboot) || slices.Contains(down, o.Node) {
			continue
		}
		down = append(down, o.Node)
		if !worker(c, d, by, o.Node) {
			controls = append(controls, o.Node)
		}
	}
	workers := 0
	for _, n := range c.Nodes {
		if worker(c, d, by, n.Name) {
			workers++
		}
	}
	most := max(c.Roll.MaxUnavailable.Workers.Of(max(workers, len(c.Nodes)-3, 1)), 1)
	switch {
	case len(controls) > 1 && len(controls) == len(down) && workers == 0:
		return fmt.Sprintf("it would take %d nodes down in one apply (%s), and which of them are control planes is not told: etcd loses its quorum with two", len(down), strings.Join(down, ", "))
	case len(controls) > 1:
		return fmt.Sprintf("it would take %d control planes down in one apply (%s): etcd loses its quorum", len(controls), strings.Join(controls, ", "))
	case len(down) > most:
		return fmt.Sprintf("it would take %d nodes down in one apply (%s); roll.maxUnavailable.workers allows %d at a time", len(down), strings.Join(down, ", "), most)
	}
	return ""
}
