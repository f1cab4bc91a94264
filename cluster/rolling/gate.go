package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
)

// CheckGate is the last check before the node is taken out: it reads again everything that the plan was made from,
// and refuses if the cluster would lose data, quorum or a name. First it waits for late requests. It only reads,
// except that it removes those requests from the records. Once it has succeeded, this roll counts the node as out.
func (n *Node) CheckGate(ctx context.Context) error {
	if err := n.awaitLate(ctx); err != nil {
		return err
	}
	if err := errors.Join(n.RequireOurs(ctx), n.look(ctx)); err != nil {
		return err
	}
	n.Out.Add(n.Plan.Node)
	return nil
}

func (n *Node) look(ctx context.Context) error {
	var problems []error
	switch {
	case n.Plan.OnlyTidies():
		return nil // the node is never taken out
	case n.Plan.Strategy.From() == cluster.Blank:
		return n.RequireNameFree(ctx)
	case n.Plan.Rebuild != "" && n.Plan.Strategy.VM() == cluster.VMGone:
		return n.requireBroken(ctx)
	case !n.Plan.Strategy.KeepsVM():
		problems = append(problems, cluster.RequireQuorum(ctx, n.Proxmox))
	}
	if !n.Plan.Resume {
		problems = append(problems, requireCeph(ctx, n.Proxmox, n.Plan))
	}
	switch s := n.Plan.Strategy; {
	case s.From() == cluster.Nowhere:
		return errors.Join(append(problems, n.requireNew(ctx))...)
	case s.From() == cluster.Halfway:
		return errors.Join(append(problems, n.requireOldEtcd(ctx), n.RequireNoLoss(ctx))...)
	case s.Replaces():
		problems = append(problems, n.requireBootable(ctx))
		if !n.Plan.Resume {
			problems = append(problems, n.requireRoom(ctx))
		}
	}
	switch {
	case !strategy.DiskLeaves(n.Plan.Strategy, n.Plan.Wanted):
	case n.Plan.Resume:
		problems = append(problems, n.RequireNoLossOff(ctx))
	default:
		problems = append(problems, n.requireReplaceable(ctx))
	}
	if !n.Plan.Resume && !n.Plan.Strategy.KeepsVM() {
		problems = append(problems, n.requireStorages(ctx))
	}
	if !n.Plan.Resume {
		problems = append(problems, n.RequireOneMachine(ctx), n.RequireUnchanged(ctx), n.requireFallback(ctx), n.requireSoleOwner(ctx), n.requireOthersReady(ctx), n.RequireEtcd(ctx))
	} else {
		problems = append(problems, n.requireEtcdInOldBoot(ctx))
	}
	return errors.Join(problems...)
}

// requireEtcdInOldBoot is [Node.RequireEtcd] for a node that another run has drained, but not taken down yet.
func (n *Node) requireEtcdInOldBoot(ctx context.Context) error {
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return nil //nolint:nilerr // the node is out already
	}
	node := n.Plan.Found.Node
	if marked := node != nil && node.Mark != nil && node.Mark.BootID == m.BootID; marked || n.IsOldBoot(ctx, m) {
		return n.RequireEtcd(ctx)
	}
	return nil
}

// requireFallback refuses an upgrade in place if the fallback that the plan shows is not available:
// the ISO of the build that the node runs.
func (n *Node) requireFallback(ctx context.Context) error {
	if n.Plan.Previous == nil {
		return nil
	}
	f := n.AsReimage()
	if err := f.RequireNoLoss(ctx); err != nil { // asked again, if possible, before the disk leaves
		return fmt.Errorf("should %s not come back, it could not be reimaged: %w", n.Plan.Node, err)
	}
	if err := f.requireBootable(ctx); err != nil {
		return fault.WithHint(fault.Refusedf("should %s not come back, it could not be reimaged: %w", n.Plan.Node, err),
			"recast publish with the previous recast.lock, and the recast.yaml and schematics that it is of, puts it there; roll.bootFailure: rollback does without")
	}
	return nil
}

