package rolling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
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
		unchanged := n.RequireUnchanged(ctx)
		if OnlyMoved(unchanged) != nil {
			return unchanged // the others have looked on the host where it was
		}
		problems = append(problems, n.RequireOneMachine(ctx), unchanged, n.requireFallback(ctx), n.requireSoleOwner(ctx), n.requireOthersReady(ctx), n.RequireEtcd(ctx))
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
			"recast publish with the previous recast.lock, with its recast.yaml and schematics, puts it there; roll.bootFailure: rollback does without")
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

func (n *Node) plannedOn() string {
	if vm := n.Plan.Found.VM; vm != nil {
		return vm.Host
	}
	return n.Plan.Host
}

// MovedSince returns the refusal for a VM that is on another host than the plan says.
func (n *Node) MovedSince(vm cluster.VM) error {
	err := fault.PlanMoved.Of(fault.As(fault.Refused, &MovedError{VM: vm, From: n.plannedOn()}))
	return fault.WithHint(err, "run recast plan and look again; the move, perhaps by Proxmox HA, may not have finished")
}

// MovedError is a VM that is on another host than the plan says. Nothing of its node was changed: a new plan can go on.
type MovedError struct {
	VM   cluster.VM
	From string
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("%s was on %s when the plan was made", e.VM, e.From)
}

// OnlyMoved returns the VMs that have moved since the plan, if nothing else has failed.
func OnlyMoved(err error) (moved []*MovedError) {
	if all, joined := err.(interface{ Unwrap() []error }); joined {
		for _, one := range all.Unwrap() {
			its := OnlyMoved(one)
			if its == nil {
				return nil
			}
			moved = append(moved, its...)
		}
		return moved
	}
	if one, is := err.(*MovedError); is {
		return []*MovedError{one}
	}
	if inner := errors.Unwrap(err); inner != nil {
		return OnlyMoved(inner)
	}
	return nil
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

// RequireOneMachine refuses unless the machine of the node's VM is both the machine at the node's address and the one
// that has its name in Kubernetes. It accepts a machine that does not answer: other checks decide whether it must.
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

func (n *Node) requireNew(ctx context.Context) error {
	if n.Plan.Resume {
		return n.RequireNameFree(ctx)
	}
	problems := []error{n.requireBootable(ctx), n.requireRoom(ctx), n.requireNoVM(ctx), n.requireNoMachine(ctx)}
	if n.Plan.Bootstraps {
		return errors.Join(append(problems, n.requireNoCluster(ctx))...)
	}
	problems = append(problems, n.requireNoNode(ctx))
	if n.Plan.Role == cluster.ControlPlane {
		problems = append(problems, n.requireNoMember(ctx))
	}
	return errors.Join(problems...)
}

func (n *Node) requireNoCluster(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	switch _, err := n.Kube.Nodes(asking); {
	case cluster.IsUnanswered(err):
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("check that there is no cluster yet: %w", err)
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("the cluster's Kubernetes API answers: there is one already, and it was to begin with %s", n.Plan.Node), "run the same command again, which looks again")
}

// requireBroken refuses to take away a control plane if its cluster is not broken: the Kubernetes API answers, or the
// control plane's etcd has a leader.
func (n *Node) requireBroken(ctx context.Context) error {
	problems := []error{cluster.RequireQuorum(ctx, n.Proxmox), n.requireNoLeader(ctx)}
	if !n.Plan.Resume {
		problems = append(problems, n.requireNoCluster(ctx), n.requireStorages(ctx), n.RequireUnchanged(ctx))
	}
	return errors.Join(problems...)
}

// requireNoLeader refuses a control plane whose etcd has a leader, or whose VM runs while its etcd does not say
// whether there is a leader. It waits for a VM that is shutting down.
func (n *Node) requireNoLeader(ctx context.Context) error {
	const again = "run the same command again, which looks again"
	err := n.Wait(ctx, "gate", n.Plan.Node+" off, or without a leader", n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
		defer cancel()
		s, _ := n.Talos.EtcdStatus(asking, n.Plan.Addr) // the answer counts, even with an error
		switch {
		case s.Leader != 0:
			return false, "", wait.Stop(fault.WithHint(fault.PlanMoved.Refusedf("etcd on %s has a leader: the cluster is not broken", n.Plan.Node), again))
		case s.MemberID != 0:
			return true, "", nil
		}
		vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
		if errors.Is(err, cluster.ErrNotFound) {
			return true, "", nil
		}
		return err == nil && !vm.Running, "it runs, and its etcd does not answer", err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(fault.PlanMoved.Refusedf("VM %d of %s runs, and its etcd does not say whether it has a leader", n.Plan.VMID, n.Plan.Node), "check that it does not serve, switch it off, and %s", again)
	}
	return err
}

func (n *Node) requireNoVM(ctx context.Context) error {
	vms, err := n.Proxmox.VMs(ctx)
	if err != nil {
		return fmt.Errorf("look for VMs of %s: %w", n.Plan.Node, err)
	}
	for _, vm := range vms {
		if vm.ID == n.Plan.VMID || vm.Name == n.Plan.Node {
			return fault.WithHint(fault.PlanMoved.Refusedf("there is %s, and VM %d %q was to be made", vm, n.Plan.VMID, n.Plan.Node), "run recast plan and look again")
		}
	}
	return nil
}

func (n *Node) requireNoNode(ctx context.Context) error {
	_, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("Kubernetes has a node %s already", n.Plan.Node), "run recast plan and look again")
}

