package manifests

import (
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// Objects are those of the manifests, as Talos applies them to a new cluster. Since 1.13 it keeps an inventory of them.
func Objects(all []Manifest, inventoried bool) []map[string]any {
	var objects []map[string]any
	for _, m := range all {
		objects = append(objects, m.Objects...)
	}
	if inventoried {
		objects = append(objects, inventory(objects))
	}
	return objects
}

// owningInventory marks an object of an inventory (ssa.InventoryAnnotationKey in go-kubernetes).
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
