// Package strategy says by which strategies one node can be brought to its wanted state, and what prevents each.
// [Decide] takes the first possible one; a [Candidate] is the node with all that is known of it, and each obstacle
// is a method or function over it.
package strategy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// Decide says how a stale node is brought to its wanted state, from the observation alone. system is its system
// disk, unless systemErr says that the disk could not be proven.
func Decide(w cluster.Wanted, f observe.Found, o observe.Observation, system cluster.Disk, systemErr error) Decision {
	d := Decision{Strategy: w.Strategy, Why: string(w.Strategy) + ": as configured"}
	if f.VM == nil || f.Machine == nil {
		d.Why, d.Refused = "it could not be read", []string{unreadText(f)}
		return d
	}
	c := Candidate{Wanted: w, VM: *f.VM, Machine: *f.Machine, Found: f, Observation: o, System: system, SystemErr: systemErr}
	c = c.withDisks()
	_, unknown := losses(c)
	against, recreate := c.Against()
	if slices.Contains(cluster.Strategies, w.Strategy) {
		d.Refused = against[w.Strategy]
	} else {
		d.Strategy, d.Why, d.Refused = firstPossible(against)
	}
	d.ToRecreate = d.toRecreate(w.Strategy, recreate)
	d.Notes = append(d.Notes, cluster.Each(unknown, c.lostNowhere)...)
	if len(d.Refused) == 0 {
		d.Notes = append(d.Notes, slices.Concat(changes(c), c.argsAccepted(d.Strategy))...)
	}
	if d.Strategy.Replaces() {
		d.WillLose = c.Accepted()
	}
	return d
}

// lostNowhere says that a name in acceptLoss names nothing that leaves with the system disk, and where what it
// names is.
func (c Candidate) lostNowhere(name string) string {
	for _, s := range c.Machine.VolumeStatuses {
		switch {
		case !slices.Contains(c.Machine.NamesOf(s), name), s.Disk == c.Machine.SystemDisk:
		case s.Disk != "":
			return fmt.Sprintf("acceptLoss names %s, which is on the disk %s: with another system disk it stays there", name, s.Disk)
		case s.Location != "":
			return fmt.Sprintf("acceptLoss names %s, which is %s: with another system disk it stays there", name, s.Location)
		}
	}
	for _, v := range c.Machine.Volumes {
		if slices.Contains(v.LossNames(), name) && v.Disk != c.Machine.SystemDisk {
			return fmt.Sprintf("acceptLoss names %s, which is on the disk %s: with another system disk it stays there", name, v.Disk)
		}
	}
	return fmt.Sprintf("acceptLoss names %s, but nothing of that name is on its system disk", name)
}

// Decision says how, and why so, a stale node is brought to its wanted state.
type Decision struct {
	Strategy cluster.Strategy // Auto when none is possible
	Why      string
	Refused  []string // why it can't be done, each with what lifts it
	WillLose []string // data lost with the system disk, as acceptLoss allows
	Notes    []string

	ToRecreate []cluster.Obstacle // what prevents recreate, if it is allowed but not chosen
}

// firstPossible decides for Auto.
func firstPossible(against map[cluster.Strategy][]string) (s cluster.Strategy, why string, refused []string) {
	recreate, reimage := against[cluster.Recreate], against[cluster.Reimage]
	also := slices.DeleteFunc(slices.Clone(recreate), func(r string) bool { return slices.Contains(reimage, r) })
	switch {
	case len(recreate) == 0:
		return cluster.Recreate, "recreate: possible, every persistent disk can be carried over", nil
	case len(reimage) == 0:
		return cluster.Reimage, fmt.Sprintf("reimage: recreate is impossible (%s)", strings.Join(recreate, "; ")), nil
	case len(against[cluster.InPlace]) == 0:
		why = fmt.Sprintf("in-place: recreate and reimage are impossible (%s)", strings.Join(reimage, "; "))
		if len(also) > 0 {
			why += fmt.Sprintf(", recreate also (%s)", strings.Join(also, "; "))
		}
		return cluster.InPlace, why, nil
	}
	for _, reason := range slices.Concat(reimage, also, against[cluster.InPlace]) {
		var of []string
		for _, s := range cluster.Strategies {
			if slices.Contains(against[s], reason) {
				of = append(of, string(s))
			}
		}
		if text := strings.Join(of, ", ") + ": " + reason; !slices.Contains(refused, text) {
			refused = append(refused, text)
		}
	}
	return cluster.Auto, "no strategy is possible", refused
}

// parkedDisks returns the drives that must be given to the parking VM. With a VM Proxmox deletes every volume that
// the VM owns, also detached ones. A holder's volumes stay its own: moving them would rename them under its
// configuration (qemu-server, API2/Qemu.pm, move_disk).
func parkedDisks(disks []cluster.Disk, vm cluster.VMID, s cluster.Strategy, system string) []cluster.Disk {
	var out []cluster.Disk
	for _, d := range disks {
		switch {
		case d.CDROM || d.Owner != vm:
		case s.DeletesVM(), s.Replaces() && d.Key == system:
			out = append(out, d)
		}
	}
	return out
}

func unreadText(f observe.Found) string {
	if f.VM == nil {
		return "it has no VM"
	}
	why := cluster.Each(f.Errs, error.Error)
	return fmt.Sprintf("its machine could not be read: %s: bring it back first", words.OrNone(strings.Join(why, "; ")))
}

