package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
)

// KnowPods marks which drives of the nodes' VMs are pods', as Kubernetes says.
func KnowPods(nodes []*Found) {
	for _, f := range nodes {
		if f.VM != nil {
			f.VM.Pods = f.VM.PodVolumes(f.handles)
		}
	}
}

func Matching(found []Found, of func(*Found) bool) (nodes []*Found) {
	for i := range found {
		if of(&found[i]) {
			nodes = append(nodes, &found[i])
		}
	}
	return nodes
}

// ObserveDrift reads what Diff compares, one Found per wanted node in their order, and fails like
// Observe. It does not read free space or what would be lost with a VM or node: its result is not
// for planning.
func ObserveDrift(ctx context.Context, src Sources, wanted []cluster.Wanted) (Observation, error) {
	o, err := observeMatched(ctx, src, wanted)
	if err != nil {
		return o, err
	}
	err = observeMachines(ctx, src, func(ctx context.Context, f *Found) (cluster.Machine, error) {
		m, err := cluster.ReadCompared(ctx, src.Talos, f.Addr)
		return m.Machine(), err
	}, wanted, o.Found)
	if err == nil {
		ObserveFiles(ctx, src, wanted, o.Found)
	}
	return o, err
}

// ReadData reads, with one call, which data is on one of the nodes only, and the volumes that storage systems keep
// on several.
func ReadData(ctx context.Context, kube cluster.VolumeReader, nodes []*Found) (systems []replica.System, err error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	local, systems, err := kube.NodeData(ctx, kubeNodes(nodes)...)
	setLocalData(nodes, local)
	return systems, err
}

func kubeNodes(nodes []*Found) []cluster.KubeNode {
	known := make([]cluster.KubeNode, len(nodes))
	for i, f := range nodes {
		known[i] = *f.Node
	}
	return known
}

func setLocalData(nodes []*Found, local map[string][]cluster.LocalData) {
	var handles []string
	var served []cluster.LocalData
	for _, v := range local[""] {
		if v.Access != "" {
			served = append(served, v)
			continue
		}
		handles = append(handles, v.Handle)
	}
	for _, f := range nodes {
		f.Local, f.handles, f.Served = local[f.Name], handles, served
	}
}

// ReadTies reads what Proxmox keeps for the VMs of nodes, with one call; the errors are in the
// order of the nodes.
func ReadTies(ctx context.Context, px cluster.TieReader, nodes []*Found) []error {
	if len(nodes) == 0 {
		return nil
	}
	vms, errs := make([]cluster.VM, len(nodes)), make([]error, len(nodes))
	for i, f := range nodes {
		vms[i] = *f.VM
	}
	for i, of := range px.TiesOf(ctx, vms) {
		nodes[i].Ties, errs[i] = of.Ties, fault.Prefix("node "+nodes[i].Name, of.Err)
	}
	return errs
}

func observeMachine(ctx context.Context, src Sources, read machineRead, w cluster.Wanted, f *Found) (err error) {
	ReadMachine(ctx, src, read, w, f)
	if !f.Open() && f.Blank == nil || src.ConfigKnown == nil {
		return nil
	}
	var rec parking.Record
	if f.Open() {
		rec = f.Parking.Record
	}
	f.ConfigIn, err = src.ConfigKnown(ctx, f.Name, rec)
	f.ConfigKnown = f.ConfigIn != cluster.ConfigNowhere
	if errors.Is(err, cluster.ErrConfigDamaged) {
		f.ConfigDamaged, err = err, nil
	}
	return err
}

// observeMachines reads the machine of each node. A machine that does not answer is no error.
func observeMachines(ctx context.Context, src Sources, read machineRead, wanted []cluster.Wanted, found []Found) error {
	g := errgroup.Group{}
	g.SetLimit(MachinesAtOnce)
	for i := range found {
		if found[i].Away || found[i].Absent != nil {
			continue // unknown whose disks its machine has, or there is no machine
		}
		g.Go(func() error { return observeMachine(ctx, src, read, wanted[i], &found[i]) })
	}
	return g.Wait()
}

// observeTies reads what would be lost with each node. The decision needs it, so a failed read is
// an error.
func observeTies(ctx context.Context, src Sources, o *Observation) error {
	nodes := Matching(o.Found, func(f *Found) bool { return !f.Away && f.VM != nil && f.Node != nil })
	g := errgroup.Group{}
	g.Go(func() (err error) {
		o.Storage, err = ReadData(ctx, src.Kube, nodes)
		return err
	})
	g.Go(func() error {
		errs := ReadTies(ctx, src.Proxmox, nodes)
		i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
		if i < 0 {
			return nil
		}
		return errs[i] // the others may be the same
	})
	return g.Wait()
}

// kubernetesFit says why wanted and present versions of Talos and Kubernetes do not support each
// other on one node; "" if they do.
type kubernetesFit struct {
	runs, wanted string // versions of Kubernetes
	present      string // why the running Talos does not support the wanted Kubernetes
	coming       string // why the wanted Talos does not support the running Kubernetes
	both         string // why neither of the wanted versions supports the other
}

// fitOf returns nil if the node has the wanted Kubernetes, or no version is wanted.
func fitOf(talos cluster.Compatibility, w cluster.Wanted, m cluster.Machine, kubelet string) *kubernetesFit {
	if w.Kubernetes == "" || kubelet == "" || kubelet == w.Kubernetes || w.Build.TalosVersion == "" {
		return nil
	}
	return &kubernetesFit{
		runs: kubelet, wanted: w.Kubernetes, present: talos.UnsupportedKubernetes(m.TalosVersion, w.Kubernetes),
		coming: talos.UnsupportedKubernetes(w.Build.TalosVersion, kubelet), both: talos.UnsupportedKubernetes(w.Build.TalosVersion, w.Kubernetes),
	}
}

// order says which comes first: the roll, or the upgrade of Kubernetes.
func (k kubernetesFit) order() string {
	upgrade := fmt.Sprintf("recast upgrade-k8s --to %s", k.wanted)
	change := fmt.Sprintf("Kubernetes %s → %s: ", k.runs, k.wanted)
	switch {
	case k.both != "":
		return change + "talos.version and kubernetes.version do not go together: " + k.both
	case k.coming != "" && k.present != "":
		return change + "the wanted Talos does not support what runs, and the Talos that runs not the wanted Kubernetes: go by a version of Kubernetes in between that both support, with recast upgrade-k8s, then roll, then on"
	case k.coming != "":
		return change + "first " + upgrade + ", then the roll: " + k.coming
	case k.present != "":
		return change + "first the roll, then " + upgrade + ": " + k.present
	}
	return change + "the roll leaves it; " + upgrade + " brings it there, best after the roll"
}

// KubernetesOrder lists what the plan says about Kubernetes, without repetitions.
func (o Observation) KubernetesOrder() (out []string) {
	for _, f := range o.Found {
		if f.fit == nil {
			continue
		}
		if text := f.fit.order(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}
