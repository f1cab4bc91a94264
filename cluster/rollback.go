package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// previousLock is the way back that needs no kept disk. A lock is refused unless it is
// that of recast.yaml and of the schematics beside it.
const previousLock = "put the previous lock back, with what it is of (git checkout COMMIT -- recast.yaml recast.lock schematics/), and recast roll"

// configHash identifies a machine configuration without telling anything of it.
// What recast itself sets is left out: it differs from one system disk to the next.
func configHash(m Maintenance, config Secret) (string, error) {
	patched, err := m.PatchConfig(config, neutral)
	if err != nil {
		return "", fmt.Errorf("compare machine configurations: %w", err)
	}
	sum := sha256.Sum256(patched)
	return hex.EncodeToString(sum[:16]), nil
}

// lastKept is the system disk that a node had before its present one, and the
// parking VM that it is on, wherever its VM was then.
func (f *Found) lastKept() (last KeptDisk, on VM, found bool) {
	for _, p := range f.parkings() { // the one on the VM's host first
		for _, k := range slices.Backward(p.Record.Kept) {
			if k.GivenUp {
				continue
			}
			if !found || k.Nth > last.Nth {
				last, on, found = k, p.VM, true
			}
			break
		}
	}
	return last, on, found
}

// keptElsewhere says where the node's last system disk is if that is on another
// host than its VM, and what brings them together.
func (f *Found) keptElsewhere(kept KeptDisk, on VM) string {
	if on.Host == f.VM.Host {
		return ""
	}
	together := fmt.Sprintf("on %s: %s", on.Host, migrate(on, f.VM.Host))
	if f.Parking != nil { // a host has room for one parking VM of a node
		together = fmt.Sprintf("on %s: %s", f.VM.Host, migrate(*f.VM, on.Host))
	}
	return fmt.Sprintf("the system disk that run %s replaced is %s of %s, and %s was moved since: %s brings them together; or %s",
		kept.Run, kept.Key, on, *f.VM, together, previousLock)
}

// PlanRollback plans to boot each of the nodes (all that can be, if none is
// named) from the system disk that it had before. Where that is not possible,
// the way back is a roll to the previous lock; each refusal says so.
func PlanRollback(ctx context.Context, cluster string, wanted []Wanted, o Observation, talos Talos, m Maintenance, p Policy) (Plan, error) {
	plan := Plan{Cluster: cluster, MaxUnavailable: 1, PerHost: 1, controlPlanes: o.controlPlanes(), heed: p.heed(wanted)}
	if err := p.check(wanted); err != nil {
		return Plan{}, err
	}
	for i, w := range wanted {
		f := o.Found[i]
		switch err := fault.ParkedHalf.Refusedf("node %s: an earlier run is not finished", w.Name); {
		case f.Open():
			return Plan{}, fault.WithHint(err, "recast roll finishes it, recast recover %s gives it up", w.Name)
		case f.Unfinished():
			return Plan{}, fault.WithHint(err, "recast roll finishes its upgrade in place")
		}
		if !p.selects(w.Name) {
			continue
		}
		n := NodePlan{Node: w.Name, Role: Worker, Addr: f.Addr, wanted: w, found: f, etcdKept: true}
		if f.VM != nil {
			n.VMID, n.Host, n.UUID, n.Digest = f.VM.ID, f.VM.Host, f.VM.UUID(), f.VM.Digest
		}
		if err := planRollback(ctx, &n, o, talos, m, p); err != nil {
			return Plan{}, fmt.Errorf("node %s: %w", w.Name, err)
		}
		if n.Strategy == "" && len(p.Only) == 0 {
			n.Refused = nil // nobody asked for this one
		}
		plan.Nodes = append(plan.Nodes, n)
	}
	plan.order(p)
	plan.arrange()
	plan.awaitOthers(o)
	return plan, nil
}