// requireBootable refuses a node whose new machine would find nothing to boot. A disk that an earlier run has
// prepared no longer needs its image.
func (n *Node) requireBootable(ctx context.Context) error {
	find := n.Published().ISO
	switch {
	case n.Plan.Prepared != "" && n.Plan.Resume:
		return nil
	case n.Plan.Prepared != "":
		find = n.Published().Disk
	}
	_, err := find(ctx)
	return err
}

// requireStorages reads each storage that has a disk of the VM, so that an unavailable storage is found before the
// VM is off, not when the disks are moved.
func (n *Node) requireStorages(ctx context.Context) error {
	disks, err := n.Plan.Found.VM.Disks()
	if err != nil {
		return err
	}
	var problems []error
	asked := map[string]bool{}
	for _, d := range disks {
		storage := d.Storage()
		if d.CDROM || d.Owner == 0 || asked[storage] {
			continue
		}
		asked[storage] = true
		if _, err := n.Proxmox.OwnedVolumes(ctx, n.Plan.Host, storage, n.Plan.VMID); err != nil {
			problems = append(problems, fmt.Errorf("read storage %s, on which %s of VM %d is, before that is taken down: %w", storage, d.Key, n.Plan.VMID, err))
		}
	}
	return errors.Join(problems...)
}

// RequireUnchanged refuses a VM that has changed since the plan was made. If the plan migrates the VM, the run that
// this one continues may have done that.
func (n *Node) RequireUnchanged(ctx context.Context) error {
	vm, err := n.Proxmox.VMConfig(ctx, n.Plan.VMID)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	if vm.Host != n.Plan.Host && vm.Host != n.plannedOn() {
		return n.MovedSince(vm)
	}
	same := vm.Digest == n.Plan.Digest
	if was := n.Plan.Found.VM; !same && was != nil && was.Digest == n.Plan.Digest {
		if same, err = was.SameButPods(ctx, vm, n.Kube.PodVolumes); err != nil {
			return err
		}
	}
	if !same || vm.UUID() != n.Plan.UUID {
		return fault.WithHint(fault.PlanMoved.Refusedf("%s is no longer as it was when the plan was made", vm), "run recast plan and look again")
	}
	return nil
}

// plannedOn returns the host that the VM was on when the plan was made.
func (n *Node) plannedOn() string {
	if vm := n.Plan.Found.VM; vm != nil {
		return vm.Host
	}
	return n.Plan.Host
}

// MovedSince returns the refusal for a VM that is on another host than the plan says.
func (n *Node) MovedSince(vm cluster.VM) error {
	return fault.WithHint(fault.PlanMoved.Refusedf("%s was on %s when the plan was made", vm, n.plannedOn()),
		"run recast plan and look again; the move, perhaps by Proxmox HA, may not have finished")
}

// requireReplaceable checks again what the VM's digest does not show and what may be new since the plan was made:
// data that moved here when another node was drained, a backup that is now due, a firewall rule.
func (n *Node) requireReplaceable(ctx context.Context) error {
	c := strategy.Candidate{Wanted: n.Plan.Wanted, VM: *n.Plan.Found.VM, Found: n.Plan.Found}
	var errTies, errLocal, errMachine error
	c.Found.Ties, errTies = n.Proxmox.Ties(ctx, c.VM)
	k, errNode := n.Kube.Node(ctx, n.Plan.Node)
	if errNode == nil {
		c.Found.Local, errLocal = n.localData(ctx, k)
	}
	c.Machine, errMachine = cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
	if err := errors.Join(errTies, errNode, errLocal, errMachine); err != nil {
		return fmt.Errorf("look again at %s: %w", n.Plan.Node, err)
	}
	against := slices.Concat(cluster.Texts(c.Occupied()), cluster.Texts(c.Irreplaceable()))
	if n.Plan.Strategy.DeletesVM() {
		against = append(against, cluster.Texts(c.Tied())...)
	}
	if len(against) == 0 {
		return nil
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s became impossible for %s since the plan was made: %s",
		n.Plan.Strategy, n.Plan.Node, strings.Join(against, "; ")), "run recast plan and look again")
}

