package planning

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
)

// planApplyConfig gives a node another machine configuration and nothing else. A configuration that needs no reboot
// is tried first: Talos takes it back by itself if the node is not healthy with it.
func planApplyConfig(n *NodePlan, o observe.Observation, p Policy) {
	n.Strategy, n.EtcdKept, n.Why = cluster.ApplyConfig, true, "apply-config: only its machine configuration differs"
	if n.Drift.IsImage() {
		n.Why = "apply-config: --what config leaves its image as it is"
	}
	if file := n.Found.File; len(file.Reboot) == 0 {
		n.Why += "; it needs no reboot"
	} else {
		n.Why += "; it needs a reboot for " + strings.Join(file.Reboot, ", ")
		c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
		n.Refused = append(n.Refused, cluster.Texts(c.Doubled())...)
	}
	if n.Role == cluster.ControlPlane {
		refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.ApplyConfig, p.AcceptOutage)
		n.Refused, n.Notes = append(n.Refused, refused...), append(n.Notes, warn...)
	}
}

// staysUp says whether the node gets only what needs no reboot.
func (n NodePlan) staysUp() bool {
	if n.Strategy.Reshapes() {
		return !stopsVM(n)
	}
	return n.Strategy.KeepsImage() && n.Found.File != nil && len(n.Found.File.Reboot) == 0 && !stopsVM(n)
}

// AppliesConfig says whether the node gets its file of talos.machineConfigs.
func (n NodePlan) AppliesConfig() bool {
	return n.Strategy.BringsConfig() || n.Strategy.Upgrades() && n.WithConfig
}

// refusedConfig says why a node must not get its file.
func (n *NodePlan) refusedConfig(file cluster.FoundFile) []string {
	out := n.Found.AgainstFile()
	if file.Beside != "" && len(file.Identity) > 0 {
		return out
	}
	for _, what := range file.Identity {
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs would change %s: recast never does that to a node that runs: is it the file of another node, or of another cluster?", what))
	}
	return append(out, n.oneWay(file)...)
}

// oneWay says what a file brings that would keep every roll from recreating the node from then on, or would leave
// recast no way at all, unless the node already has it.
func (n *NodePlan) oneWay(file cluster.FoundFile) []string {
	c := strategy.Candidate{Wanted: n.Wanted, VM: n.Found.VMOrZero(), Found: n.Found}
	if n.Found.Machine != nil {
		c.Machine = *n.Found.Machine
	} else if n.Strategy.From() == cluster.Nowhere {
		c.VM = shape.New(n.Wanted, n.VMID, "")
	}
	var out []string
	for _, text := range c.SealedBy(placed(c.Machine, file)) {
		out = append(out, "with its file in talos.machineConfigs "+text)
	}
	if file.Omni && !slices.Contains(c.Machine.Omni(), cluster.OmniDocument) {
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs has %s, which joins the machine to Omni, and a roll is then refused: remove that document", cluster.OmniDocument))
	}
	for _, arg := range addedArgs(file.Changes) {
		if cluster.GivesConfig(arg) {
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs adds the kernel argument %s, with which the node could neither be recreated nor reimaged from then on: remove it", cluster.ArgName(arg)))
		}
	}
	return out
}

// addedArgs returns the kernel arguments that a file adds, for GRUB.
func addedArgs(changes []config.Change) []string {
	var out []string
	for _, c := range changes {
		if c.Document == config.MainDocument && c.Kind != config.Removed && strings.HasPrefix(c.Path, "machine.install.extraKernelArgs") {
			out = append(out, strings.FieldsFunc(c.Wanted, func(r rune) bool { return strings.ContainsRune(`[], "'`, r) })...)
		}
	}
	return out
}

// placed returns how a file encrypts volumes, without the locks to STATE of volumes that may go with the system
// disk, as STATE does.
func placed(m cluster.Machine, file cluster.FoundFile) []cluster.Encryption {
	out := slices.Clone(file.Encryption)
	for i, e := range out {
		if len(m.DisksWith(e.Volume)) == 0 && goesWithSystem(m, file, e.Volume) {
			out[i].LockToState = false
		}
	}
	return out
}

// goesWithSystem says whether a volume that a file makes may be on the system disk, by the file's selector for it.
func goesWithSystem(m cluster.Machine, file cluster.FoundFile, volume string) bool {
	if i := slices.IndexFunc(file.Selectors, func(s cluster.DiskSelector) bool { return s.ID == volume }); i >= 0 {
		return file.Selectors[i].Match == "system_disk" || file.Selectors[i].System != ""
	}
	document := cluster.Volume{Label: volume}.Document()
	return m.SystemDisk == "" || slices.ContainsFunc(file.Changes, func(c config.Change) bool {
		return c.Document == document && c.Path == "provisioning.diskSelector.match" && c.Wanted == "system_disk"
	})
}

// refuseInit refuses a file of machine.type init for a machine whose etcd directory is empty, or may be.
func (n *NodePlan) refuseInit() {
	file := n.Found.File
	if file == nil || !file.TypeInit {
		return
	}
	from := n.Strategy.From()
	if from == cluster.Nowhere || from == cluster.Blank || takesAway(*n) || n.Strategy.Replaces() && n.Found.Machine == nil && !n.EtcdKept {
		n.Refused = append(n.Refused, "its file in talos.machineConfigs is of machine.type init: with an empty etcd directory "+strategy.BeginsAlone+
			" with it, whatever others there are: set machine.type: controlplane in it")
	}
}

// Configured lists the nodes that answer with their own configuration, have no replacement in progress, and do not
// wait to be healthy with a new configuration: no journal needs to keep theirs.
func (p Plan) Configured() []string {
	var nodes []string
	for _, n := range p.Nodes {
		if f := n.Found; f.VM != nil && f.Machine != nil && f.Blank == nil && !f.Open() && (f.Node == nil || f.Node.Mark == nil || !f.Node.Mark.Strategy.KeepsImage()) {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}
