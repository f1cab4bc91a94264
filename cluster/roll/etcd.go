package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// etcdMember is the membership of a control plane in etcd.
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

// leaveAgain makes a node leave etcd again if it was reset while it shut down and has rejoined.
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

// learnerStill is what lacks returns for a member that does not vote yet.
const learnerStill = "its etcd member is a learner still"

// lacks names what the node's own member still lacks after the roll.
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
		return "it is no member of etcd yet", nil
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

// remember notes which member the node is, to recognize it later.
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

// etcdMemory is what etcdMember.lacks needs to judge a machine that keeps its disks.
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

func (n *etcdMember) leaveStep() step.Step {
	return step.Step{
		ID: "leave-etcd", Code: fault.EtcdUnhealthy, Title: "leave etcd: its data goes with the system disk",
		Risk: step.Destructive, Skip: n.left, Do: n.leave,
	}
}