// requireSoleOwner refuses if another tool would undo what the roll does.
func (n *Node) requireSoleOwner(ctx context.Context) error {
	owners, err := n.Kube.OtherOwners(ctx)
	if err != nil {
		return fmt.Errorf("look for other upgraders: %w", err)
	}
	owners = append(owners, cluster.Each(n.omni(), func(what string) string { return "Omni (" + what + ")" })...)
	if len(owners) == 0 {
		return nil
	}
	return fault.WithHint(fault.GateClosed.Refusedf("%s is managed by %s as well, which would undo this", n.Plan.Node, strings.Join(owners, ", ")),
		"suspend or remove that first: two tools must not decide which version a node runs")
}

// omni returns what joins the node's machine to Omni now, and still would after the planned change.
func (n *Node) omni() []string {
	m := n.Plan.Found.Machine
	switch {
	case m == nil, n.Plan.Strategy.System() == cluster.SystemKept: // another system replaces the one that is joined
		return nil
	case n.Plan.Strategy.Upgrades():
		return m.OmniAfter(n.Plan.Wanted.Build)
	}
	file := n.Plan.Found.File
	return slices.DeleteFunc(m.Omni(), func(what string) bool {
		return what == cluster.OmniDocument && n.Plan.AppliesConfig() && file != nil && file.Err == nil && !file.Omni
	})
}

// RequireOurs reads the Node's marks again: since the plan was made, a person may have paused the node, or another
// controller taken it over. A node whose roll has already begun is finished in any case.
func (n *Node) RequireOurs(ctx context.Context) error {
	if n.Plan.Resume || n.Plan.Strategy.From() == cluster.Nowhere || n.Plan.Rebuild != "" {
		return nil
	}
	k, err := n.KubeNode(ctx)
	switch {
	case err != nil:
		return err
	case k.Pause == "":
		return strategy.Uncontrolled(&k)
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s was paused since the plan was made: %s", n.Plan.Node, k.Pause), "recast roll leaves it out from now on; %s", cluster.Unpause(n.Plan.Node))
}

// requireOthersReady refuses to take a node out while another node is down that this roll did not take out.
func (n *Node) requireOthersReady(ctx context.Context) error {
	nodes, err := n.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	down := n.Plan.Heed.Down(nodes, n.Plan.Role, func(name string) bool { return name == n.Plan.Node || n.Out.Has(name) })
	if len(down) > 0 {
		return fault.WithHint(fault.GateClosed.Refusedf("%s%s", planning.OthersDown, strings.Join(down, ", ")), planning.BringBack)
	}
	return nil
}

// requireRoom checks again that there is room for this node's new system disk: others may have
// taken what the plan counted.
func (n *Node) requireRoom(ctx context.Context) error {
	if n.Plan.Space == nil {
		return nil
	}
	room := cluster.RoomOn(ctx, n.Proxmox, n.Plan.Host)
	if cluster.IsUnanswered(room.Err) {
		return fmt.Errorf("read the room on %s: %w", n.Plan.Host, room.Err)
	}
	rooms := map[string]cluster.Room{n.Plan.Host: room}
	for _, use := range observe.SpaceUses([]observe.NewDisk{*n.Plan.Space}, rooms) {
		if lack := use.Lacks(1)[0]; lack != "" {
			return fault.StorageFull.Refusedf("no room for the new system disk of %s: %s", n.Plan.Node, lack)
		}
	}
	return nil
}

// requireCeph checks again that no disk of the VM is on a Ceph that lets reads or writes wait: the VM would not
// start, or a new disk could not be filled.
func requireCeph(ctx context.Context, px cluster.StorageReader, n planning.NodePlan) error {
	if len(n.OnCeph) == 0 {
		return nil
	}
	room := cluster.RoomOn(ctx, px, n.Host)
	if room.Err != nil {
		return fmt.Errorf("read the room on %s: %w", n.Host, room.Err)
	}
	for _, s := range room.Storages {
		if s.Blocked != "" && slices.Contains(n.OnCeph, s.Name) {
			return fault.WithHint(fault.GateClosed.Refusedf("%s has disks on storage %s: %s", n.Node, s.Name, s.Blocked), planning.CephRemedy, n.Host)
		}
	}
	return nil
}

// The Node in Kubernetes decides which machine has a name. Every cluster has Nodes, because recast matches a node to
// its VM by its Node. Talos' discovery may be off, lists a machine for half an hour after it is gone, and shows only
// one of two members with the same name (controllers/cluster/member.go).

// RequireOneMachine refuses unless the machine of the node's VM is both the machine at the node's address and the
// one that has its name in Kubernetes. It accepts a machine that does not answer: other checks decide whether it
// must.
func (n *Node) RequireOneMachine(ctx context.Context) error {
	m, err := cluster.ReadIdentity(ctx, n.Talos, n.Plan.Addr)
	switch {
	case err != nil:
	case m.UUID != n.Plan.UUID:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, m.UUID, n.Plan.UUID),
			"another machine has the address of %s: see who has that lease, or whether it is a virtual address", n.Plan.Node)
	case m.Nodename != "" && m.Nodename != n.Plan.Node:
		return fault.WithHint(fault.UUIDMismatch.Refusedf("the machine of %s is node %s now", n.Plan.Node, m.Nodename),
			"see who has changed its hostname, and change it back, or nodes[].name in recast.yaml")
	}
	return n.RequireOwnName(ctx)
}

