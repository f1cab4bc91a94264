package pipeline

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// known checks, before anybody looks for a claim, what can be known without one: the lock and what it belongs to, the
// names of nodes, and whether a saved plan is of these files. A mistake in them must not cost another run its claim.
func (w *work) known() (schematics.Lock, error) {
	lock, err := w.Lock()
	if err != nil {
		return lock, err
	}
	wanted := w.Wanted(lock)
	if err := w.o.Policy.Check(wanted); err != nil {
		return lock, err
	}
	if w.node != "" {
		if err := (planning.Policy{Only: []string{w.node}}).Check(wanted); err != nil {
			return lock, fault.WithHint(err, "a node stays in recast.yaml until it is removed")
		}
	}
	if w.o.Saved != nil {
		if _, differs, err := w.ofOtherFiles(lock, *w.o.Saved); differs {
			return lock, err
		}
	}
	_, err = w.History(lock)
	return lock, err
}

// requireRun refuses an --run that names no run, by what is parked. While VMs can't be read, the plan decides.
func (w *work) requireRun(vms []cluster.VM, away *cluster.HostsAway) error {
	if w.o.Undo.Run == "" || away != nil {
		return nil
	}
	parkings, err := parking.Readable(vms, w.Config.Cluster)
	if err != nil {
		return err
	}
	return w.undone().CheckRun(parkings)
}

// requireWayBack refuses nodes that were named to go back and have nothing parked, before a claim is watched for them.
func (w *work) requireWayBack(vms []cluster.VM, away *cluster.HostsAway) error {
	if len(w.back) == 0 || away != nil {
		return nil
	}
	parkings, err := parking.Readable(vms, w.Config.Cluster)
	for _, node := range w.back {
		there := func(p parking.Parking) bool {
			return p.Record.Node == node && (p.Record.Open || slices.ContainsFunc(p.Record.Kept, func(k parking.KeptDisk) bool { return !k.GivenUp && !k.Removed }))
		}
		if err == nil && !slices.ContainsFunc(parkings, there) {
			err = fault.WithHint(fault.NoWayBack.Refusedf("node %s: no replacement of it is unfinished, and no earlier system disk of it is parked", node), "recast status says what is unfinished")
		}
	}
	return err
}

// requireReady checks the rest before a claim is watched that may be another run's: that somebody can be asked, that
// servers take the credentials, that there is a node with these labels, and the machine configurations of the nodes that
// are meant. Where nobody holds the claim, the plan shows the same.
func (w *work) requireReady(ctx context.Context) error {
	if w.o.MayAsk != nil {
		if err := w.o.MayAsk(); err != nil {
			return err
		}
	}
	if w.o.Policy.Bootstrap == "" && !w.restores { // else there may be no Kubernetes to ask
		if err := w.requireAnswers(ctx); err != nil {
			return err
		}
	}
	if w.machines.MachineConfig == nil || !slices.Contains([]string{"roll", "bootstrap", "rebuild"}, w.command) {
		return nil // the ways back and the rest need no files
	}
	for _, name := range nodeNames(w.Config) {
		if !w.o.Policy.Selects(name) {
			continue
		}
		if _, _, err := w.machines.MachineConfig(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// requireAnswers refuses credentials that Kubernetes or Talos refuse, and labels that no node has. Servers that do not
// answer say nothing: the other run may have taken them down.
func (w *work) requireAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askKubernetes)
	defer cancel()
	nodes, errKube := w.machines.Kube.Nodes(ctx)
	_, errTalos := w.machines.Talos.Members(ctx)
	for _, err := range []error{errKube, errTalos} {
		if slices.Contains(fault.Codes(err), fault.Credentials) || slices.Contains(fault.Codes(err), fault.TLS) {
			return err
		}
	}
	if errKube != nil {
		return nil //nolint:nilerr // see above
	}
	names := nodeNames(w.Config)
	return w.o.Policy.CheckLabels(slices.DeleteFunc(nodes, func(n cluster.KubeNode) bool { return !slices.Contains(names, n.Name) || !w.o.Policy.Selects(n.Name) }))
}

// ofOtherFiles says whether a saved plan is of another recast.yaml or lock, and returns what following it comes to.
func (w *work) ofOtherFiles(lock schematics.Lock, saved planning.Plan) (planning.Plan, bool, error) {
	is := w.Config.Hash()
	if saved.Config == is && saved.Lock == lock.Pinned() && saved.Cluster == w.Config.Cluster {
		return planning.Plan{}, false, nil
	}
	now := planning.Plan{Cluster: w.Config.Cluster, Lock: lock.Pinned(), Config: is}
	plan, err := now.Follow(saved, false) // another configuration can't tell which nodes exist
	return plan, true, err
}
