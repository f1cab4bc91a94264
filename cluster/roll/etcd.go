package roll

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

type etcdMember struct {
	*rolling.Node
	record  *record
	files   cluster.FileReader
	backOut func(context.Context) error // puts a drained node back into service

	outOfIt bool // etcd was seen without this member during the take-down
}

// left is the goal of leave: etcd has no member of this name, and the record says whether its data
// is gone too. A machine that is already off stays a member if etcd is healthy without it: the new
// machine replaces that member by name (talos internal/app/machined/pkg/system/services/etcd.go).
func (n *etcdMember) left(ctx context.Context) (string, error) {
	park, err := n.Parking(ctx)
	if err != nil {
		return "", err
	}
	if park.Record.Left || n.outOfIt {
		back, err := n.rejoined(ctx)
		if err != nil {
			return "", err
		}
		if !back {
			return n.Plan.Node + " has left etcd", nil
		}
		n.outOfIt = false
		if err := n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Left = false }); err != nil {
			return "", err
		}
	}
	off, err := isOff(ctx, n.Node)
	if err != nil || !off {
		return "", err
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil || len(v.Unhealthy(n.Plan.Node)) > 0 {
		return "", nil //nolint:nilerr // leaving says what is wrong
	}
	return n.Plan.Node + " is off, and etcd continues without it", nil
}

// rejoined says whether a node that left etcd is a member again: Talos rejoins etcd on the next boot, whatever
// caused that boot.
func (n *etcdMember) rejoined(ctx context.Context) (bool, error) {
	vm, err := n.Proxmox.VMState(ctx, n.Plan.VMID)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	v, err := etcd.Look(ctx, n.Talos, n.OtherControlPlanes(), n.Plan.Node)
	if err != nil {
		err = fmt.Errorf("whether %s has joined etcd again since it left can't be determined: %w", n.Plan.Node, err)
		if !vm.Running {
			err = fault.WithHint(err, "if it was reset meanwhile, it has joined again, and etcd waits for its vote: start %s in Proxmox and wait until etcd is healthy, then run the same command again", vm)
		}
		return false, err
	}
	_, member, err := v.Member(n.Plan.Node)
	return member, err
}

// leaves says whether the node loses its etcd data, and so its vote, with its system disk.
func (n *etcdMember) leaves() bool { return n.Plan.Role == cluster.ControlPlane && !n.Plan.EtcdKept }

func (n *etcdMember) leaveAgain(ctx context.Context) error {
	if !n.leaves() {
		return nil
	}
	if left, err := n.left(ctx); err != nil || left != "" {
		return err
	}
	return n.leave(ctx)
}

// staysOut restarts a VM that is off although etcd still needs its member: the VM was reset after
// it left etcd, and rejoined before it stopped. out returns why etcd does not need it, or "".
func (n *etcdMember) staysOut(ctx context.Context, vm cluster.VM, id string, out func(context.Context) (string, error)) error {
	err := n.Repeat(ctx, id, rolling.RepeatBefore, func(ctx context.Context) error {
		reason, err := out(ctx)
		if err != nil || reason != "" {
			return err
		}
		return n.offBeforeItLeft(ctx)
	})
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Claimed {
		return err
	}
	n.Tell(id, "etcd waits for its vote; starting it again")
	errStart := n.record.sending(ctx, exchange.SentStart, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Start(ctx, vm) })
	return rolling.Final(errors.Join(err, fault.Prefix("start "+vm.String()+" again", errStart)))
}

func (n *etcdMember) offBeforeItLeft(ctx context.Context) error {
	err := fault.EtcdUnhealthy.Refusedf("%s is off before it could leave etcd, and the other members can't do without it", n.Plan.Node)
	vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID)
	if errVM != nil {
		return errors.Join(err, errVM)
	}
	return fault.WithHint(err, "start %s in Proxmox and wait until etcd is healthy, then run the same command again; its system disk holds data that etcd needs", vm)
}

