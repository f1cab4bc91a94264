package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/internal/words"
)

// Verdict is what a plan of Terraform would do to the nodes of recast.yaml.
type Verdict struct {
	Cluster string   `json:"cluster"`
	File    string   `json:"file"`
	Nodes   int      `json:"nodes"`   // of recast.yaml
	Managed []string `json:"managed"` // those whose VMs Terraform manages
	Threats []Threat `json:"threats"`
	// Outages are changes that take machines down and no data away; TooMany says why those together are refused.
	Outages []Outage `json:"outages"`
	TooMany string   `json:"tooMany,omitempty"`
}

// Threat is a change that would destroy or replace the VM of a node, or a disk of it.
type Threat struct {
	Node     string       `json:"node"`
	VMID     cluster.VMID `json:"vmid,omitempty"`
	Host     string       `json:"host,omitempty"`
	Address  string       `json:"address"` // of the resource
	What     string       `json:"what"`    // "destroys", "replaces", "changes disks of", "resets", "stops"
	Loses    []string     `json:"loses"`
	Because  string       `json:"because,omitempty"` // Terraform's reason
	Prevents string       `json:"prevents"`          // the block or command that does
}

// Check finds what a plan would destroy. It needs no server: VMs are told by their VMIDs, and roles by the nodes'
// files, as far as they are there.
func Check(c *config.Config, d *terraform.Document, roles map[string]string) (Verdict, error) {
	res := Verdict{Cluster: c.Cluster, File: d.File, Nodes: len(c.Nodes), Managed: []string{}, Threats: []Threat{}, Outages: []Outage{}}
	if !d.Plan {
		return res, fault.WithHint(fault.Configf("%s is a state, not a plan", d.File), "terraform plan -out plan.out && terraform show -json plan.out > plan.json")
	}
	var nameless []string
	for _, n := range c.Nodes {
		if n.VMID == 0 {
			nameless = append(nameless, n.Name)
		}
		if slices.ContainsFunc(d.VMs, func(vm terraform.VM) bool { return isOf(n, vm) }) {
			res.Managed = append(res.Managed, n.Name)
		}
	}
	if len(nameless) > 0 {
		return res, fault.WithHint(fault.Configf("nodes without vmid: %s: a plan can't be held against them", strings.Join(nameless, ", ")),
			"recast doctor shows the VM of each; write it as nodes[].vmid")
	}
	threats, err := d.Threats()
	if err != nil {
		return res, fault.As(fault.Config, err)
	}
	for _, t := range threats {
		res.Threats = append(res.Threats, against(c.Nodes, t, d.VMs)...)
	}
	outages, err := d.Outages()
	if err != nil {
		return res, fault.As(fault.Config, err)
	}
	for _, o := range outages {
		res.outage(c, d, o)
	}
	res.TooMany = tooMany(c, d, roles, res.Outages)
	return res, nil
}

// against is a change as a threat to each node that it is one to: by its VM, or by the VM that owns disks of
// it. A machine that is reset is told by its address; if no VM has that, it may be any of them.
func against(nodes []config.Node, t terraform.Threat, vms []terraform.VM) []Threat {
	threat := Threat{VMID: cluster.VMID(t.VM.VMID), Host: t.VM.Host, Address: t.VM.Address, What: t.What, Loses: t.Loses, Because: t.Because, Prevents: t.Prevents()}
	vm := t.VM
	if t.What == "resets" {
		at := slices.IndexFunc(vms, terraform.Machine{Node: t.Node}.Of)
		if at < 0 {
			threat.Node = "the machine " + t.Node
			return []Threat{threat}
		}
		vm = vms[at]
	}
	var out []Threat
	for _, n := range nodes {
		switch threat.Node = n.Name; {
		case isOf(n, vm):
			out = append(out, threat)
		case n.Holder != 0 && n.Holder == vm.VMID:
			threat.Node += " (its holder)"
			out = append(out, threat)
		}
	}
	return out
}

// isOf says whether a VM is the one of a node. A VM with the node's number on another host is one that was
// migrated; only if its name is another one too, it is a VM of another Proxmox cluster.
func isOf(n config.Node, vm terraform.VM) bool {
	return n.VMID != 0 && n.VMID == vm.VMID && (n.Host == "" || vm.Host == "" || n.Host == vm.Host || n.Name == vm.Name)
}

// Err is nil if the plan leaves the nodes alone.
func (v Verdict) Err() error {
	switch {
	case len(v.Threats) == 0 && v.TooMany == "":
		return nil
	case len(v.Threats) == 0:
		return fault.WithHint(fault.DoctorFound.Of(fault.As(fault.Refused, fmt.Errorf("%s: %s", v.File, v.TooMany))),
			"apply it for one node after the other (-target), each once the one before is healthy; or leave it to recast: it changes images, configurations and VMs of one node at a time")
	}
	n := len(v.Threats)
	return fault.DoctorFound.Of(fault.As(fault.Refused, fmt.Errorf("%s: %s of it would take nodes of %s, or disks of them, away, or stop them", v.File, words.Counted(n, "change"), v.Cluster)))
}

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