func (n *Node) requireNoMachine(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	what := "a machine in maintenance mode"
	m, err := cluster.ReadIdentity(asking, n.Talos, n.Plan.Addr)
	if err == nil {
		what = fmt.Sprintf("machine %s (UUID %s)", m.Nodename, m.UUID)
	} else if _, err = n.Maintenance.MaintenanceMachine(asking, n.Plan.Addr); err != nil {
		return ctx.Err() // no machine has the address
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s answers at %s, which is to be the address of %s", what, n.Plan.Addr, n.Plan.Node), "give the node another address in recast.yaml")
}

// requireNoMember refuses to create a control plane whose name a member of etcd has, since Talos would remove that
// member when the new one joins. It also refuses if etcd is not healthy: one more member would have to agree. If
// another control plane is just joining, requireNoMember waits.
func (n *Node) requireNoMember(ctx context.Context) error {
	var unhealthy error
	err := n.Wait(ctx, "gate", "etcd healthy", n.Timing.Join, func(ctx context.Context) (bool, string, error) {
		v, err := etcd.Look(ctx, n.Talos, n.OtherControlPlanes())
		if err != nil {
			return false, "", wait.Stop(err)
		}
		m, found, err := v.Member(n.Plan.Node)
		if err != nil {
			return false, "", wait.Stop(err)
		}
		if found {
			return false, "", wait.Stop(fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd has a member named %s (%x)", n.Plan.Node, m.ID), "%s", v.Leftover(m)))
		}
		wrong := strings.Join(v.Unhealthy(""), "; ")
		unhealthy = fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd must be healthy for %s to join it: %s", n.Plan.Node, wrong), "bring its members back first")
		return wrong == "", wrong, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return unhealthy
	}
	return err
}

// awaitLate waits, before the node is taken out, until Proxmox can no longer carry out an earlier process's requests
// that would harm the node while it is out: a start of its own VM, or the shutdown of another control plane.
func (n *Node) awaitLate(ctx context.Context) error {
	if n.Plan.Strategy.From() == cluster.Blank || n.Plan.OnlyTidies() {
		return nil // nothing is taken out
	}
	say := func(text string) { n.Tell("gate", text) }
	own, err := n.ownParkings(ctx)
	if err != nil {
		return err
	}
	goesOn := n.Plan.Resume && n.Plan.Strategy.From() != cluster.Halfway
	which := exchange.SwitchesOn
	if goesOn { // the roll that resumes may itself have been starting the VM
		which = []string{cluster.SentAddHA}
	}
	if err := n.Late.Await(ctx, own, which, say); err != nil {
		return err
	}
	if n.Plan.Strategy.From() != cluster.Halfway && !goesOn { // a put-back protects the VM, and a resumed roll waits before the delete
		if err := n.Late.Await(ctx, own, []string{exchange.SentDelete}, say); err != nil {
			return err
		}
	}
	if err := n.forgetLate(ctx, n.Plan.Found.Elsewhere); err != nil || n.Plan.Role != cluster.ControlPlane {
		return err
	}
	others, err := n.otherParkings(ctx)
	if err != nil {
		return err
	}
	if err := n.Late.Await(ctx, others, cluster.TakesDown, say); err != nil {
		return err
	}
	return n.forgetLate(ctx, others)
}

// ownParkings returns the node's own parking VMs, also those on other hosts; their records list the requests to
// wait for.
func (n *Node) ownParkings(ctx context.Context) ([]parking.Parking, error) {
	if n.Plan.Strategy.KeepsVM() {
		return nil, nil
	}
	park, err := n.Parking(ctx)
	if errors.Is(err, cluster.ErrNotFound) {
		return n.Plan.Found.Elsewhere, nil
	}
	return append([]parking.Parking{park}, n.Plan.Found.Elsewhere...), err
}

// otherParkings returns the parking VMs of the cluster's other control planes whose records have requests.
// An offline host does not carry out any request.
func (n *Node) otherParkings(ctx context.Context) ([]parking.Parking, error) {
	if n.Late.None() {
		return nil, nil
	}
	vms, err := n.Proxmox.VMs(ctx)
	_, away := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !away {
		return nil, fmt.Errorf("look for requests without an answer: %w", err)
	}
	all, err := parking.Readable(vms, n.Cluster)
	if err != nil {
		return nil, err
	}
	if !away {
		n.Late.SawAll(all)
	}
	return cluster.Where(all, func(p parking.Parking) bool {
		return p.Record.Node != n.Plan.Node && p.Record.ControlPlane && len(p.Record.Sent) > 0
	}), nil
}

// forgetLate removes requests that can no longer come from closed records. No other control plane is
// being rolled, so nothing else writes these records.
func (n *Node) forgetLate(ctx context.Context, parkings []parking.Parking) error {
	for _, p := range parkings {
		before := len(p.Record.Sent)
		n.Late.Forgetting(p.VM.ID, func(*parking.Record) {})(&p.Record)
		if p.Record.Open || len(p.Record.Sent) == before {
			continue
		}
		if err := exchange.WriteRecord(ctx, n.Proxmox, p.VM, p.Record); err != nil && (!errors.Is(err, cluster.ErrChanged) || fault.KindOf(err) == fault.Claimed) {
			return err
		}
	}
	return nil
}

// RequireNoLoss checks again which data would be lost with a system disk that is about to leave the node: there may
// be new data since the plan was made.
func (n *Node) RequireNoLoss(ctx context.Context) error {
	c, leaves, err := n.leavingNow(ctx)
	if err != nil || !leaves {
		return fault.Prefix("look again at what is on the system disk of "+n.Plan.Node, err)
	}
	against := cluster.Texts(c.Irreplaceable())
	if len(against) == 0 {
		return nil
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s became impossible for %s since the plan was made: %s", n.Plan.Strategy, n.Plan.Node, strings.Join(against, "; ")),
		"once that no longer holds, run the same command again")
}

// RequireNoLossOff is RequireNoLoss for a node that is already down, right before its system disk is handed over.
// It waits for a Kubernetes that is slow to answer, but not for one that is down together with a control plane:
// nothing can have been bound to the node since that control plane was stopped.
func (n *Node) RequireNoLossOff(ctx context.Context) error {
	if n.Plan.Rebuild != "" {
		return nil // its disk stays parked, and Kubernetes does not answer
	}
	err := n.RequireNoLoss(ctx)
	if err == nil || fault.KindOf(err) != fault.Failed || ctx.Err() != nil {
		return err
	}
	if n.Plan.Role == cluster.ControlPlane && len(n.Plan.ControlPlanes) < 3 {
		return nil
	}
	return n.Wait(ctx, "losses", "Kubernetes to tell what is bound to "+n.Plan.Node, n.Timing.Join, func(ctx context.Context) (bool, string, error) {
		err := n.RequireNoLoss(ctx)
		if err != nil && fault.KindOf(err) != fault.Failed {
			err = wait.Stop(err)
		}
		return err == nil, "", err
	})
}

func (n *Node) leavingNow(ctx context.Context) (c strategy.Candidate, leaves bool, err error) {
	f := observe.Found{Name: n.Plan.Node}
	var park parking.Parking
	var vm cluster.VM
	var errVM error
	err = wait.All(
		wait.Into(&park, func() (parking.Parking, error) { return n.Parking(ctx) }),
		wait.Aside(&errVM, wait.Into(&vm, func() (cluster.VM, error) { return n.Proxmox.VM(ctx, n.Plan.VMID) })),
	)
	if err == nil && park.Record.Open && park.Record.Run == n.Run {
		f.Parking = &park
	} else if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return c, false, err
	}
	switch {
	case errors.Is(errVM, cluster.ErrNotFound):
		return c, false, nil
	case errVM != nil:
		return c, false, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, errVM)
	}
	f.VM = &vm
	if f.Open() {
		mem, err := park.Record.ReadMemory(park.VM)
		if err != nil {
			return c, false, err
		}
		if there, isNew := park.Record.SystemOn(vm, mem); !there || isNew != (n.Plan.Strategy.From() == cluster.Halfway) {
			return c, false, nil
		}
	}
	var silent error
	if vm.Running {
		m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		if err == nil && m.UUID == vm.UUID() {
			f.Machine = &m
		}
		silent = fault.Prefix(fmt.Sprintf("read machine %s", n.Plan.Addr), err)
	}
	if f.Machine == nil && !f.Open() { // the node did not come back from an upgrade in place
		mem, err := n.Memory(ctx)
		if err != nil {
			return c, false, cmp.Or(silent, err)
		}
		f.Machine = new(mem.Machine())
	}
	if err := n.bindings(ctx, &f); err != nil {
		return c, false, err
	}
	c, leaves = strategy.Leaving(n.Plan.Strategy, n.Plan.Wanted, f)
	return c, leaves, nil
}

// bindings reads what Kubernetes says about the node. A deleted Node is no error, and neither is an
// API that is down with its control planes.
func (n *Node) bindings(ctx context.Context, f *observe.Found) error {
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return nil
	case err == nil:
		f.Node = &k
		f.Local, err = n.localData(ctx, k)
	}
	if err != nil && n.Plan.Found.Node == nil && n.Plan.Resume {
		f.Node = nil // it was already unavailable when the plan was made
		return nil
	}
	return err
}

