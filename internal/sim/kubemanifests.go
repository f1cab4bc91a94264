package sim

import (
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/recast-sh/recast/internal/sim/manifests"
)

// manifests are the objects that Talos applies to a new cluster. Since 1.13 it keeps an
// inventory of them.
func (l *Lab) manifests() ([]map[string]any, error) {
	c := manifests.Of(l.Talos.KubernetesVersion)
	c.TokenID, c.TokenSecret, _ = strings.Cut(l.Talos.Secrets.Secrets.BootstrapToken, ".")
	all, err := manifests.Render(c)
	if err != nil {
		return nil, err
	}
	var objects []map[string]any
	for _, m := range all {
		objects = append(objects, m.Objects...)
	}
	if strings.HasPrefix(l.o.TalosVersion, "v1.12.") {
		return objects, nil
	}
	return append(objects, inventory(objects)), nil
}

// owningInventory marks an object of an inventory (ssa.InventoryAnnotationKey in
// go-kubernetes).
const owningInventory = "config.k8s.io/owning-inventory"

// inventory marks the objects and returns the inventory that lists them, like the
// library that applies them (object.ObjMetadata of fluxcd/cli-utils).
func inventory(objects []map[string]any) map[string]any {
	keys := map[string]any{}
	for _, o := range objects {
		meta := o["metadata"].(map[string]any)
		marks, _ := meta["annotations"].(map[string]any)
		if marks == nil {
			marks = map[string]any{}
			meta["annotations"] = marks
		}
		marks[owningInventory] = constants.KubernetesBootstrapManifestsInventoryName
		group, _, named := strings.Cut(o["apiVersion"].(string), "/")
		if !named {
			group = ""
		}
		namespace, _ := meta["namespace"].(string)
		name := strings.ReplaceAll(meta["name"].(string), ":", "__")
		keys[strings.Join([]string{namespace, name, group, o["kind"].(string)}, "_")] = ""
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": keys,
		"metadata": map[string]any{"name": constants.KubernetesBootstrapManifestsInventoryName, "namespace": constants.KubernetesInventoryNamespace},
	}
}
