package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// rebuildAfter is how long Longhorn takes to rebuild a replica on another node.
const rebuildAfter = 30 * time.Second

var longhorn = schema.GroupVersion{Group: "longhorn.io", Version: "v1beta2"}

// longhornDisk is a disk of a Longhorn node.
type longhornDisk struct {
	node *unstructured.Unstructured
	id   string
}

// moveReplicas is Longhorn when the eviction of a node or disk is requested: one volume at a time, it makes
// another replica on a node that takes replicas and has none of that volume, and then removes the old one
// (longhorn-manager, syncReplicaEvictionRequested in controller/node_controller.go,
// cleanupEvictionRequestedReplicas in volume_controller.go, getNodeCandidates in scheduler/replica_scheduler.go).
// Without such a node nothing happens. The lab's Longhorn is the status of its nodes, and objects of kind Replica
// if there are any.
func (m *Manager) moveReplicas(ctx context.Context) error {
	nodes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("nodes"))
	if err != nil || len(nodes) == 0 {
		return err
	}
	for i := range nodes {
		nodes[i] = nodes[i].DeepCopy()
	}
	var disks []longhornDisk
	for _, n := range nodes {
		specs, _, _ := unstructured.NestedMap(n.Object, "spec", "disks")
		for _, id := range slices.Sorted(maps.Keys(specs)) {
			disks = append(disks, longhornDisk{n, id})
		}
	}
	moving := map[string]bool{} // volumes
	for _, from := range disks {
		if !from.flag("evictionRequested") {
			continue
		}
		for _, replica := range slices.Sorted(maps.Keys(from.replicas())) {
			volume := volumeOf(replica)
			to := slices.IndexFunc(disks, func(d longhornDisk) bool { return m.takes(ctx, d, volume, disks) })
			if to < 0 || moving[volume] {
				continue
			}
			moving[volume] = true
			if !m.timers.due("longhorn/"+replica, rebuildAfter) {
				continue
			}
			if err := m.moveReplica(ctx, replica, from, disks[to]); err != nil {
				return err
			}
		}
	}
	return nil
}

func volumeOf(replica string) string {
	if i := strings.LastIndex(replica, "-r-"); i > 0 {
		return replica[:i]
	}
	return replica
}

// flag is a flag of the disk or of its node.
func (d longhornDisk) flag(name string) bool {
	node, _, _ := unstructured.NestedBool(d.node.Object, "spec", name)
	disk, _, _ := unstructured.NestedBool(d.node.Object, "spec", "disks", d.id, name)
	if name == "allowScheduling" {
		return node && disk
	}
	return node || disk
}

func (d longhornDisk) replicas() map[string]any {
	replicas, _, _ := unstructured.NestedMap(d.node.Object, "status", "diskStatus", d.id, "scheduledReplica")
	return replicas
}

func (d longhornDisk) set(replicas map[string]any) error {
	return unstructured.SetNestedMap(d.node.Object, replicas, "status", "diskStatus", d.id, "scheduledReplica")
}

// takes says whether the disk can take another replica of the volume. Longhorn skips nodes
// that are not Ready or are cordoned (disable-scheduling-on-cordoned-node).
func (m *Manager) takes(ctx context.Context, d longhornDisk, volume string, disks []longhornDisk) bool {
	o, err := m.store.Get(ctx, store.Nodes(), "", d.node.GetName())
	if err != nil || !d.flag("allowScheduling") || d.flag("evictionRequested") {
		return false
	}
	k := o.(*corev1.Node)
	ready := slices.ContainsFunc(k.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	has := slices.ContainsFunc(disks, func(o longhornDisk) bool {
		return o.node == d.node && slices.ContainsFunc(slices.Collect(maps.Keys(o.replicas())), func(r string) bool { return volumeOf(r) == volume })
	})
	return ready && !k.Spec.Unschedulable && !has
}

func (m *Manager) moveReplica(ctx context.Context, replica string, from, to longhornDisk) error {
	h := fnv.New32a()
	_, _ = h.Write([]byte(replica + to.node.GetName())) // a hash never fails
	name := fmt.Sprintf("%s-r-%08x", volumeOf(replica), h.Sum32())
	before, after := from.replicas(), to.replicas()
	if after == nil {
		after = map[string]any{}
	}
	after[name] = before[replica]
	delete(before, replica)
	if err := m.moveObject(ctx, replica, name, to); err != nil {
		return err
	}
	if err := to.set(after); err != nil {
		return err
	}
	if err := from.set(before); err != nil {
		return err
	}
	for _, d := range []longhornDisk{to, from} {
		fresh, err := m.store.Update(ctx, longhorn.WithResource("nodes"), d.node.DeepCopy(), store.Status)
		if err != nil {
			return err
		}
		d.node.SetResourceVersion(fresh.GetResourceVersion())
	}
	return nil
}

// moveObject updates the replica's own object, if it has one.
func (m *Manager) moveObject(ctx context.Context, replica, name string, to longhornDisk) error {
	r := longhorn.WithResource("replicas")
	o, err := m.store.Get(ctx, r, to.node.GetNamespace(), replica)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	fresh := o.(*unstructured.Unstructured).DeepCopy()
	fresh.SetName(name)
	fresh.SetResourceVersion("")
	labels := fresh.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["longhornnode"] = to.node.GetName()
	fresh.SetLabels(labels)
	uuid, _, _ := unstructured.NestedString(to.node.Object, "status", "diskStatus", to.id, "diskUUID")
	path, _, _ := unstructured.NestedString(to.node.Object, "spec", "disks", to.id, "path")
	for field, value := range map[string]string{"nodeID": to.node.GetName(), "diskID": uuid, "diskPath": path} {
		if err := unstructured.SetNestedField(fresh.Object, value, "spec", field); err != nil {
			return err
		}
	}
	if _, err := m.store.Create(ctx, r, fresh); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = m.store.Delete(ctx, r, to.node.GetNamespace(), replica, metav1.DeleteOptions{})
	return err
}