func (n *Node) localData(ctx context.Context, k cluster.KubeNode) ([]cluster.LocalData, error) {
	local, err := n.Kube.LocalData(ctx, k)
	return local[n.Plan.Node], err
}

// RequireEtcd refuses to take out a control plane unless etcd survives without it.
func (n *Node) RequireEtcd(ctx context.Context) error {
	if n.Plan.Role != cluster.ControlPlane {
		return nil
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd())
	if err != nil {
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("whether etcd would survive losing %s can't be determined: %w", n.Plan.Node, err), "talosctl etcd status; bring etcd back first")
	}
	m, member, err := v.Member(n.Plan.Node)
	if err != nil {
		return err
	}
	if other, same := cluster.Find(n.OtherControlPlanes(), func(e cluster.Endpoint) bool { return cluster.ShortName(e.Node) == cluster.ShortName(n.Plan.Node) }); same {
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s and %s have the same hostname: Talos names their members of etcd alike, and when one joins again, it removes the other's", n.Plan.Node, other.Node),
			"give every control plane a hostname of its own, without counting the domain")
	}
	except := n.Plan.Node
	if member && len(v.Members) == 1 {
		except = "" // no other member reports what is wrong with it
	}
	if wrong := v.Unhealthy(except); len(wrong) > 0 {
		return v.SilentOr(fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd would not survive losing %s: %s", n.Plan.Node, strings.Join(wrong, "; ")),
			"talosctl etcd status; talosctl etcd alarm list; repair etcd first"), wrong)
	}
	voters := len(v.Members)
	if !member {
		voters++ // the node has already left: the members are the others
	}
	if err := errors.Join(n.RequireSameEtcd(ctx, v, m), n.requireAllMembers(v, voters)); err != nil {
		return err
	}
	var refused []string
	typeInit := n.Plan.Found.Machine != nil && n.Plan.Found.Machine.TypeInit
	if refused = strategy.AgainstInit(!n.Plan.EtcdKept, typeInit); member {
		refused, _ = strategy.EtcdRules(voters, !n.Plan.EtcdKept, typeInit, n.Plan.Strategy, n.AcceptOutage)
	}
	switch {
	case len(refused) > 0:
		return fault.EtcdUnhealthy.Refusedf("%s", strings.Join(refused, "; "))
	case !member && n.Plan.EtcdKept:
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s is not a member of etcd (%s are), and with the data that it has it can never join again", n.Plan.Node, v.Names()),
			"make it a new member with empty data first: %s", etcd.EmptyData(n.Plan.Node, n.Plan.Addr, n.Plan.Found.Machine))
	}
	return nil
}

