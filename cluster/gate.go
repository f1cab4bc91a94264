package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// ownTasksTimeout bounds how long work that Proxmox still does for an earlier
// process of ours is waited for: the largest, an upload's copy, takes minutes.
const ownTasksTimeout = 10 * time.Minute

// AwaitOwnTasks waits until Proxmox has ended what an earlier process of ours,
// killed since, had asked for about the VMs that of accepts; see TouchedBy. Before
// that the world would change under our eyes.
func AwaitOwnTasks(ctx context.Context, px Tasks, of func(VMID) bool, poll time.Duration, say func(string)) error {
	w := wait.For{Name: "tasks of an earlier recast to end", Every: poll, Timeout: ownTasksTimeout, Seen: say}
	return awaitTasks(ctx, w, func(ctx context.Context) ([]string, error) { return px.OwnTasks(ctx, of) })
}

// TouchedBy says of which VMs an earlier run of this cluster may have asked
// Proxmox for something: those with numbers of recast's own, the nodes' by number or
// name, and all that a record of the cluster names. Another cluster's run may use
// the same token at the same time, and its tasks are none of ours.
func TouchedBy(vms []VM, cluster string, wanted []Wanted, own func(VMID) bool) (func(VMID) bool, error) {
	ids := map[VMID]bool{}
	for _, w := range wanted {
		ids[w.VMID], ids[w.Holder] = true, true
		for _, vm := range vms {
			if vm.Name == w.Name {
				ids[vm.ID] = true
			}
		}
	}
	parkings, err := Parkings(vms, cluster)
	for _, p := range parkings {
		ids[p.VM.ID], ids[p.Record.VMID] = true, true
		for _, d := range p.Record.Disks {
			ids[d.Holder] = true
		}
	}
	return func(id VMID) bool { return ids[id] || own(id) }, err
}

func awaitTasks(ctx context.Context, w wait.For, list func(context.Context) ([]string, error)) error {
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		running, err := list(ctx)
		return len(running) == 0, "running: " + strings.Join(running, ", "), wait.Stop(err)
	})
}

// gate is the last look before the node is taken out. Before it looks, it waits for
// what may still come; but for forgetting that, it only reads. From then on this
// roll counts the node as out.
func (n *nodeRoll) gate(ctx context.Context) error {
	if err := n.awaitLate(ctx); err != nil {
		return err
	}
	if err := errors.Join(n.requireUnpaused(ctx), n.look(ctx)); err != nil {
		return err
	}
	n.out.add(n.plan.Node)
	return nil
}

func (n *nodeRoll) look(ctx context.Context) error {
	var problems []error
	switch {
	case n.plan.Strategy == InPlace && (n.plan.Resume || n.plan.Drift.tidy()):
		return nil // it is out already, or is not taken out at all
	case n.plan.Strategy == Configure:
		return n.requireNameFree(ctx)
	case n.plan.Strategy != InPlace:
		problems = append(problems, RequireQuorum(ctx, n.Proxmox))
	}
	switch n.plan.Strategy {
	case PutBack:
		return errors.Join(append(problems, n.requireOldEtcd(ctx), n.requireNoLoss(ctx))...)
	case Recreate, Reimage:
		problems = append(problems, n.requireISO(ctx))
		if !n.plan.Resume {
			problems = append(problems, n.requireRoom(ctx))
		}
	}
	switch {
	case !slices.Contains(leavers, n.plan.Strategy):
	case n.plan.Resume:
		problems = append(problems, n.requireNoLossOff(ctx))
	default:
		problems = append(problems, n.requireReplaceable(ctx))
	}
	if !n.plan.Resume && n.plan.Strategy != InPlace {
		problems = append(problems, n.requireStorages(ctx))
	}
	if !n.plan.Resume {
		problems = append(problems, n.requireOneMachine(ctx), n.requireUnchanged(ctx), n.requireFallback(ctx), n.requireSoleOwner(ctx), n.requireOthersReady(ctx), n.requireEtcd(ctx))
	} else if m, err := n.Talos.Booted(ctx, n.plan.Addr); err == nil && n.isOldBoot(ctx, m) {
		problems = append(problems, n.requireEtcd(ctx)) // it still serves
	}
	return errors.Join(problems...)
}

func (n *nodeRoll) isOldBoot(ctx context.Context, m Machine) bool {
	mem, err := n.memory(ctx)
	return err == nil && m.BootID == mem.BootID
}

// requireFallback refuses an upgrade in place whose way back, as the plan shows
// it, is not there: the ISO of the build that the node runs.
func (n *nodeRoll) requireFallback(ctx context.Context) error {
	if n.plan.Strategy != InPlace || n.plan.previous == nil {
		return nil
	}
	f := n.fallback()
	if err := f.requireNoLoss(ctx); err != nil { // asked again where it can be, before the disk leaves
		return fmt.Errorf("should %s not come back, it could not be reimaged: %w", n.plan.Node, err)
	}
	if err := f.requireISO(ctx); err != nil {
		return fault.WithHint(fault.Refusedf("should %s not come back, it could not be reimaged: %w", n.plan.Node, err),
			"recast publish with the previous recast.lock, and the recast.yaml and schematics that it is of, puts it there; roll.bootFailure: rollback does without")
	}
	return nil
}

