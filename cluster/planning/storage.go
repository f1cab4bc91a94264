package planning

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/words"
)

// StorageSystem is a storage system in a plan: its volumes have healthy copies elsewhere before a node goes, and
// are whole before the next node goes.
type StorageSystem struct {
	Name        string `json:"name"`
	Volumes     int    `json:"volumes,omitempty"`     // 0 for a system that shows only whole pools
	WaitSeconds int    `json:"waitSeconds,omitempty"` // for an absent copy before it makes another; 0: unknown, or none
	Held        string `json:"held,omitempty"`        // what recast has set so that the system waits longer; "": nothing
}

// shownVolumes is how many volumes of a node are refused by name.
const shownVolumes = 10

// heedStorage refuses nodes without which volumes have no healthy copy, and notes what their outage means to the
// storage systems. While the plan first brings nodes back, copies on those nodes do not count yet: the roll waits
// for them before each node.
func heedStorage(p *Plan, o observe.Observation) {
	for _, s := range o.Storage {
		shown := StorageSystem{Name: s.Name, WaitSeconds: int(s.Patience.Seconds())}
		var held []string
		for _, h := range s.Held {
			held = append(held, h.String())
		}
		shown.Held = strings.Join(held, "; ")
		if !s.Pools {
			shown.Volumes = len(s.Volumes)
		}
		p.Storage = append(p.Storage, shown)
	}
	var names []string
	for _, s := range p.Storage {
		names = append(names, s.Name)
	}
	comesBack := false
	for i := range p.Nodes {
		n := &p.Nodes[i]
		n.Stored = names
		switch {
		case n.Strategy == "":
		case !n.takenOut():
			comesBack = comesBack || n.Strategy.From() != cluster.Nowhere && !n.OnlyTidies()
		case n.staysUp() || n.Rebuild != "":
		default:
			leaveStorage(n, o.Storage, comesBack)
		}
	}
}

// leaveStorage is heedStorage for a node that goes.
func leaveStorage(n *NodePlan, systems []replica.System, comesBack bool) {
	exposed := replica.Exposed(systems, n.Node, func(string) bool { return false })
	var refused []string
	for _, e := range exposed {
		switch {
		case !e.Refuses(n.Strategy.VM() == cluster.VMGone):
			n.Notes = append(n.Notes, e.Note)
		case !comesBack:
			text := fmt.Sprintf("%s: %s", e, e.Remedy)
			if off := replica.Off(e.System); !strings.Contains(text, off) {
				text += ", or " + off + " does not look at it"
			}
			refused = append(refused, text)
		}
	}
	if more := len(refused) - shownVolumes; more > 0 {
		refused = append(refused[:shownVolumes], fmt.Sprintf("and %d more volumes that have no healthy replica elsewhere", more))
	}
	n.Refused = append(n.Refused, refused...)
	if n.Strategy.VM() == cluster.VMGone {
		return
	}
	for _, s := range systems {
		if note := patience(s, *n); note != "" {
			n.Notes = append(n.Notes, note)
		}
	}
}

// Outage returns how long a node is expected to be away, including what repeats meanwhile.
func Outage(n NodePlan) time.Duration {
	return time.Duration(cmp.Or(n.WholeSeconds, n.OutageSeconds)) * time.Second
}

// patience says what follows if a system waits less than the node is expected to be away; "" if it does not.
func patience(s replica.System, n NodePlan) string {
	has, outage, waits := s.On(n.Node), Outage(n), s.PatienceFor(n.Node)
	holding := s.Holding(n.Node, outage)
	if s.Evicts {
		return evicts(s, n, holding)
	}
	if has == 0 || outage <= waits || waits == 0 && !s.Holds {
		return ""
	}
	what := "its " + words.Counted(has, "replica")
	if s.Pools {
		what = "its data"
	}
	text := fmt.Sprintf("it is expected to be away for %s, and %s waits %s for %s on it (%s): ", outage, s.Name, waits, what, s.Waits)
	if holding > 0 {
		return text + fmt.Sprintf("recast has it wait %s until its volumes are whole again", holding)
	}
	text += "after that it makes others on other nodes"
	if s.Remedy != "" {
		text += "; " + strings.ReplaceAll(s.Remedy, "NODE", n.Node)
	}
	return text
}

// evicts is patience for a system that evicts nodes.
func evicts(s replica.System, n NodePlan, holding time.Duration) string {
	text := fmt.Sprintf("%s evicts it once it is away for %s (%s)", s.Name, s.PatienceFor(n.Node), s.Waits)
	switch outage := Outage(n); {
	case holding > 0:
		return text + fmt.Sprintf(": recast has it wait %s until its volumes are whole again", holding)
	case outage > s.PatienceFor(n.Node):
		return text + fmt.Sprintf(", and it is expected to be away for %s: %s", outage, s.Remedy)
	}
	return ""
}

// knownPatience says whether a storage system itself says how long it waits.
func knownPatience(systems []StorageSystem) bool {
	return slices.ContainsFunc(systems, func(s StorageSystem) bool { return s.WaitSeconds > 0 })
}

// noteInitiators notes that servers of volumes will know the nodes by other names.
func noteInitiators(p *Plan) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.VM() == cluster.VMGone || n.Found.Node == nil || !strategy.DiskLeaves(n.Strategy, n.Wanted) {
			continue
		}
		for _, protocol := range []string{cluster.ISCSI, cluster.NVMeoF} {
			var volumes []string
			for _, v := range n.Found.Served {
				if v.Access == protocol {
					volumes = append(volumes, v.What)
				}
			}
			if len(volumes) > 0 {
				n.Notes = append(n.Notes, fmt.Sprintf("its name for %s (%s) changes with the system disk, as its machine-id does: where the server of %s lets in only names that it knows, add the new one, which the roll shows",
					protocol, cmp.Or(cluster.InitiatorName(protocol, n.Found.Node.MachineID), "unknown"), replica.Some(volumes)))
				n.Initiators = append(n.Initiators, protocol)
			}
		}
	}
}

// CephRemedy says what to do about a Ceph of the Proxmox hosts that lets reads or writes wait; it names a host.
const CephRemedy = "wait until it has repaired that, or see what ceph health detail says on %s"

// ceph refuses nodes that go while a disk of their VM is on a Ceph that lets reads or writes wait, and notes what
// may become worse.
func (p worldOf) ceph() {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy == "" || n.Resume || !n.takenOut() && n.Strategy.From() != cluster.Nowhere {
			continue
		}
		for _, s := range p.o.Rooms[n.Host].Storages {
			if !s.Ceph || !slices.Contains(storagesOf(n), s.Name) {
				continue
			}
			n.OnCeph = append(n.OnCeph, s.Name)
			if s.Blocked != "" {
				n.Refused = append(n.Refused, fmt.Sprintf("storage %s has disks of its VM, and %s: "+CephRemedy, s.Name, s.Blocked, n.Host))
			}
			for _, note := range s.Notes {
				if !slices.Contains(p.Warn, note) {
					p.Warn = append(p.Warn, note)
				}
			}
		}
	}
}

// storagesOf returns the storages with disks of the node's VM, or with its new system disk.
func storagesOf(n *NodePlan) (names []string) {
	if n.Space != nil {
		names = append(names, n.Space.Storage.Name)
	}
	if n.Found.VM == nil {
		return names
	}
	disks, err := n.Found.VM.Disks()
	if err != nil {
		return names // refused elsewhere
	}
	for _, d := range disks {
		if !d.CDROM {
			names = append(names, d.Storage())
		}
	}
	return names
}