// RequireSameEtcd refuses if the member with the node's name is not the one that runs on the node: when the
// replaced node joined, Talos would remove another machine's member, and the node's present data would belong to
// another cluster.
func (n *Node) RequireSameEtcd(ctx context.Context, v etcd.View, m cluster.EtcdMember) error {
	own, err := n.Talos.EtcdStatus(ctx, n.Plan.Addr)
	_, answers := v.Statuses[m.ID]
	i := slices.IndexFunc(v.Members, func(o cluster.EtcdMember) bool { return err == nil && o.ID == own.MemberID && !o.Of(n.Plan.Node) })
	switch {
	case m.ID == 0 && i >= 0:
		err = fault.EtcdUnhealthy.Refusedf("%s runs etcd member %x, which is named %s: when the machine joins again, Talos removes only the member of the machine's own name",
			n.Plan.Node, own.MemberID, v.Members[i].Label())
	case err == nil && own.MemberID != m.ID && m.ID == 0:
		err = fault.EtcdUnhealthy.Refusedf("%s runs etcd member %x, which the others (%s) do not know", n.Plan.Node, own.MemberID, v.Names())
	case err == nil && own.MemberID != m.ID, err != nil && answers:
		err = fault.EtcdUnhealthy.Refusedf("etcd member %x is named %s, but is not what runs on %s: another machine has its name", m.ID, n.Plan.Node, n.Plan.Addr)
	case err != nil && m.ID != 0:
		return n.requireOwnMember(ctx, m)
	default:
		return nil // a member that does not answer may be replaced
	}
	return fault.WithHint(err, "talosctl get members and talosctl etcd members, asked of each control plane, show who is who")
}