// leave removes the node from etcd while the other members can still agree to the removal: the node's etcd data is
// lost with the system disk, and a member without data is a lost vote.
func (n *etcdMember) leave(ctx context.Context) error {
	off, err := isOff(ctx, n.Node)
	switch {
	case err != nil:
		return err
	case off:
		return n.offBeforeItLeft(ctx)
	}
	member, serves := false, false
	err = n.Repeat(ctx, "take-down/leave-etcd", rolling.RepeatBefore, func(ctx context.Context) error {
		member, serves, err = n.mayLeave(ctx)
		return err
	})
	switch {
	case err != nil && serves:
		return rolling.Final(errors.Join(err, n.backOut(ctx))) // the node keeps serving
	case err != nil:
		return err
	}
	var lost error
	if member {
		if err := n.Talos.EtcdForfeit(ctx, n.Plan.Addr, n.Plan.UUID); err != nil {
			return rolling.Repeatable(fmt.Errorf("make %s hand etcd's leadership over: %w", n.Plan.Node, err))
		}
		lost = fault.Prefix("make "+n.Plan.Node+" leave etcd", n.Talos.EtcdLeave(ctx, n.Plan.Addr, n.Plan.UUID))
		if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
			return lost
		}
	}
	err = n.Wait(ctx, "take-down/leave-etcd", n.Plan.Node+" gone from etcd", n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		v, err := etcd.Look(ctx, n.Talos, n.OtherControlPlanes(), n.Plan.Node)
		if err != nil {
			return false, "", err
		}
		_, member, err := v.Member(n.Plan.Node)
		return !member && err == nil, "still a member", err
	})
	if err != nil {
		return cluster.Unanswered(lost, err)
	}
	n.outOfIt = true
	if !member || lost != nil {
		if emptied, err := n.emptied(ctx, lost != nil); err != nil || !emptied {
			return err
		}
	}
	return n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Left = true })
}

// mayLeave refuses if etcd is not healthy without the node, or if the node's identity is not proven. member says
// whether the node is a member; serves, whether a refused node keeps serving.
func (n *etcdMember) mayLeave(ctx context.Context) (member, serves bool, err error) {
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil {
		return false, false, err
	}
	m, member, err := v.Member(n.Plan.Node)
	if err != nil {
		return false, false, err
	}
	if err := errors.Join(n.RequireOneMachine(ctx), n.RequireSameEtcd(ctx, v, m)); err != nil {
		return member, true, err
	}
	if wrong := v.Unhealthy(n.Plan.Node); member && len(wrong) > 0 {
		err := fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd must be healthy for %s to leave it: %s", n.Plan.Node, strings.Join(wrong, "; ")), "bring the other members back first")
		return member, true, v.SilentOr(err, wrong)
	}
	return member, true, nil
}

// emptied says whether the data of the removed member is gone too. Talos removes the member, stops etcd, empties its
// directory, and then answers; an interrupted call may end in between (LeaveCluster in internal/pkg/etcd/etcd.go). The
// data of a removed member can never rejoin, so a disk that has it can't be rolled back to.
func (n *etcdMember) emptied(ctx context.Context, atWork bool) (bool, error) {
	const id = "take-down/leave-etcd"
	err := n.Wait(ctx, id, "etcd's data on "+n.Plan.Node+" gone", n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		data, err := etcd.HasData(ctx, n.files, cluster.Endpoint{Node: n.Plan.Node, Addr: n.Plan.Addr}, n.Plan.UUID)
		if !data || atWork {
			return err == nil && !data, "it is still there", err
		}
		return false, "", wait.Stop(errors.New("it is still there"))
	})
	if err != nil && ctx.Err() == nil {
		n.Tell(id, fmt.Sprintf("it has left etcd, but its old system disk can't be booted again: %v", err))
		return false, nil
	}
	return err == nil, err
}

const learnerStill = "its etcd member is a learner still"

func (n *etcdMember) lacks(ctx context.Context, mem parking.Memory) (string, error) {
	if !mem.ControlPlane {
		return "", nil
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd())
	if err != nil {
		return "", err
	}
	m, member, err := v.Member(n.Plan.Node)
	switch {
	case err != nil:
		return "", err
	case !member:
		return "it is not a member of etcd yet", nil
	case m.Learner:
		return learnerStill, nil
	case mem.EtcdMembers == 0: // of a broken cluster that works again: nothing was known about its etcd
	case mem.EtcdKept && m.ID != mem.EtcdID:
		return fmt.Sprintf("its etcd member is %x, but its data is that of %x", m.ID, mem.EtcdID), nil
	case len(v.Members) != mem.EtcdMembers && (n.Plan.Strategy.From() != cluster.Nowhere || len(v.Members) < mem.EtcdMembers): // others may have joined with it
		return fmt.Sprintf("etcd has %d members, before: %d", len(v.Members), mem.EtcdMembers), nil
	}
	if wrong := v.Unhealthy(""); len(wrong) > 0 {
		return "etcd: " + strings.Join(wrong, "; "), nil
	}
	return "", nil
}

// blame adds to a timed-out wait for a control plane what etcd lacks: the machine itself only says
// that it is not ready.
func (n *etcdMember) blame(ctx context.Context, waited error) error {
	if !errors.Is(waited, context.DeadlineExceeded) || ctx.Err() != nil {
		return waited
	}
	mem, err := etcdMemory(n.Node), error(nil)
	if n.Plan.Strategy.VM() != cluster.VMUntouched {
		mem, err = n.Memory(ctx)
	}
	if err != nil || !mem.ControlPlane {
		return waited
	}
	what, err := n.lacks(ctx, mem)
	if err != nil {
		what = err.Error()
	}
	if what != "" && !strings.Contains(waited.Error(), what) {
		waited = fmt.Errorf("%w; %s", waited, what)
	}
	if what == learnerStill {
		var machine *cluster.Machine // it may not answer
		if m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr); err == nil {
			machine = &m
		}
		waited = fault.WithHint(waited, "%s", etcd.AdviceForLearner(n.Plan.Node, n.Plan.Addr, machine))
	}
	return waited
}

