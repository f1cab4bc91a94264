package control

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// showFilling writes in the volume's Engine, if there is one, how much of a replica is filled, as the engine
// controller does from what the engine answers (refreshEngine in controller/engine_controller.go).
func (m *Manager) showFilling(ctx context.Context, volume, r *unstructured.Unstructured, part float64) error {
	engines, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("engines"))
	if err != nil {
		return err
	}
	for _, e := range engines {
		addresses, _, _ := unstructured.NestedStringMap(e.Object, "status", "currentReplicaAddressMap")
		address := addresses[r.GetName()]
		if text(e, "spec", "volumeName") != volume.GetName() || address == "" {
			continue
		}
		status := map[string]any{"isRebuilding": part < 1, "progress": int64(100 * part), "state": "in_progress", "error": ""}
		if part == 1 {
			status["state"] = "complete"
		}
		fresh := e.DeepCopy()
		rebuilds, _, _ := unstructured.NestedMap(fresh.Object, "status", "rebuildStatus")
		if rebuilds == nil {
			rebuilds = map[string]any{}
		}
		rebuilds["tcp://"+address] = status
		if err := unstructured.SetNestedMap(fresh.Object, rebuilds, "status", "rebuildStatus"); err != nil {
			return err
		}
		if _, err := m.store.Update(ctx, longhorn.WithResource("engines"), fresh, store.Status); err != nil {
			return err
		}
	}
	return nil
}
