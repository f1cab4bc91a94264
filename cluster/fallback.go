package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// planFallback decides, while the node still runs, whether its system disk may
// be replaced should it not come back from an in-place upgrade: Talos' own
// rollback can't be relied upon, another system disk can. It would get the build
// that it runs now.
func planFallback(n *NodePlan, o Observation, p Policy, system Disk, systemErr error) {
	if p.BootFailure != ReimageOnBootFailure || n.Strategy != InPlace || len(n.Refused) > 0 {
		return
	}
	n.isWayBack = true
	w := n.wanted
	w.Strategy = Reimage
	against := append(decide(w, n.found, o, system, systemErr).Refused, o.hidden(*n.found.VM)...)
	if n.Role == ControlPlane {
		onSystem, err := etcdOnSystemDisk(*n.found.Machine)
		refused, _ := etcdRules(len(o.controlPlanes()), onSystem, Reimage, p.AcceptOutage)
		if err != nil {
			refused = append(refused, err.Error())
		}
		n.fallbackKept = !onSystem
		against = append(against, refused...)
	} else {
		n.fallbackKept = true
	}
	// The schematic tells more than the lock's hash, which schematics with the same extensions share; what an image is for it does not tell.
	m := *n.found.Machine
	for _, b := range o.PastBuilds {
		if m.Schematic.LockHash() != "" && b.SchematicID == m.Schematic.ID && b.TalosVersion == m.TalosVersion && len(diffTarget(b, m)) == 0 && b.Installer != "" {
			n.previous = &b
		}
	}
	if n.previous != nil {
		_, o := blankAddress(n.found.Addr, *n.found.VM, m, *n.previous)
		if o.Text != "" && !slices.Contains(against, o.Text) {
			against = append(against, o.Text)
		}
	}
	if n.previous == nil {
		against = append(against, "the build that it runs is in no past lock that is here")
	}
	if d := o.newDisk(n.wanted, n.found.VM.Host, system); d != nil {
		for _, use := range SpaceUses([]NewDisk{*d}, o.Rooms) {
			against = append(against, slices.DeleteFunc(use.Lacks(1), func(lack string) bool { return lack == "" })...)
		}
	}
	if len(against) > 0 {
		n.previous = nil
		n.Notes = append(n.Notes, "should it not come back, a reimage is not possible: "+strings.Join(against, "; "))
		return
	}
	n.Notes = append(n.Notes, fmt.Sprintf("should it not come back within the boot deadline, its system disk is parked and build %s, which it runs now, is installed on a blank one", words.Short(n.previous.ID)))
	n.add(system, true)
}

// rememberForFallback is what a reimage will need, read while the machine can still be asked.
func (n *nodeRoll) rememberForFallback(ctx context.Context) error {
	kubernetes, err := n.runsKubernetes(ctx)
	if err != nil {
		return err
	}
	sum, err := n.rememberMachineConfig(ctx, kubernetes)
	if err != nil || n.plan.previous == nil {
		return err
	}
	mem, err := n.fallback().observeMemory(ctx)
	if err != nil {
		return err
	}
	mem.ConfigSum = sum
	if err := n.Journal.Put(n.key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// fallback is the same node on its way back to the build that it had.
func (n *nodeRoll) fallback() *nodeRoll {
	f := &nodeRoll{Roller: n.Roller, plan: n.plan, want: n.want, path: n.path + "/fallback"}
	f.plan.Strategy, f.plan.etcdKept, f.plan.Resume = Reimage, n.plan.fallbackKept, true
	f.want.Build = *n.plan.previous
	f.plan.wanted = f.want
	return f
}

// fallbackStep reimages a node that did not come back, and then fails: the node
// serves again, but it is not what was wanted.
func (n *nodeRoll) fallbackStep() step.Step {
	return step.Step{
		ID: "fallback", Title: "install the build that it had on a blank system disk", Risk: step.Destructive,
		Skip: func(context.Context) (string, error) {
			if n.gaveUp == nil {
				return "it came back", nil
			}
			return "", nil
		},
		Steps: func(context.Context) ([]step.Step, error) {
			f := n.fallback()
			return append(append([]step.Step{
				{ID: "gate", Title: "check that it can be reimaged", Do: f.gate},
				{ID: "remember", Title: "open the record of the reimage", Skip: f.remembered, Do: func(ctx context.Context) error {
					mem, err := f.memory(ctx)
					if err != nil {
						return err
					}
					return f.openRecord(ctx, mem)
				}},
				{ID: "stop", Title: fmt.Sprintf("stop VM %d", n.plan.VMID), Risk: step.Disruptive, Skip: f.stopped, Do: f.stop},
			}, f.replacing().takeDown(Reimage)...),
				f.bringUp(),
				step.Step{ID: "report", Title: "note that the build does not boot here", Do: func(ctx context.Context) error {
					if err := n.Kube.SetFailedBuild(ctx, n.plan.Node, n.want.Build.ID); err != nil {
						return fmt.Errorf("mark node %s: %w", n.plan.Node, err)
					}
					return fault.WithHint(fault.UpgradeStuck.Errorf("%w; it was reimaged and runs build %s again", n.gaveUp, words.Short(f.want.Build.ID)),
						"the disk with the system that does not boot is parked: recast status shows it")
				}},
			), nil
		},
	}
}