func (n *etcdMember) remember(ctx context.Context, mem *parking.Memory) error {
	if !mem.ControlPlane {
		return nil
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd())
	if err != nil {
		return err
	}
	m, found, err := v.Member(n.Plan.Node)
	if err != nil {
		return err
	}
	mem.EtcdMembers = len(v.Members)
	if !found {
		mem.EtcdMembers++ // with this one, once it is back
	}
	mem.EtcdID, mem.Old.Etcd = m.ID, v.Statuses[m.ID].Version
	return nil
}

func etcdMemory(n *rolling.Node) parking.Memory {
	return parking.Memory{ControlPlane: n.Plan.Role == cluster.ControlPlane, EtcdMembers: len(n.Plan.ControlPlanes)}
}

// requireToReboot refuses to reboot a machine that etcd needs: the cause of the wait may be another
// member. A machine whose own etcd does not answer is not needed.
func (n *etcdMember) requireToReboot(ctx context.Context) error {
	if n.Plan.Role != cluster.ControlPlane {
		return nil
	}
	if _, err := n.Talos.EtcdStatus(ctx, n.Plan.Addr); err != nil {
		return nil //nolint:nilerr // the others do not need a member that does not answer
	}
	return n.RequireEtcd(ctx)
}

// beginEtcd returns the step that begins etcd on the first control plane of a new or rebuilt cluster. No other machine
// is ever asked to: Talos lets every control plane begin an etcd of its own, and two of them are two clusters.
func beginEtcd(n *rolling.Node, files cluster.FileReader, from etcd.Source) step.Step {
	const id = "begin-etcd"
	if n.Plan.Rebuild == "" {
		from = etcd.Source{}
	}
	b := &etcd.Begin{
		Talos: n.Talos, Target: etcd.Target{Node: n.Plan.Node, Addr: n.Plan.Addr}, File: from.File, Copied: from.Copied,
		Timing: n.Timing, Above: n.Path + "/bring-up", Say: n.Say,
		Failed: "correct what it says, and run the same command again",
	}
	s := b.Step(id)
	begin, listed := s.Do, time.Time{} // since when Talos' discovery lists the machine
	s.Do = func(ctx context.Context) error {
		b.Target.UUID = n.Plan.UUID
		if err := from.Require(ctx, n.Plan.Rebuild); err != nil {
			return err
		}
		// The machine installs Talos first, and restarts.
		w := n.OfMachine(n.Plan.Node+" waiting for its etcd", n.Timing.Join+n.Timing.Settle)
		w.Due = func() time.Duration {
			if listed.IsZero() {
				return 0
			}
			return max(time.Nanosecond, n.Timing.Settle-time.Since(listed))
		}
		err := n.Watch(ctx, "bring-up/"+id, w, func(ctx context.Context) (bool, string, error) {
			if _, _, err := n.Talos.EtcdService(ctx, n.Plan.Addr); err != nil {
				return false, "", err
			}
			var err error
			b.Target.Data, err = etcd.HasData(ctx, files, cluster.Endpoint{Node: n.Plan.Node, Addr: n.Plan.Addr}, n.Plan.UUID)
			if err == nil && !b.Target.Data {
				return lookAround(ctx, n, from.Gone, &listed)
			}
			return err == nil, "", err
		})
		if err != nil {
			return err
		}
		return begin(ctx)
	}
	return s
}

// lookAround ends the wait once the machine has been alone in Talos' discovery for a while. A machine that has just
// started lists only itself at first; what the discovery service has of the others follows a moment later.
func lookAround(ctx context.Context, n *rolling.Node, gone []string, listed *time.Time) (bool, string, error) {
	members, err := n.Talos.Members(ctx)
	if err == nil {
		err = requireAlone(ctx, n, members, gone)
	}
	if err != nil {
		return false, "", err
	}
	if !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Nodename == n.Plan.Node }) {
		*listed = time.Time{}
		off, err := discoveryOff(ctx, n)
		return off, "Talos' discovery does not list it yet", err
	}
	if listed.IsZero() {
		*listed = time.Now()
	}
	return time.Since(*listed) >= n.Timing.Settle, "alone in Talos' discovery, settling", nil
}