func planRollback(ctx context.Context, n *NodePlan, o Observation, talos Talos, m Maintenance, p Policy) error {
	kept, on, ok := n.found.lastKept()
	switch {
	case n.found.away:
		planAway(n, o.Away)
		return nil
	case !ok:
		n.Why = "no earlier system disk of it is parked"
		n.Refused = []string{n.Why + ": " + previousLock}
		return nil
	case n.found.Machine == nil || n.found.Node == nil:
		n.Why = "it could not be read"
		n.Refused = []string{"it could not be read: " + errors.Join(n.found.Errs...).Error()}
		if n.found.Blank != nil {
			n.Refused[0] += ": recast roll gives it its configuration back"
		}
		return nil
	}
	if why := n.found.pause(); why != "" {
		n.Paused, n.Why = why, "paused: "+why
		n.Refused = []string{n.Why + ": " + unpause(n.Node)}
		return nil
	}
	machine := *n.found.Machine
	n.Strategy, n.restore = Rollback, &kept
	n.Why = fmt.Sprintf("boots the system disk that run %s replaced: Talos %s, lock %s", kept.Run, words.OrNone(kept.Talos), words.OrNone(words.Short(kept.Build)))
	n.estimate(o.Took)
	config, err := talos.MachineConfig(ctx, n.Addr)
	if err != nil {
		return fmt.Errorf("read machine configuration: %w", err)
	}
	hash, err := configHash(m, config)
	if err != nil {
		return err
	}
	refuse := func(format string, args ...any) {
		n.Refused = append(n.Refused, fmt.Sprintf(format, args...)+": "+previousLock)
	}
	if hash != kept.Config {
		refuse("its machine configuration has changed since")
	}
	if k := n.found.Node.KubeletVersion; k != kept.Kubernetes {
		refuse("its Kubernetes version was %s and is %s", words.OrNone(kept.Kubernetes), words.OrNone(k))
	}
	if machine.secured() && !o.signed(n.wanted, kept) {
		refuse("its firmware boots only what is signed (Secure Boot), and whether that system is can't be told from the locks that are here")
	}
	if machine.ControlPlane {
		if err := planRollbackEtcd(ctx, n, o, talos, p, kept); err != nil {
			return err
		}
	}
	if elsewhere := n.found.keptElsewhere(kept, on); elsewhere != "" {
		n.Refused = append(n.Refused, elsewhere)
	}
	system, err := ProveSystemDisk(*n.found.VM, machine, n.wanted.SystemDisk)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
	}
	if system.Key != kept.Slot {
		refuse("its system disk was %s and is %s", words.OrNone(kept.Slot), words.OrNone(system.Key))
	}
	c := candidate{Wanted: n.wanted, vm: *n.found.VM, m: machine, found: n.found, world: o, system: system, systemErr: err}
	c.disks, c.disksErr = c.vm.Disks()
	n.Refused = append(n.Refused, slices.Concat(texts(c.occupied()), c.untellable(), texts(c.entangled()), texts(c.replicated(Reimage)), c.immovable(Reimage), o.hidden(c.vm))...)
	n.askLosses()
	n.add(system, true)
	return nil
}

// planRollbackEtcd lets a control plane go back only where its old disk holds no
// data of etcd, because it had left before: data of a removed member never joins again.
func planRollbackEtcd(ctx context.Context, n *NodePlan, o Observation, talos Talos, p Policy, kept KeptDisk) error {
	n.Role = ControlPlane
	onSystem, err := etcdOnSystemDisk(*n.found.Machine)
	if err != nil {
		return err
	}
	n.etcdKept = !onSystem
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
	refused, warn := etcdRules(len(o.controlPlanes()), onSystem, Reimage, p.AcceptOutage)
	n.Refused = append(n.Refused, refused...)
	n.Notes = append(n.Notes, warn...)
	return nil
}

// minor cuts "3.6.4" to "3.6".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// rolledBackTo is the goal of a rollback: the kept disk is parked no more.
func (n *nodeRoll) rolledBackTo(rec Record) string {
	parked := slices.ContainsFunc(rec.Kept, func(k KeptDisk) bool { return k.Key == n.plan.restore.Key && k.Run == n.plan.restore.Run })
	if parked {
		return ""
	}
	n.out.remove(n.plan.Node)
	return "it runs its earlier system again"
}