func (n *nodeRoll) requireISO(ctx context.Context) error {
	_, err := n.isoVolume(ctx)
	return err
}

// isoVolume finds the boot ISO on the first of the configured storages that has it for this host.
func (n *nodeRoll) isoVolume(ctx context.Context) (string, error) {
	for _, storage := range n.want.ISOStorages {
		volid := storage + ":iso/" + n.want.Build.ISOName
		found, err := n.Proxmox.HasVolume(ctx, n.plan.Host, volid)
		if err != nil {
			return "", fmt.Errorf("look for %s on %s: %w", volid, n.plan.Host, err)
		}
		if found {
			return volid, nil
		}
	}
	return "", fault.WithHint(fault.ISODiffers.Refusedf("boot ISO %s is on none of %s as host %s sees them",
		n.want.Build.ISOName, strings.Join(n.want.ISOStorages, ", "), n.plan.Host), "recast publish")
}

// requireStorages asks each storage that has a disk of the VM for something: one
// that is out of reach is found before the VM is off, not when the disks are to be moved.
func (n *nodeRoll) requireStorages(ctx context.Context) error {
	disks, err := n.plan.found.VM.Disks()
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
		if _, err := n.Proxmox.OwnedVolumes(ctx, n.plan.Host, storage, n.plan.VMID); err != nil {
			problems = append(problems, fmt.Errorf("read storage %s, on which %s of VM %d is, before that is taken down: %w", storage, d.Key, n.plan.VMID, err))
		}
	}
	return errors.Join(problems...)
}

func (n *nodeRoll) requireUnchanged(ctx context.Context) error {
	vm, err := n.Proxmox.VMConfig(ctx, n.plan.VMID)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", n.plan.VMID, err)
	}
	if vm.Host != n.plan.Host {
		return n.movedSince(vm)
	}
	same := vm.Digest == n.plan.Digest
	if was := n.plan.found.VM; !same && was != nil && was.Digest == n.plan.Digest {
		if same, err = was.sameButPods(ctx, vm, n.Kube.PodVolumes); err != nil {
			return err
		}
	}
	if !same || vm.UUID() != n.plan.UUID {
		return fault.WithHint(fault.PlanMoved.Refusedf("%s is no longer as it was when the plan was made", vm), "run recast plan and look again")
	}
	return nil
}

func (n *nodeRoll) movedSince(vm VM) error {
	return fault.WithHint(fault.PlanMoved.Refusedf("%s was on %s when the plan was made", vm, n.plan.Host),
		"run recast plan and look again; whoever moved it, Proxmox HA perhaps, may not have finished")
}

// requireReplaceable looks again at what the VM's digest does not show, and what
// may have come since the plan was made: data that moved here when another node
// was drained, a backup that is due by now, a firewall rule.
func (n *nodeRoll) requireReplaceable(ctx context.Context) error {
	c := candidate{Wanted: n.plan.wanted, vm: *n.plan.found.VM, found: n.plan.found}
	var errTies, errLocal, errMachine error
	c.found.Ties, errTies = n.Proxmox.Ties(ctx, c.vm)
	k, errNode := n.Kube.Node(ctx, n.plan.Node)
	if errNode == nil {
		c.found.Local, errLocal = n.localData(ctx, k)
	}
	c.m, errMachine = n.Talos.Machine(ctx, n.plan.Addr)
	if err := errors.Join(errTies, errNode, errLocal, errMachine); err != nil {
		return fmt.Errorf("look again at %s: %w", n.plan.Node, err)
	}
	against := slices.Concat(texts(c.occupied()), texts(c.irreplaceable()))
	if n.plan.Strategy == Recreate {
		against = append(against, texts(c.tied())...)
	}
	if len(against) == 0 {
		return nil
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s became impossible for %s since the plan was made: %s",
		n.plan.Strategy, n.plan.Node, strings.Join(against, "; ")), "run recast plan and look again")
}

// requireSoleOwner refuses where somebody else would undo what the roll does.
func (n *nodeRoll) requireSoleOwner(ctx context.Context) error {
	owners, err := n.Kube.OtherOwners(ctx)
	if err != nil {
		return fmt.Errorf("look for other upgraders: %w", err)
	}
	if m := n.plan.found.Machine; m != nil {
		for _, arg := range m.Omni() {
			owners = append(owners, "Omni ("+arg+")")
		}
	}
	if len(owners) == 0 {
		return nil
	}
	return fault.WithHint(fault.GateClosed.Refusedf("%s is looked after by %s as well, which would undo this", n.plan.Node, strings.Join(owners, ", ")),
		"suspend or remove that first: two tools must not decide which version a node runs")
}

// outNodes are the nodes that this roll has out at the moment.
type outNodes struct {
	mu    sync.Mutex
	names map[string]bool
}

func (o *outNodes) add(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names == nil {
		o.names = map[string]bool{}
	}
	o.names[name] = true
}

func (o *outNodes) remove(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.names, name)
}

func (o *outNodes) has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.names[name]
}
