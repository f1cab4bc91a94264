package openapi

import (
	"reflect"
	"slices"
)

// A field is required if its JSON is never omitted. The comments of these types say otherwise
// (+optional, +required); the tests of internal/e2e/kubernetes compare them with what
// Kubernetes publishes.
var (
	optional = map[string][]string{
		"io.k8s.api.apps.v1.DaemonSetCondition":              {"status", "type"},
		"io.k8s.api.apps.v1.DeploymentCondition":             {"status", "type"},
		"io.k8s.api.apps.v1.ReplicaSetCondition":             {"status", "type"},
		"io.k8s.api.apps.v1.StatefulSetCondition":            {"status", "type"},
		"io.k8s.api.apps.v1.StatefulSetOrdinals":             {"start"},
		"io.k8s.api.apps.v1.StatefulSetSpec":                 {"serviceName"},
		"io.k8s.api.apps.v1.StatefulSetStatus":               {"availableReplicas"},
		"io.k8s.api.core.v1.AzureFilePersistentVolumeSource": {"secretNamespace"},
		"io.k8s.api.core.v1.ContainerImage":                  {"names"},
		"io.k8s.api.core.v1.Event":                           {"reportingComponent", "reportingInstance"},
		"io.k8s.api.core.v1.GRPCAction":                      {"service"},
		"io.k8s.api.core.v1.NodeRuntimeHandler":              {"name"},
		"io.k8s.api.core.v1.ProjectedVolumeSource":           {"sources"},
		"io.k8s.api.core.v1.TypedLocalObjectReference":       {"apiGroup"},
		"io.k8s.api.core.v1.TypedObjectReference":            {"apiGroup"},
		"io.k8s.api.policy.v1.PodDisruptionBudgetStatus":     {"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"},
		"io.k8s.api.rbac.v1.ClusterRole":                     {"rules"},
		"io.k8s.api.rbac.v1.Role":                            {"rules"},
		"io.k8s.api.rbac.v1.RoleRef":                         {"apiGroup"},
		"io.k8s.api.storage.v1.CSINodeDriver":                {"topologyKeys"},
	}
	required = map[string][]string{
		"io.k8s.api.apps.v1.DaemonSet":                       {"spec"},
		"io.k8s.api.apps.v1.Deployment":                      {"spec"},
		"io.k8s.api.apps.v1.ReplicaSet":                      {"spec"},
		"io.k8s.api.apps.v1.StatefulSet":                     {"spec"},
		"io.k8s.api.core.v1.ContainerRestartRule":            {"action"},
		"io.k8s.api.core.v1.ContainerRestartRuleOnExitCodes": {"operator"},
		"io.k8s.api.core.v1.ImageVolumeStatus":               {"imageRef"},
		"io.k8s.api.core.v1.PodCertificateProjection":        {"keyType", "signerName"},
	}
)

func exception(t reflect.Type, field string, of map[string][]string) bool {
	n, is := reflect.Zero(t).Interface().(named)
	return is && slices.Contains(of[n.OpenAPIModelName()], field)
}
