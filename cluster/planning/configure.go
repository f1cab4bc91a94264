package planning

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/strategy"
)

// planConfigure gives a node another machine configuration and nothing else. What needs no reboot is
// tried first: Talos takes it back by itself if the node is not healthy with it.
func planConfigure(n *NodePlan, o observe.Observation, p Policy) {
	n.Strategy, n.EtcdKept, n.Why = cluster.Configure, true, "configure: only its machine configuration differs"
	if n.Drift.IsImage() {
		n.Why = "configure: --what config leaves its image as it is"
	}
	if file := n.Found.File; len(file.Reboot) == 0 {
		n.Why += "; it needs no reboot"
	} else {
		n.Why += "; it needs a reboot for " + strings.Join(file.Reboot, ", ")
	}
	if n.Role == cluster.ControlPlane {
		refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), false, cluster.Configure, p.AcceptOutage)
		n.Refused, n.Notes = append(n.Refused, refused...), append(n.Notes, warn...)
	}
}

// staysUp says whether the node gets only what it needs no reboot for.
func (n NodePlan) staysUp() bool {
	if n.Strategy == cluster.Reconfigure {
		return !stopsVM(n)
	}
	return n.Strategy == cluster.Configure && n.Found.File != nil && len(n.Found.File.Reboot) == 0 && !stopsVM(n)
}

// AppliesConfig says whether the node gets its file of talos.machineConfigs.
func (n NodePlan) AppliesConfig() bool {
	switch n.Strategy {
	case cluster.Create, cluster.Recreate, cluster.Reimage, cluster.ConfigureBlank, cluster.Configure:
		return true
	case cluster.InPlace:
		return n.WithConfig
	}
	return false
}

// refusedConfig says why a node must not get its file.
func (n *NodePlan) refusedConfig(file cluster.FoundFile) []string {
	var out []string
	for _, what := range file.Identity {
		if file.Beside != "" {
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs has not %s that %s has: is it the file of another cluster?", what, file.Beside))
			continue
		}
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs would change %s: recast never does that to a node that runs: is it the file of another node, or of another cluster?", what))
	}
	return append(out, droppedVolumes(*n, file.Changes)...)
}

// droppedVolumes describes volumes whose document is missing in a file: Talos would not mount them, and
// pods would write to the system disk instead. Where the node keeps its system disk, those on it
// count as well, and so does another place for EPHEMERAL.
func droppedVolumes(n NodePlan, changes []config.Change) []string {
	m := n.Found.Machine
	if m == nil {
		return nil
	}
	var out []string
	stays := !slices.Contains(cluster.Leavers, n.Strategy)
	for _, v := range m.Volumes {
		document := cmp.Or(v.Document(), "VolumeConfig "+v.Label)
		if v.Phase != "ready" || v.Disk == m.SystemDisk && !stays || slices.Contains(n.Wanted.AcceptLoss, v.Label) {
			continue
		}
		gone := func(c config.Change) bool {
			return v.Document() == c.Document && c.Kind == config.Removed && c.Path == ""
		}
		moved := func(c config.Change) bool {
			return c.Document == document && strings.HasPrefix(c.Path, "provisioning.diskSelector")
		}
		encrypted := func(c config.Change) bool {
			return c.Document == document && strings.HasPrefix(c.Path, "encryption") ||
				c.Document == config.MainDocument && strings.HasPrefix(c.Path, "machine.systemDiskEncryption."+strings.ToLower(v.Label))
		}
		switch {
		case slices.ContainsFunc(changes, gone):
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs lacks %s, whose volume is on the disk %s: put that document back, "+
				"or name %s in nodes[].acceptLoss: then it is no longer mounted, and what is on it stays there", document, v.Disk, v.Label))
		case stays && slices.ContainsFunc(changes, moved):
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs has another place for %s, whose volume is on the disk %s: Talos moves no data; "+
				"put it back, or name %s in nodes[].acceptLoss", document, v.Disk, v.Label))
		case stays && slices.ContainsFunc(changes, encrypted):
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs has another encryption for %s, whose volume is on the disk %s: Talos encrypts a volume when it "+
				"makes it, and opens it with the keys of its configuration at the next boot; put it back, or name %s in nodes[].acceptLoss", document, v.Disk, v.Label))
		}
	}
	return out
}