// RequireOwnName refuses if Kubernetes has another machine under the node's name.
func (n *Node) RequireOwnName(ctx context.Context) error {
	k, err := n.KubeNode(ctx)
	if err != nil {
		return err
	}
	return n.requireOwn(ctx, k)
}

func (n *Node) requireOwn(ctx context.Context, k cluster.KubeNode) error {
	if k.UUID == n.Plan.UUID {
		return nil
	}
	return n.otherMachine(ctx, k.UUID, fault.UUIDMismatch.Refusedf("Kubernetes has UUID %s for node %s, whose VM %d has %s: two machines have its name", k.UUID, n.Plan.Node, n.Plan.VMID, n.Plan.UUID))
}

// otherMachine adds to err which VM's machine has that UUID and also uses the node's name.
func (n *Node) otherMachine(ctx context.Context, uuid string, err error) error {
	vms, errVMs := n.Proxmox.VMs(ctx)
	for _, vm := range vms {
		if errVMs == nil && vm.UUID() == uuid {
			err = fmt.Errorf("%w; it is the machine of %s", err, vm)
		}
	}
	return fault.WithHint(err, "give every machine a hostname of its own (is one a clone?): talosctl get affiliates shows who is who; "+
		"while node %s is out, its Node stays the other one's: once kubectl get nodes shows it as NotReady, kubectl delete node %s; then run the same command again", n.Plan.Node, n.Plan.Node)
}

// RequireNameFree refuses to bring a machine up under the node's name while another machine uses that name: the new
// machine would take over the other's Node and, when it joins etcd, Talos would remove the other's member
// (addMember in services/etcd.go). An API that does not answer is accepted: this may be the only control plane, and
// without etcd's quorum no member can join.
func (n *Node) RequireNameFree(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	if k, err := n.KubeNode(asking); err == nil {
		if err := n.requireOwn(asking, k); err != nil {
			return err
		}
	}
	for _, e := range n.AskEtcd() {
		if n.Plan.Role != cluster.ControlPlane || e.Node == n.Plan.Node {
			continue
		}
		members, err := n.Talos.EtcdMembers(asking, e.Addr)
		if err != nil {
			continue
		}
		m, found, err := etcd.View{Members: members}.Member(n.Plan.Node)
		if err != nil || !found {
			return errors.Join(err, ctx.Err())
		}
		return n.requireOwnMember(asking, m)
	}
	return ctx.Err()
}

// requireOwnMember refuses if another machine runs the member with the node's name. A member whose
// peer address does not answer is an orphan, or the node's own.
func (n *Node) requireOwnMember(ctx context.Context, m cluster.EtcdMember) error {
	addr, err := m.Address(nil)
	if err != nil || addr == n.Plan.Addr {
		return nil //nolint:nilerr // added, but never started
	}
	other, err := cluster.ReadIdentity(ctx, n.Talos, addr)
	if err != nil || other.UUID == n.Plan.UUID {
		return nil //nolint:nilerr // see above
	}
	return n.otherMachine(ctx, other.UUID, fault.UUIDMismatch.Refusedf("etcd member %x is named %s, but runs on %s, which has UUID %s: another machine has its name", m.ID, n.Plan.Node, addr, other.UUID))
}
