package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// newSystem gives the VM its system disk. The VM of a new node is created as if an older VM had just been deleted
// to be recreated.
func (n *node) newSystem() step.Step {
	made := n.record.source().NewSystem()
	if n.Plan.Strategy.From() != cluster.Nowhere {
		return made
	}
	do := made.Do
	made.Do = func(ctx context.Context) error {
		err := do(ctx)
		if !errors.Is(err, cluster.ErrExists) {
			return err
		}
		if ours, err := made.Skip(ctx); err != nil || ours != "" {
			return err // an earlier request for the VM was carried out late
		}
		r, errRead := n.record.read(ctx)
		if errRead == nil {
			errRead = r.CloseRecord(ctx)
		}
		return fault.WithHint(errors.Join(fault.PlanMoved.Of(fault.As(fault.Refused, err)), errRead), "someone took the number meanwhile: run the same command again, which takes another one")
	}
	return made
}

// openNew opens the record of a VM that is to be created.
func (n *node) openNew(ctx context.Context) error {
	uuid := shape.UUID(n.Run, n.Plan.Node)
	mem := parking.Memory{
		VM: shape.New(n.Want, n.Plan.VMID, uuid), SystemKey: n.Want.SystemDisk, DiskSerial: exchange.DiskSerial(n.Run, n.Plan.Node),
		ControlPlane: n.Plan.Role == cluster.ControlPlane,
	}
	switch {
	case n.Plan.Bootstraps:
		mem.Bootstraps, mem.EtcdMembers = true, 1
	case mem.ControlPlane:
		v, err := etcd.Look(ctx, n.Talos, n.OtherControlPlanes())
		if err != nil {
			return err
		}
		mem.EtcdMembers = len(v.Members) + 1
	}
	var err error
	if mem.Kubernetes, err = n.clusterKubernetes(ctx); err != nil {
		return err
	}
	if mem.ConfigSum, err = n.config.remember(ctx, mem.Kubernetes); err != nil {
		return err
	}
	if err := n.Journal.Put(n.Key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	n.Plan.UUID = uuid
	return n.record.open(ctx, mem)
}

// clusterKubernetes returns the Kubernetes images that a new node is to run: those of the cluster, whatever the
// node's file names.
func (n *node) clusterKubernetes(ctx context.Context) (images cluster.KubernetesImages, err error) {
	for _, e := range n.OtherControlPlanes() { // a new cluster has none
		var m cluster.MachineKubernetes
		if m, err = n.Talos.KubernetesImages(ctx, e.Addr); err != nil {
			continue
		}
		if n.Plan.Role == cluster.Worker {
			return cluster.KubernetesImages{Kubelet: m.Images.Kubelet}, nil
		}
		return m.Images, nil
	}
	return images, fault.Prefix("read which Kubernetes the cluster runs", err)
}

// restartKubelets restarts the kubelets of a broken cluster whose etcd has just begun again: all control planes are
// recreated.
func (n *node) restartKubelets() step.Step {
	from := n.roller.Rebuild
	return etcd.Kubelets{
		Talos: n.Talos, Kube: n.Kube, Fresh: from.Gone, Left: from.Left,
		Say: func(text string) { n.Tell("bring-up/restart-kubelets", text) },
	}.Step()
}
