package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// rebuildAfter is how long Longhorn takes to rebuild a replica on another node.
const rebuildAfter = 30 * time.Second

var longhorn = schema.GroupVersion{Group: "longhorn.io", Version: "v1beta2"}

type longhornDisk struct {
	node *unstructured.Unstructured
	id   string
}

// moveReplicas does what Longhorn does when the eviction of a node or disk is requested: one volume at a time, it
// makes another replica on a node that takes replicas and has none of the volume, and then removes the old replica
// (longhorn-manager, syncReplicaEvictionRequested in controller/node_controller.go, cleanupEvictionRequestedReplicas
// in volume_controller.go, getNodeCandidates in scheduler/replica_scheduler.go). Without a node for the new replica
// nothing happens. The lab's Longhorn is the status of its nodes, and objects of kind Replica if there are any.
func (m *Manager) moveReplicas(ctx context.Context) error {
	nodes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("nodes"))
	if err != nil || len(nodes) == 0 {
		return err
	}
	var disks []longhornDisk
	for _, n := range nodes {
		n = n.DeepCopy()
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

// flag returns a flag of the disk or of its node.
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

// takes reports whether the disk can take another replica of the volume. Longhorn skips nodes that are not Ready or
// are cordoned (disable-scheduling-on-cordoned-node).
func (m *Manager) takes(ctx context.Context, d longhornDisk, volume string, disks []longhornDisk) bool {
	o, err := m.store.Get(ctx, store.Nodes(), "", d.node.GetName())
	if err != nil || !d.flag("allowScheduling") || d.flag("evictionRequested") {
		return false
	}
	k := o.(*corev1.Node)
	has := slices.ContainsFunc(disks, func(o longhornDisk) bool {
		return o.node == d.node && slices.ContainsFunc(slices.Collect(maps.Keys(o.replicas())), func(r string) bool { return volumeOf(r) == volume })
	})
	return readiness(k) == corev1.ConditionTrue && !k.Spec.Unschedulable && !has
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

// moveObject updates the object of kind Replica of a replica, if the object exists.
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
	fresh.SetLabels(labels.Merge(fresh.GetLabels(), labels.Set{"longhornnode": to.node.GetName()}))
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

const (
	// replicaTimeout is how long an engine waits for a replica that does not answer (longhorn-manager,
	// SettingNameEngineReplicaTimeout).
	replicaTimeout = 8 * time.Second
	// replenishAfter is the default of replica-replenishment-wait-interval.
	replenishAfter = 600 * time.Second
)

// copies are a Longhorn volume with its replicas.
type copies struct {
	volume   *unstructured.Unstructured
	replicas []*unstructured.Unstructured
}

// healVolumes does what Longhorn's volume controller does for attached volumes: replicas on a node that is down fail.
// One replica at a time is filled again, once its node is back or, after a wait, on another node. The volume's
// robustness follows (ReconcileEngineReplicaState and replenishReplicas in controller/volume_controller.go,
// RequireNewReplica in scheduler/replica_scheduler.go).
func (m *Manager) healVolumes(ctx context.Context) error {
	volumes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("volumes"))
	if err != nil || len(volumes) == 0 {
		return err
	}
	nodes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("nodes"))
	if err != nil {
		return err
	}
	if err := m.standings(ctx, nodes); err != nil {
		return err
	}
	replicas, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("replicas"))
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if wanted, found, _ := unstructured.NestedInt64(v.Object, "spec", "numberOfReplicas"); !found || wanted == 0 || text(v, "status", "state") != "attached" {
			continue
		}
		c := copies{volume: v.DeepCopy()}
		for _, r := range replicas {
			if text(r, "spec", "volumeName") == v.GetName() {
				c.replicas = append(c.replicas, r.DeepCopy())
			}
		}
		if err := m.heal(ctx, c, nodes); err != nil {
			return err
		}
	}
	return nil
}

