package planning

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// forRollback plans to boot the named nodes from their previous system disks; without names, all nodes that can. If
// that is not possible, the way back is a roll to the previous lock; each refusal says so.
func forRollback(ctx context.Context, clusterName string, wanted []cluster.Wanted, o observe.Observation, talos cluster.TalosReader, m cluster.Maintenance, p Policy) (Plan, error) {
	plan := Plan{Cluster: clusterName, MaxUnavailable: 1, PerHost: 1, ControlPlanes: o.ControlPlanes(), Heed: p.Heed(wanted)}
	for i, w := range wanted {
		f := o.Found[i]
		switch err := fault.ParkedHalf.Refusedf("node %s: an earlier run is not finished", w.Name); {
		case f.Open():
			return Plan{}, fault.WithHint(err, "recast roll finishes it, recast undo %s cancels it", w.Name)
		case f.Unfinished():
			return Plan{}, fault.WithHint(err, "recast roll finishes its upgrade in place")
		}
		if !p.Selects(w.Name) {
			continue
		}
		n := NodePlan{Node: w.Name, Role: cluster.Worker, Addr: f.Addr, Wanted: w, Found: f, EtcdKept: true}
		if f.VM != nil {
			n.VMID, n.Host, n.UUID, n.Digest = f.VM.ID, f.VM.Host, f.VM.UUID(), f.VM.Digest
		}
		if err := planRollback(ctx, &n, o, talos, m, p); err != nil {
			return Plan{}, fmt.Errorf("node %s: %w", w.Name, err)
		}
		if n.Strategy == "" && len(p.Only) == 0 {
			n.Refused = nil // this node was not named
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	refuseControlled(&plan)
	heedOwnPod(&plan, o)
	heedKubeSpan(&plan, o)
	noteInitiators(&plan)
	plan.Order(p)
	plan.Arrange()
	plan.AwaitOthers(o)
	heedStorage(&plan, o)
	worldOf{&plan, o}.ceph()
	return plan, nil
}

func planRollback(ctx context.Context, n *NodePlan, o observe.Observation, talos cluster.TalosReader, m cluster.Maintenance, p Policy) error {
	kept, on, ok := n.Found.LastKept()
	switch {
	case n.Found.Away:
		PlanAway(n, o.Away)
		return nil
	case !ok:
		n.Why = "no earlier system disk of it is parked"
		n.Refused = []string{n.Why + ": " + cluster.PreviousLock}
		return nil
	case n.Found.Machine == nil || n.Found.Node == nil:
		n.Why = "it could not be read"
		why := errors.Join(n.Found.Errs...)
		if why == nil {
			why = errors.New("there is no Node of that name in Kubernetes")
		}
		n.Refused = []string{n.Why + ": " + why.Error()}
		if n.Found.Blank != nil {
			n.Refused[0] += ": recast roll gives it its configuration back"
		}
		return nil
	}
	if why := n.Found.Pause(); why != "" {
		n.Paused, n.Why = why, "paused: "+why
		n.Refused = []string{n.Why + ": " + cluster.Unpause(n.Node)}
		return nil
	}
	machine := *n.Found.Machine
	if twice := (strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: machine, Found: n.Found, Observation: o}).Doubled(); len(twice) > 0 {
		n.Strategy, n.Restore, n.Why, n.Refused = cluster.Rollback, &kept, "a volume of it stands in two slots", cluster.Texts(twice)
		return nil
	}
	n.Strategy, n.Restore = cluster.Rollback, &kept
	n.Why = fmt.Sprintf("boots the system disk that run %s replaced: Talos %s, lock %s", kept.Run, words.OrNone(kept.Talos), words.OrNone(words.Short(kept.Build)))
	n.Estimate(o.Took)
	config, err := talos.MachineConfig(ctx, n.Addr)
	if err != nil {
		return fmt.Errorf("read machine configuration: %w", err)
	}
	hash, err := ConfigHash(m, config)
	if err != nil {
		return err
	}
	refuse := func(format string, args ...any) {
		n.Refused = append(n.Refused, fmt.Sprintf(format, args...)+": "+cluster.PreviousLock)
	}
	if hash != kept.Config {
		refuse("its machine configuration has changed since")
	}
	if k := n.Found.Node.KubeletVersion; k != kept.Kubernetes {
		refuse("its Kubernetes version was %s and is %s", words.OrNone(kept.Kubernetes), words.OrNone(k))
	}
	if machine.Secured() && !o.Signed(n.Wanted, kept) {
		refuse("its firmware boots only what is signed (Secure Boot), and whether that system is can't be determined from the locks that are here")
	}
	if machine.ControlPlane {
		if err := planRollbackEtcd(ctx, n, o, talos, p, kept); err != nil {
			return err
		}
	}
	if elsewhere := n.Found.KeptElsewhere(kept, on); elsewhere != "" {
		n.Refused = append(n.Refused, elsewhere)
	}
	system, err := cluster.ProveSystemDisk(*n.Found.VM, machine, n.Wanted.SystemDisk)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
	}
	if system.Key != kept.Slot {
		refuse("its system disk was %s and is %s", words.OrNone(kept.Slot), words.OrNone(system.Key))
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: machine, Found: n.Found, Observation: o, System: system, SystemErr: err}
	c.Disks, c.DisksErr = c.VM.Disks()
	n.Refused = append(n.Refused, slices.Concat(cluster.Texts(c.Occupied()), c.Untellable(), cluster.Texts(c.Entangled()), cluster.Texts(c.Replicated(cluster.Reimage)), c.Immovable(cluster.Reimage), o.Hidden(c.VM))...)
	n.AskLosses()
	n.Add(system, true)
	return nil
}

// planRollbackEtcd lets a control plane go back only if its old disk holds no etcd data, or its
// member had left before: data of a removed member never joins again.
func planRollbackEtcd(ctx context.Context, n *NodePlan, o observe.Observation, talos cluster.TalosReader, p Policy, kept parking.KeptDisk) error {
	n.Role = cluster.ControlPlane
	onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
	if err != nil {
		return err
	}
	n.EtcdKept = !onSystem
	if kept.EtcdOn && !kept.Left {
		n.Refused = append(n.Refused, "its old system disk holds the data of an etcd member that did not leave before it was replaced: it would never join again")
	}
	status, err := talos.EtcdStatus(ctx, n.Addr)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if minor(status.Version) != minor(kept.Etcd) {
		n.Refused = append(n.Refused, fmt.Sprintf("its etcd was %s and is %s: going back across a minor version is not safe", words.OrNone(kept.Etcd), words.OrNone(status.Version)))
	}
	refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), onSystem, n.Found.Machine.TypeInit, cluster.Reimage, p.AcceptOutage)
	n.Refused = append(n.Refused, refused...)
	n.Notes = append(n.Notes, warn...)
	return nil
}

// ConfigHash identifies a machine configuration without revealing anything in it. It ignores what recast itself
// sets, which differs from one system disk to the next.
func ConfigHash(m cluster.Maintenance, config cluster.Secret) (string, error) {
	patched, err := m.PatchConfig(config, cluster.NeutralPatch)
	if err != nil {
		return "", fmt.Errorf("compare machine configurations: %w", err)
	}
	sum := sha256.Sum256(patched)
	return hex.EncodeToString(sum[:16]), nil
}

// minor cuts "3.6.4" to "3.6".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}
