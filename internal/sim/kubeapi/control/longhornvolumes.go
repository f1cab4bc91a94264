package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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

// healVolumes is Longhorn's volume controller for volumes that are attached: replicas on a node that is
// down fail, one at a time is filled again once its node is back or, after a wait, on another node, and the
// volume's robustness follows (ReconcileEngineReplicaState and replenishReplicas in
// controller/volume_controller.go, RequireNewReplica in scheduler/replica_scheduler.go).
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

// standings sets the condition Ready of Longhorn's nodes that have one (syncNodeStatus… in
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
		fresh := n.DeepCopy()
		if err := unstructured.SetNestedSlice(fresh.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		if _, err := m.store.Update(ctx, longhorn.WithResource("nodes"), fresh, store.Status); err != nil {
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
	if err := unstructured.SetNestedField(c.volume.Object, robustness, "status", "robustness"); err != nil {
		return err
	}
	_, err := m.store.Update(ctx, longhorn.WithResource("volumes"), c.volume, store.Status)
	return err
}

// replenish begins to fill a failed replica again whose node is up, or else, after the wait, one on a node
// that has none.
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
	fresh := o.(*unstructured.Unstructured).DeepCopy()
	if err := unstructured.SetNestedField(fresh.Object, state, "status", "currentState"); err != nil {
		return err
	}
	_, err = m.store.Update(ctx, longhorn.WithResource("replicas"), fresh, store.Status)
	return err
}
