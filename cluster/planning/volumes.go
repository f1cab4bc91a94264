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

// etcdVolume is the ID of the volume with etcd's data.
const etcdVolume = "ETCD"

// planVolumes refuses a configuration with which Talos no longer uses a volume that stays, or can't open it: pods, or
// etcd, would write to an empty directory on EPHEMERAL instead. nodes[].acceptLoss lifts that by its ID, as shown.
func (n *NodePlan) planVolumes() {
	gets, whose, goes := n.volumesFor(n.Strategy)
	switch {
	case !goes || n.Resume && n.Strategy.From() != cluster.Blank || n.Strategy.Reshapes() && n.staysUp():
		return
	case n.Found.Volumes.Err != nil:
		n.Refused = append(n.Refused, "its configuration can't be read for the volumes that it defines: "+n.Found.Volumes.Err.Error())
		return
	case len(gets) == 0:
		return
	}
	m := n.Found.Machine
	if m == nil {
		if n.Found.Blank != nil {
			n.planBlankVolumes(gets, whose)
		}
		return
	}
	for _, s := range m.VolumeStatuses {
		on, leaves := n.whereIs(s)
		if leaves || !s.Exists() {
			continue
		}
		is, defined := volumeOf(gets, s.ID)
		was, known := volumeOf(n.Found.Volumes.Runs, s.ID)
		if !known {
			was = cluster.ConfigVolume{ID: s.ID, Document: s.ID, Type: s.Type}
		}
		if !defined && !known {
			continue // its document was removed before, and Talos is about to drop it
		}
		if !s.Ready() && defined && is.Type == was.Type {
			continue // another key or place may mend the volume
		}
		if what, loses := n.volumeChange(s, was, is, on); what != "" {
			n.refuseVolume(s, m.NamesOf(s), whose+" "+what, loses)
		} else if what := unusable(s, was, is, on); defined && what != "" {
			n.Refused = append(n.Refused, whose+" "+what)
		}
	}
}

// volumesFor returns the volumes of the configuration with which the node boots next by a strategy, and whose
// configuration that is; goes is false for a strategy that leaves the machine as it is, or has its own rules.
func (n *NodePlan) volumesFor(s cluster.Strategy) (gets []cluster.ConfigVolume, whose string, goes bool) {
	if s.From() == cluster.Nowhere || !s.Brings() {
		return nil, "", false
	}
	as := *n
	as.Strategy = s
	if file := n.Found.File; file != nil && file.Err == nil && len(file.Volumes) > 0 && as.AppliesConfig() {
		return file.Volumes, "its file in talos.machineConfigs", true
	}
	return n.Found.Volumes.Keeps, "the configuration that it keeps for its next boot", true
}

// whereIs says in words where a volume is, and whether it leaves the node: as a loss of its own, or to be made anew.
func (n *NodePlan) whereIs(s cluster.VolumeStatus) (on string, leaves bool) {
	m := n.Found.Machine
	disks := []string{s.Disk}
	switch {
	case s.Type == cluster.DirectoryVolume:
		on, disks = "is a directory on EPHEMERAL", m.DisksWith("EPHEMERAL")
	case s.Type == cluster.ExternalVolume:
		return "is " + s.Location + " of the VM's host", false
	case s.Disk == "":
		on = "is on " + cmp.Or(s.Location, "a disk that is not known")
	default:
		on = "is on the disk " + s.Disk
	}
	onSystem := len(disks) > 0 && !slices.ContainsFunc(disks, func(disk string) bool { return disk != m.SystemDisk })
	return on, onSystem && n.Strategy.SwapsSystem()
}

