package cluster

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

const (
	// observeLimit bounds how many VMs or hosts a server of the cluster is asked about at once.
	observeLimit = 8
	// machinesAtOnce bounds how many machines are read at once: each is a server of its own.
	machinesAtOnce = 64
)

// ObserveDrift reads what Diff compares, one Found per wanted node in their
// order, and fails where Observe does. What would be lost with a VM or a node,
// and where there is room, is not asked: nothing can be planned with it.
func ObserveDrift(ctx context.Context, src Sources, wanted []Wanted) ([]Found, error) {
	o, err := observeMatched(ctx, src, wanted)
	if err != nil {
		return nil, err
	}
	return o.Found, observeMachines(ctx, src, src.Talos.System, wanted, o.Found)
}

// observeMachines reads the machine of each node. One that does not answer is no error.
func observeMachines(ctx context.Context, src Sources, read machineRead, wanted []Wanted, found []Found) error {
	g := errgroup.Group{}
	g.SetLimit(machinesAtOnce)
	for i := range found {
		if found[i].away {
			continue // whose disks its machine has can't be told
		}
		g.Go(func() error { return observeMachine(ctx, src, read, wanted[i], &found[i]) })
	}
	return g.Wait()
}

func observeMachine(ctx context.Context, src Sources, read machineRead, w Wanted, f *Found) (err error) {
	readMachine(ctx, src, read, w, f)
	if !f.Open() && f.Blank == nil || src.ConfigKnown == nil {
		return nil
	}
	var rec Record
	if f.Open() {
		rec = f.Parking.Record
	}
	f.configIn, err = src.ConfigKnown(f.Name, rec)
	f.ConfigKnown = f.configIn != ConfigNowhere
	if errors.Is(err, ErrConfigDamaged) {
		f.ConfigDamaged, err = err, nil
	}
	return err
}

// observeTies reads what decides about what would be lost with each node: not to
// know it is an error.
func observeTies(ctx context.Context, src Sources, found []Found) error {
	var nodes []*Found
	var names []string
	for i := range found {
		if f := &found[i]; !f.away && f.VM != nil && f.Node != nil {
			nodes, names = append(nodes, f), append(names, f.Name)
		}
	}
	var local map[string][]LocalData
	g := errgroup.Group{}
	g.SetLimit(observeLimit)
	g.Go(func() (err error) {
		local, err = src.Kube.LocalData(ctx, names...)
		return err
	})
	for _, f := range nodes {
		g.Go(func() (err error) {
			f.Ties, err = src.Proxmox.Ties(ctx, *f.VM)
			return prefix("node "+f.Name, err)
		})
	}
	err := g.Wait()
	for _, f := range nodes {
		f.Local = local[f.Name]
	}
	return err
}