// requireAllMembers refuses if a control plane is not a member of the etcd that answered. A resumed
// run may not see all of them.
func (n *Node) requireAllMembers(v etcd.View, voters int) error {
	if n.Plan.Resume || voters == len(n.Plan.ControlPlanes) {
		return nil
	}
	return fault.WithHint(
		fault.EtcdUnhealthy.Refusedf("the cluster has %d control planes, but etcd without %s only these members: %s", len(n.Plan.ControlPlanes), n.Plan.Node, v.Names(n.Plan.Node)),
		"talosctl etcd members, asked of each control plane, shows who is missing. One that was removed while it kept its data joins again only without them: "+
			"recast doctor sees whether that is so, and then has the command that wipes them")
}

// RequireJoins refuses a configuration with which a machine without etcd's data would begin an etcd of its own.
func (n *Node) RequireJoins(text cluster.Secret) error {
	if !cluster.OfTypeInit(text) {
		return nil
	}
	return fault.WithHint(fault.MachineConfig.Refusedf("the machine configuration of %s is of machine.type init, and its etcd directory is empty: %s there, a second one beside that of the others", n.Plan.Node, strategy.BeginsAlone),
		"boot it from the boot ISO, and give it that configuration with machine.type: controlplane by hand: talosctl apply-config --insecure -n %s --file %s.yaml, with the new system disk by its serial; then recast roll finishes it", n.Plan.Addr, n.Plan.Node)
}