// volumeChange says how a configuration turns a volume into something else, and what the node loses; "": it does not.
func (n *NodePlan) volumeChange(s cluster.VolumeStatus, was, is cluster.ConfigVolume, on string) (what, loses string) {
	document, whose := documentOf(was, is), "whose volume "+on
	stays := !n.Strategy.SwapsSystem()
	system := strings.HasPrefix(document, "VolumeConfig ")
	loses = "Talos uses an empty directory on EPHEMERAL instead, and what is on it stays there"
	if s.ID == etcdVolume {
		loses = "its member leaves etcd, which deletes what is on it, and joins again with an empty directory on EPHEMERAL" // EtcdLeaveCluster of Talos
	}
	const begins = "Talos moves no data: the node begins with an empty one, and what is on it stays there"
	switch {
	case is.ID == "":
		return fmt.Sprintf("lacks %s, %s: put that document back, or name %s in nodes[].acceptLoss: then it is no longer mounted, and what is on it stays there", document, whose, s.ID),
			dropped(s)
	case system && is.Type == cluster.DirectoryVolume && s.Type == cluster.PartitionVolume:
		return fmt.Sprintf("lacks %s, or its provisioning, %s: Talos would use an empty directory on EPHEMERAL instead; put it back%s", document, whose, n.liftSystemVolume(s)), loses
	case system && is.Type != s.Type:
		return fmt.Sprintf("makes %s a partition, %s: Talos moves no data, and refuses that for a node that has its volumes; take provisioning out again%s", document, whose, n.liftSystemVolume(s)), begins
	case is.Type != s.Type:
		return fmt.Sprintf("has another type (%s) for %s, %s, as a %s: Talos moves no data; put it back, or name %s in nodes[].acceptLoss", is.Type, document, whose, s.Type, s.ID), begins
	case stays && !is.Found && is.Place != was.Place:
		return fmt.Sprintf("has another place for %s, %s: Talos moves no data; put it back, or name %s in nodes[].acceptLoss", document, whose, s.ID),
			"Talos goes on with the partition where it is: another selector has no effect on one that is made"
	case is.Found && is.Place != was.Place, is.Mount != was.Mount:
		return fmt.Sprintf("has another place for %s, %s: Talos moves no data; put it back, or name %s in nodes[].acceptLoss", document, whose, s.ID), begins
	}
	return "", ""
}

// unusable says how a configuration keeps Talos from using a volume that it still has; "": it does not. Nothing
// lifts that: the node would not come up with the volume, and Talos would erase a volume that nobody recognizes
// (HandleEncryption in controllers/block/internal/volumes/encrypt.go).
func unusable(s cluster.VolumeStatus, was, is cluster.ConfigVolume, on string) string {
	switch document := documentOf(was, is); {
	case !is.Encryption.Opens(was.Encryption, s.Slot):
		return fmt.Sprintf("has another encryption for %s, whose volume %s: Talos encrypts a volume when it makes it, and opens it with the keys of its configuration at the next boot; put it back", document, on)
	case is.Filesystem != "" && was.Filesystem != "" && is.Filesystem != was.Filesystem:
		return fmt.Sprintf("has another filesystem (%s) for %s, whose volume %s, with %s: Talos formats a volume when it makes it, and mounts no other one; put it back", is.Filesystem, document, on, was.Filesystem)
	}
	return ""
}

func documentOf(was, is cluster.ConfigVolume) string {
	return cmp.Or(was.Document, is.Document, was.ID)
}

func dropped(s cluster.VolumeStatus) string {
	if strings.HasPrefix(s.ID, cluster.RawVolume) || strings.HasPrefix(s.ID, cluster.SwapVolume) {
		return "Talos no longer uses it, and what is on it stays there"
	}
	return "it is no longer mounted, pods that use its path write to EPHEMERAL, and what is on it stays there"
}

// liftSystemVolume: etcd's member must leave before its directory is empty, which a new system disk brings about.
func (n *NodePlan) liftSystemVolume(s cluster.VolumeStatus) string {
	if !n.acceptable(s) {
		return ". Nothing lifts that while the node keeps its system disk: its etcd would start with no data"
	}
	return fmt.Sprintf(", or name %s in nodes[].acceptLoss", s.ID)
}

func (n *NodePlan) acceptable(s cluster.VolumeStatus) bool {
	return s.ID != etcdVolume || n.Role != cluster.ControlPlane || n.Strategy.SwapsSystem()
}

// refuseVolume refuses a change of a volume. If acceptLoss names it, the plan says what the node loses.
func (n *NodePlan) refuseVolume(s cluster.VolumeStatus, names []string, what, loses string) {
	accepted := slices.ContainsFunc(names, func(name string) bool { return slices.Contains(n.Wanted.AcceptLoss, name) })
	if !accepted || !n.acceptable(s) {
		n.Refused = append(n.Refused, what)
		return
	}
	text, _, _ := strings.Cut(what, ": ")
	n.WillLose = append(n.WillLose, fmt.Sprintf("%s (%s): %s", text, s.ID, loses))
}

