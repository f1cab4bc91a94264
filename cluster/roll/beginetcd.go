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

// discoveryOff says whether the machine does not take part in Talos' discovery.
func discoveryOff(ctx context.Context, n *rolling.Node) (bool, error) {
	text, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return false, err
	}
	docs, err := config.Parse(text)
	return err == nil && !docs.Discovers(), err
}

// requireSilent refuses if a machine that discovery lists, but that should be gone, answers.
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

// requireGone refuses if a VM has the UUID of a Node, or its machine answers.
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