// requireOldEtcd refuses to boot an old system disk whose etcd data belongs to a removed member:
// etcd would crash-loop on it forever ("the member has been permanently removed from the cluster").
func (n *Node) requireOldEtcd(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	rec := n.Plan.Found.Parking.Record
	switch {
	case !mem.ControlPlane, mem.EtcdKept, !rec.Left && mem.EtcdMembers < 2:
		return nil
	case rec.Left:
		had, _, err := n.Journal.Secret(n.Key("machine-config"))
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		return n.RequireJoins(had)
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil {
		return err
	}
	m, found, err := v.Member(n.Plan.Node)
	if err == nil && (!found || m.ID != mem.EtcdID) {
		err = fault.WithHint(fault.NoWayBack.Refusedf("the old system disk of %s holds the data of etcd member %x, which is not a member any more: it would never join again", n.Plan.Node, mem.EtcdID),
			"let recast roll finish the replacement instead; that needs its machine configuration (talos.machineConfigs)")
	}
	return err
}

// GateAsker asks gates.
type GateAsker struct {
	Objects  cluster.ObjectJudge
	Commands cluster.CommandRunner
	Env      []string // for commands
}

// Look asks a gate once. seen says why the gate does not hold. An error of kind fault.Refused can be fixed only by
// the configuration, or by more rights.
func (a GateAsker) Look(ctx context.Context, g cluster.UserGate) (holds bool, seen string, err error) {
	if g.Command != nil {
		exit, said, err := a.Commands.RunGate(ctx, *g.Command, a.Env)
		if err != nil || exit == 0 {
			return err == nil, "", err
		}
		seen = fmt.Sprintf("%s ended with %d", g.Command.Args[0], exit)
		if said != "" {
			seen += ": " + said
		}
		return false, seen, nil
	}
	judged, err := a.Objects.Judge(ctx, *g.Objects)
	if err != nil {
		return false, "", err
	}
	return verdictOf(judged, *g.Objects)
}

// verdictOf says whether the gate holds. Without any object it does not hold, unless it is optional.
func verdictOf(j cluster.Judged, g cluster.ObjectGate) (holds bool, seen string, err error) {
	switch {
	case j.Unserved != "" && !g.Optional:
		return false, "", fault.WithHint(fault.GateClosed.Refusedf("%s", j.Unserved), "correct apiVersion and kind in roll.gates; optional: true lets the gate hold without")
	case j.Unserved != "" || j.Objects == 0 && g.Optional:
		return true, "", nil
	case j.Objects == 0:
		return false, "there is no such object", nil
	case len(j.Failing) == 0:
		return true, "", nil
	}
	seen = words.First(cluster.Each(j.Failing, func(f cluster.FailingObject) string { return f.Name + ": " + f.Why }))
	return false, fmt.Sprintf("%d of %d: %s", len(j.Failing), j.Objects, seen), nil
}

// UserGates asks the gates about one node in a roll, before it goes and after it is back.
type UserGates struct {
	*Node
	Gates    []cluster.UserGate
	Objects  cluster.ObjectJudge
	Commands cluster.CommandRunner
	LeftOpen func(error) error // adds to the error of a finished node what else was not done
}

// After returns the last step of a node that is back: it asks the gates again. The node is done, whatever they say. If
// a run ends in this step, the next run asks them before it takes out another node.
func (n UserGates) After() []step.Step {
	after := n.afterwards()
	if len(after) == 0 || n.Plan.Strategy.From() == cluster.Halfway || n.StaysIn() {
		return nil
	}
	return []step.Step{{ID: "ask-gates-again", Code: fault.GateClosed, Title: "ask the gates with " + n.Plan.Node + " back", Yields: true, Do: n.awaitAfter}}
}

// Before returns the step before the final gate check: waiting is cheap while nothing was touched.
// If the node is already out, the gates can't be expected to hold.
func (n UserGates) Before() []step.Step {
	if len(n.Gates) == 0 || n.Plan.Resume || n.Plan.OnlyTidies() {
		return nil
	}
	return []step.Step{{ID: "ask-gates", Code: fault.GateClosed, Title: "ask the gates before " + n.Plan.Node + " goes", Yields: true, Do: n.awaitBefore}}
}

func (n UserGates) awaitAfter(ctx context.Context) error {
	for _, g := range n.afterwards() {
		if err := n.await(ctx, g, "ask-gates-again", "after"); err != nil {
			return n.LeftOpen(fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err),
				"once that holds, recast roll continues with the next node, before which it asks again"))
		}
	}
	return nil
}

func (n UserGates) awaitBefore(ctx context.Context) error {
	for _, g := range n.Gates {
		err := n.await(ctx, g, "ask-gates", "before")
		if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Config {
			err = fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once that holds, run the same command again; recast doctor shows how the gates stand", n.Plan.Node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// await waits until one gate holds. Before the node goes, an error that only a new configuration can fix ends the wait
// at once. Afterwards it does not: an API that has just come back may not serve every kind yet.
func (n UserGates) await(ctx context.Context, g cluster.UserGate, id, when string) error {
	ask := GateAsker{Objects: n.Objects, Commands: n.Commands, Env: []string{
		"RECAST_CLUSTER=" + n.Cluster, "RECAST_RUN=" + n.Run, "RECAST_NODE=" + n.Plan.Node,
		"RECAST_STRATEGY=" + string(n.Plan.Strategy), "RECAST_WHEN=" + when,
	}}
	name := fmt.Sprintf("gate %q", g.String())
	if g.Command != nil {
		n.Tell(id, name+": running "+g.Command.Args[0]) // it may take long
	}
	return n.Wait(ctx, id, name, g.Timeout(), func(ctx context.Context) (bool, string, error) {
		holds, seen, err := ask.Look(ctx, g)
		cut := ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) // an error of the command itself says more
		if cut || when == "before" && fault.KindOf(err) == fault.Refused {
			err = wait.Stop(err)
		}
		return holds, seen, err
	})
}

func (n UserGates) afterwards() []cluster.UserGate {
	return cluster.Where(n.Gates, func(g cluster.UserGate) bool { return !g.BeforeOnly })
}