// requireAlone ends the wait with a refusal if Talos' discovery knows another machine of a new cluster, or another
// control plane of a rebuilt one. Discovery knows a machine for half an hour after it is gone.
func requireAlone(ctx context.Context, n *rolling.Node, members []cluster.Member, gone []string) error {
	for _, m := range members {
		if m.Nodename == n.Plan.Node || n.Plan.Rebuild != "" && !m.ControlPlane {
			continue
		}
		if slices.Contains(gone, m.Nodename) {
			if err := requireSilent(ctx, n, m); err != nil {
				return wait.Stop(err)
			}
			continue
		}
		return wait.Stop(fault.WithHint(fault.EtcdUnhealthy.Refusedf("Talos' discovery knows another machine of this cluster, %s: etcd was not begun on %s", m.Nodename, n.Plan.Node),
			"if that cluster lives, its secrets must not be used for another one; if it is gone, its entry is too, half an hour after its machine: then run the same command again"))
	}
	return nil
}

func discoveryOff(ctx context.Context, n *rolling.Node) (bool, error) {
	text, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return false, err
	}
	docs, err := config.Parse(text)
	return err == nil && !docs.Discovers(), err
}

func requireSilent(ctx context.Context, n *rolling.Node, m cluster.Member) error {
	for _, addr := range m.Addresses {
		who, err := answers(ctx, n, addr)
		if err != nil {
			return err
		}
		if strings.EqualFold(who.Nodename, m.Nodename) {
			return fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s still answers at %s, with UUID %s: etcd was not begun on %s", m.Nodename, addr, who.UUID, n.Plan.Node),
				"there would be two etcds: switch that machine off, then run the same command again")
		}
	}
	return nil
}

// answers returns the configured machine that answers at an address; the zero value: there is none.
func answers(ctx context.Context, n *rolling.Node, addr netip.Addr) (who cluster.MachineIdentity, err error) {
	asking, cancel := context.WithTimeout(ctx, exchange.LookAround)
	defer cancel()
	if who, err = cluster.ReadIdentity(asking, n.Talos, addr); err != nil {
		return cluster.MachineIdentity{}, ctx.Err()
	}
	return who, nil
}

// rememberLost returns what is remembered of a control plane whose cluster is broken: its VM. Neither its machine
// nor Kubernetes needs to answer.
func rememberLost(ctx context.Context, n *rolling.Node) (parking.Memory, error) {
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	if vm.UUID() != n.Plan.UUID || vm.Host != n.Plan.Host {
		return parking.Memory{}, fault.WithHint(fault.PlanMoved.Refusedf("%s is no longer as it was when the plan was made", vm), "run the same command again, which looks again")
	}
	mem := parking.Memory{VM: vm, DiskSerial: exchange.DiskSerial(n.Run, n.Plan.Node), ControlPlane: true, EtcdKept: true}
	if mem.HA, err = n.Proxmox.HAResource(ctx, vm.ID); err != nil {
		return parking.Memory{}, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if mem.VM.Pool, err = n.Proxmox.Pool(ctx, vm.ID); err != nil {
		return parking.Memory{}, err
	}
	if system, err := cluster.ParseDisk(n.Want.SystemDisk, vm.Config[n.Want.SystemDisk]); err == nil && system.Owner == vm.ID {
		mem.SystemKey = system.Key
		mem.Old = parking.KeptDisk{Run: n.Run, Slot: system.Key, Options: cluster.OptionString(system)}
	}
	return mem, nil
}

// forgetGone deletes the Node that a restored Kubernetes still has of a control plane that is about to be
// recreated. It refuses unless the machine of that Node is gone.
func forgetGone(n *rolling.Node) step.Step {
	return rolling.DeleteNode(n, "delete the old Node "+n.Plan.Node,
		func(ctx context.Context, k cluster.KubeNode) error { return requireGone(ctx, n, k) },
		func(k cluster.KubeNode) bool { return n.Plan.UUID != "" && k.UUID == n.Plan.UUID })
}

func requireGone(ctx context.Context, n *rolling.Node, k cluster.KubeNode) error {
	vms, err := n.Proxmox.VMs(ctx)
	if err != nil {
		return fmt.Errorf("look for the VM of node %s: %w", k.Name, err)
	}
	for _, vm := range vms {
		if vm.UUID() == k.UUID {
			return fault.WithHint(fault.PlanMoved.Refusedf("%s is the VM of node %s, which was to be made again", vm, k.Name), "run the same command again, which looks again")
		}
	}
	for _, addr := range k.Addresses {
		if who, err := answers(ctx, n, addr); err != nil || who.UUID != "" && strings.EqualFold(who.UUID, k.UUID) {
			return errors.Join(err, fault.WithHint(fault.UUIDMismatch.Refusedf("the machine of the old Node %s answers at %s, and no VM has its UUID %s", k.Name, addr, k.UUID), "switch it off, then run the same command again"))
		}
	}
	return nil
}