func text(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

// standings sets the condition Ready of Longhorn's nodes, where a node has the condition (syncNodeStatus… in
// controller/node_controller.go).
func (m *Manager) standings(ctx context.Context, nodes []*unstructured.Unstructured) error {
	up := m.running()
	for _, n := range nodes {
		conditions, found, _ := unstructured.NestedSlice(n.Object, "status", "conditions")
		if !found {
			continue
		}
		status, reason := "True", ""
		if up[n.GetName()] == nil {
			status, reason = "False", "KubernetesNodeNotReady"
		}
		changed := false
		for _, o := range conditions {
			c := o.(map[string]any)
			if c["type"] == "Ready" && c["status"] != status {
				c["status"], c["reason"], changed = status, reason, true
			}
		}
		if !changed {
			continue
		}
		if err := m.setStatus(ctx, longhorn.WithResource("nodes"), n, conditions, "conditions"); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) heal(ctx context.Context, c copies, nodes []*unstructured.Unstructured) error {
	up := m.running()
	healthy, busy := 0, false
	var failed []*unstructured.Unstructured
	for _, r := range c.replicas {
		has, lost := text(r, "spec", "healthyAt") != "", text(r, "spec", "failedAt") != ""
		switch key := "longhorn/" + r.GetName(); {
		case lost:
			failed = append(failed, r)
		case up[text(r, "spec", "nodeID")] == nil:
			if m.timers.due(key+"/fails", replicaTimeout) {
				if err := m.setCopy(ctx, r, text(r, "spec", "healthyAt"), stamp(), "stopped"); err != nil {
					return err
				}
				failed = append(failed, r)
			} else if has {
				healthy++
			}
		case has:
			healthy++
		case m.timers.due(key+"/fills", rebuildAfter):
			if err := m.setCopy(ctx, r, stamp(), "", "running"); err != nil {
				return err
			}
			if err := m.showFilling(ctx, c.volume, r, 1); err != nil {
				return err
			}
			healthy++
		default:
			busy = true
			if err := m.showFilling(ctx, c.volume, r, m.timers.part(key+"/fills", rebuildAfter)); err != nil {
				return err
			}
			m.timers.again(key+"/progress", rebuildAfter/4)
		}
	}
	wanted, _, _ := unstructured.NestedInt64(c.volume.Object, "spec", "numberOfReplicas")
	if !busy && healthy > 0 && healthy < int(wanted) {
		if err := m.replenish(ctx, c, failed, nodes); err != nil {
			return err
		}
	}
	robustness := "healthy"
	switch {
	case healthy == 0:
		robustness = "faulted"
	case healthy < int(wanted):
		robustness = "degraded"
	}
	if text(c.volume, "status", "robustness") == robustness {
		return nil
	}
	return m.setStatus(ctx, longhorn.WithResource("volumes"), c.volume, robustness, "robustness")
}

// replenish begins to fill a failed replica again whose node is up, or else, after the wait, a new replica on a node
// that has none of the volume.
func (m *Manager) replenish(ctx context.Context, c copies, failed, nodes []*unstructured.Unstructured) error {
	up := m.running()
	for _, r := range failed {
		if up[text(r, "spec", "nodeID")] != nil {
			return m.setCopy(ctx, r, "", "", "running")
		}
	}
	waits := replenishAfter
	if s, err := m.store.Get(ctx, longhorn.WithResource("settings"), c.volume.GetNamespace(), "replica-replenishment-wait-interval"); err == nil {
		if seconds, err := strconv.Atoi(text(s.(*unstructured.Unstructured), "value")); err == nil {
			waits = time.Duration(seconds) * time.Second
		}
	}
	if !m.timers.due("longhorn/"+c.volume.GetName()+"/replenish", waits) {
		return nil
	}
	for _, n := range nodes {
		has := slices.ContainsFunc(c.replicas, func(r *unstructured.Unstructured) bool { return text(r, "spec", "nodeID") == n.GetName() })
		if allows, _, _ := unstructured.NestedBool(n.Object, "spec", "allowScheduling"); has || !allows || up[n.GetName()] == nil {
			continue
		}
		h := fnv.New32a()
		_, _ = h.Write([]byte(c.volume.GetName() + n.GetName())) // a hash never fails
		fresh := c.replicas[0].DeepCopy()
		fresh.SetResourceVersion("")
		fresh.SetUID("")
		fresh.SetName(fmt.Sprintf("%s-r-%08x", c.volume.GetName(), h.Sum32()))
		fresh.SetLabels(map[string]string{"longhornnode": n.GetName(), "longhornvolume": c.volume.GetName()})
		spec := fresh.Object["spec"].(map[string]any)
		spec["nodeID"], spec["healthyAt"], spec["failedAt"], spec["lastHealthyAt"] = n.GetName(), "", "", ""
		fresh.Object["status"] = map[string]any{"currentState": "running"}
		_, err := m.store.Create(ctx, longhorn.WithResource("replicas"), fresh)
		return err
	}
	return nil
}

func stamp() string { return time.Now().UTC().Format(time.RFC3339) }

// setCopy writes what Longhorn says about a replica's data.
func (m *Manager) setCopy(ctx context.Context, r *unstructured.Unstructured, healthyAt, failedAt, state string) error {
	spec := r.Object["spec"].(map[string]any)
	spec["healthyAt"], spec["failedAt"] = healthyAt, failedAt
	if failedAt != "" {
		spec["lastFailedAt"] = failedAt
	} else if healthyAt != "" {
		spec["lastHealthyAt"] = healthyAt
	}
	o, err := m.store.Update(ctx, longhorn.WithResource("replicas"), r, store.Main)
	if err != nil {
		return err
	}
	return m.setStatus(ctx, longhorn.WithResource("replicas"), o.(*unstructured.Unstructured), state, "currentState")
}

// showFilling writes into the volume's Engine, if the object exists, how much of a replica is filled. The real engine
// controller writes what the engine answers (refreshEngine in controller/engine_controller.go).
func (m *Manager) showFilling(ctx context.Context, volume, r *unstructured.Unstructured, part float64) error {
	return each(ctx, m.store, longhorn.WithResource("engines"), func(e *unstructured.Unstructured) error {
		addresses, _, _ := unstructured.NestedStringMap(e.Object, "status", "currentReplicaAddressMap")
		address := addresses[r.GetName()]
		if text(e, "spec", "volumeName") != volume.GetName() || address == "" {
			return nil
		}
		status := map[string]any{"isRebuilding": part < 1, "progress": int64(100 * part), "state": "in_progress", "error": ""}
		if part == 1 {
			status["state"] = "complete"
		}
		rebuilds, _, _ := unstructured.NestedMap(e.Object, "status", "rebuildStatus")
		if rebuilds == nil {
			rebuilds = map[string]any{}
		}
		rebuilds["tcp://"+address] = status
		return m.setStatus(ctx, longhorn.WithResource("engines"), e, rebuilds, "rebuildStatus")
	})
}