// EtcdRules says whether a control plane, of machine.type init or not, may be taken out of service in a
// cluster with n etcd members, including itself, and what to warn of. With three or more, only the health of
// the others counts; the gate checks that.
func EtcdRules(n int, dataOnSystemDisk, typeInit bool, s cluster.Strategy, acceptOutage bool) (refused, warn []string) {
	replaced := !s.KeepsVM() && s.From() != cluster.Halfway // those keep the data, or restore it
	if refused := AgainstInit(replaced && dataOnSystemDisk, typeInit); len(refused) > 0 {
		return refused, nil
	}
	switch {
	case n >= 3, n == 2 && s.VM() == cluster.VMGone: // once the node has left, the other member is enough
	case n < 1:
		refused = append(refused, "how many control planes there are can't be determined: no Node has the label node-role.kubernetes.io/control-plane")
	case n == 2 && !acceptOutage:
		refused = append(refused, "etcd has two members: without this one it has no quorum and the Kubernetes API is down, "+
			"and losing the other one meanwhile loses the cluster: allow it with --accept-outage")
	case n == 2:
		warn = append(warn, "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile")
	case replaced && dataOnSystemDisk:
		refused = append(refused, "the only etcd member's data would be lost with the system disk: use in-place, "+
			"or put etcd's data on a persistent disk (a VolumeConfig for ETCD or EPHEMERAL), with recast backup before the installation that this takes, and recast restore after it")
	default:
		warn = append(warn, "it is the only control plane: the Kubernetes API is down meanwhile")
	}
	return refused, warn
}

// AgainstInit refuses to empty the directory of etcd on a control plane of machine.type init. At the next
// start Talos does not let it join: etcd gets initial-cluster-state=new with this member alone, so that a
// second cluster with the same CA begins (argsForInit in services/etcd.go). A worker's type is never init.
func AgainstInit(emptied, typeInit bool) []string {
	if !emptied || !typeInit {
		return nil
	}
	return []string{"its machine.type is init: with an empty etcd directory " + BeginsAlone + ", beside the one that the others have. " +
		"First set machine.type: controlplane in its file in talos.machineConfigs and recast roll --what config, or: " +
		`talosctl patch machineconfig --mode staged -p '{"machine":{"type":"controlplane"}}', and reboot it`}
}

// BeginsAlone is what a control plane of machine.type init does without data.
const BeginsAlone = "Talos begins a new, empty etcd"

// EtcdOnSystemDisk says whether a control plane loses etcd's data with its system disk. Since Talos 1.14 the data
// can have its own volume ETCD; else it is on EPHEMERAL.
func EtcdOnSystemDisk(m cluster.Machine) (bool, error) {
	if m.SystemDisk == "" {
		return false, fault.EtcdUnhealthy.Refusedf("where etcd's data is can't be determined: the machine does not name its system disk")
	}
	label := "EPHEMERAL"
	if m.EtcdVolume() == cluster.PartitionVolume {
		label = "ETCD"
	}
	switch on := m.DisksWith(label); len(on) {
	case 0:
		return false, fault.EtcdUnhealthy.Refusedf("where etcd's data is can't be determined: the machine shows no partition %s", label)
	case 1:
		return on[0] == m.SystemDisk, nil
	default:
		return false, fault.EtcdUnhealthy.Refusedf("where etcd's data is can't be determined: %s is on %s", label, strings.Join(on, " and on "))
	}
}

// toRecreate lists what prevents recreating a node, if the user did not ask for another strategy and the node would
// not be recreated.
func (d Decision) toRecreate(asked cluster.Strategy, against []cluster.Obstacle) []cluster.Obstacle {
	if asked != cluster.Auto && asked != cluster.Recreate || d.Strategy == cluster.Recreate && len(d.Refused) == 0 {
		return nil
	}
	return slices.Clone(against)
}

// inWords returns obstacles that no single command lifts.
func inWords(texts []string) []cluster.Obstacle {
	return cluster.Each(texts, func(text string) cluster.Obstacle { return cluster.Obstacle{Text: text} })
}

// controllers create and delete VMs themselves, and mark the Nodes of those VMs.
var controllers = []struct{ name, mark, instead string }{
	{"Cluster API", "cluster.x-k8s.io/machine", "its TalosControlPlane or MachineDeployment rolls it: change the template there"},
	{"Karpenter", "karpenter.sh/nodepool", "its NodePool replaces it: change the NodeClass there"},
}

// Controlled says which other controller creates and deletes a node, and what to do instead; "" for none. n may be nil.
func Controlled(n *cluster.KubeNode) (by, instead string) {
	if n == nil {
		return "", ""
	}
	for _, c := range controllers {
		if mark := n.Metadata.Annotations[c.mark] + n.Metadata.Labels[c.mark]; mark != "" {
			return c.name + " (" + c.mark + ": " + mark + "), which creates and deletes its VM", c.instead
		}
	}
	return "", ""
}

// Uncontrolled refuses a node that another controller creates and deletes: the controller would take the node's VM,
// once replaced, for lost, or a new VM for surplus. n may be nil.
func Uncontrolled(n *cluster.KubeNode) error {
	by, instead := Controlled(n)
	if by == "" {
		return nil
	}
	return fault.WithHint(fault.Refusedf("node %s is of %s", n.Name, by), "%s", instead)
}