// planBlankVolumes knows a reset machine's volumes only by their partitions' labels, and whether they are encrypted.
func (n *NodePlan) planBlankVolumes(gets []cluster.ConfigVolume, whose string) {
	for _, v := range n.Found.Blank.Volumes {
		if v.Label == "" || strings.HasPrefix(v.Label, cluster.SwapVolume) {
			continue
		}
		document := v.Document()
		is, defined := volumeOf(gets, v.Label)
		kept, locked := v.Format != "" || strings.HasPrefix(v.Label, cluster.RawVolume), v.Format == "luks" // else it is empty
		if kept && defined && is.Type == cluster.PartitionVolume && (is.Encryption.Format != "") != locked {
			has := map[bool]string{true: "is encrypted", false: "is not encrypted"}[locked]
			n.Refused = append(n.Refused, fmt.Sprintf("%s has another encryption for %s, whose volume on the disk %s %s: Talos could not open it, or would erase it; correct that", whose, cmp.Or(is.Document, v.Label), v.Disk, has))
			continue
		}
		if document == "" || defined && is.Type == cluster.PartitionVolume {
			continue
		}
		s := cluster.VolumeStatus{ID: v.Label, Type: cluster.PartitionVolume, Disk: v.Disk}
		n.refuseVolume(s, []string{v.Label}, fmt.Sprintf("%s lacks %s, whose volume is on the disk %s: put that document back%s", whose, document, v.Disk, n.liftSystemVolume(s)),
			"Talos does not mount it, and what is on it stays there")
	}
}

// etcdMoves: etcd begins with an empty directory with the configuration that the node gets by a strategy.
func (n *NodePlan) etcdMoves(s cluster.Strategy) bool {
	gets, _, _ := n.volumesFor(s)
	is, defined := volumeOf(gets, etcdVolume)
	return defined && is.Type != n.Found.Machine.EtcdVolume()
}

func volumeOf(volumes []cluster.ConfigVolume, id string) (cluster.ConfigVolume, bool) {
	return cluster.Find(volumes, func(v cluster.ConfigVolume) bool { return v.ID == id })
}

// planSelectors says which disks the file selects for new volumes, and refuses what leaves the node without one.
func (n *NodePlan) planSelectors() {
	if n.Found.File == nil || n.Found.File.Err != nil || !n.AppliesConfig() || n.Resume && n.Strategy.From() != cluster.Blank {
		return
	}
	selectors := n.Found.Selectors(n.volumeStays)
	var stuck []cluster.DiskSelector
	selectors = slices.DeleteFunc(selectors, func(s cluster.DiskSelector) bool {
		if !n.stuckAlready(s) {
			return false
		}
		stuck = append(stuck, s)
		return true
	})
	notes, refused := cluster.TellSelectors(selectors, n.Found.MachineName())
	n.Notes, n.Refused = append(n.Notes, notes...), append(n.Refused, refused...)
	notes, refused = cluster.TellSelectors(stuck, n.Found.MachineName())
	n.Notes = append(append(n.Notes, notes...), refused...)
}

func (n *NodePlan) volumeStays(id string) bool {
	m := n.Found.Machine
	if m == nil {
		return n.Found.HasVolume(id)
	}
	if s, there := m.VolumeStatus(id); there && s.Location != "" {
		_, leaves := n.whereIs(s)
		return !leaves
	}
	return slices.ContainsFunc(m.DisksWith(id), func(disk string) bool {
		return disk != m.SystemDisk || !n.Strategy.SwapsSystem()
	})
}

// stuckAlready: Talos can't make the volume now either, by the same selector; the file makes nothing worse.
func (n *NodePlan) stuckAlready(s cluster.DiskSelector) bool {
	if n.Found.Machine == nil {
		return false
	}
	is, there := n.Found.Machine.VolumeStatus(s.ID)
	was, known := volumeOf(n.Found.Volumes.Runs, s.ID)
	return there && is.Stuck() != "" && (known && was.Place == s.Match || !known && !n.Found.File.Differs())
}

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
// storage systems. Copies on nodes that the plan first brings back do not count yet: the roll waits for them.
func heedStorage(p *Plan, o observe.Observation) {
	for _, s := range o.Storage {
		shown := StorageSystem{Name: s.Name, WaitSeconds: int(s.Patience.Seconds())}
		shown.Held = strings.Join(cluster.Each(s.Held, replica.Hold.String), "; ")
		if !s.Pools {
			shown.Volumes = len(s.Volumes)
		}
		p.Storage = append(p.Storage, shown)
	}
	names := cluster.Each(p.Storage, func(s StorageSystem) string { return s.Name })
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

// noteInitiators notes that servers of volumes will know the nodes by other names.
func noteInitiators(p *Plan) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.VM() == cluster.VMGone || n.Found.Node == nil || !strategy.DiskLeaves(n.Strategy, n.Wanted) {
			continue
		}
		for _, protocol := range []string{cluster.ISCSI, cluster.NVMeoF} {
			of := cluster.Where(n.Found.Served, func(v cluster.LocalData) bool { return v.Access == protocol })
			volumes := cluster.Each(of, func(v cluster.LocalData) string { return v.What })
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

// ceph refuses nodes that go while their VM's Ceph lets reads or writes wait, and notes what may become worse.
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
