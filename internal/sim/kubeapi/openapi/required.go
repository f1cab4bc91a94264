package openapi

import (
	"reflect"
	"slices"
)

// unlike has the fields that are required although their JSON is omitted if empty, or the
// other way around: the comments of their types say so (+required, +optional).
// internal/e2e/kubernetes compares the models with those that Kubernetes publishes.
var unlike = map[string][]string{
	"io.k8s.api.apps.v1.DaemonSet":                       {"spec"},
	"io.k8s.api.apps.v1.DaemonSetCondition":              {"status", "type"},
	"io.k8s.api.apps.v1.Deployment":                      {"spec"},
	"io.k8s.api.apps.v1.DeploymentCondition":             {"status", "type"},
	"io.k8s.api.apps.v1.ReplicaSet":                      {"spec"},
	"io.k8s.api.apps.v1.ReplicaSetCondition":             {"status", "type"},
	"io.k8s.api.apps.v1.StatefulSet":                     {"spec"},
	"io.k8s.api.apps.v1.StatefulSetCondition":            {"status", "type"},
	"io.k8s.api.apps.v1.StatefulSetOrdinals":             {"start"},
	"io.k8s.api.apps.v1.StatefulSetSpec":                 {"serviceName"},
	"io.k8s.api.apps.v1.StatefulSetStatus":               {"availableReplicas"},
	"io.k8s.api.core.v1.AzureFilePersistentVolumeSource": {"secretNamespace"},
	"io.k8s.api.core.v1.ContainerImage":                  {"names"},
	"io.k8s.api.core.v1.ContainerRestartRule":            {"action"},
	"io.k8s.api.core.v1.ContainerRestartRuleOnExitCodes": {"operator"},
	"io.k8s.api.core.v1.Event":                           {"reportingComponent", "reportingInstance"},
	"io.k8s.api.core.v1.GRPCAction":                      {"service"},
	"io.k8s.api.core.v1.ImageVolumeStatus":               {"imageRef"},
	"io.k8s.api.core.v1.NodeRuntimeHandler":              {"name"},
	"io.k8s.api.core.v1.PodCertificateProjection":        {"keyType", "signerName"},
	"io.k8s.api.core.v1.ProjectedVolumeSource":           {"sources"},
	"io.k8s.api.core.v1.TypedLocalObjectReference":       {"apiGroup"},
	"io.k8s.api.core.v1.TypedObjectReference":            {"apiGroup"},
	"io.k8s.api.policy.v1.PodDisruptionBudgetStatus":     {"currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"},
	"io.k8s.api.rbac.v1.ClusterRole":                     {"rules"},
	"io.k8s.api.rbac.v1.Role":                            {"rules"},
	"io.k8s.api.rbac.v1.RoleRef":                         {"apiGroup"},
	"io.k8s.api.storage.v1.CSINodeDriver":                {"topologyKeys"},
}

// required says whether a field of a struct is required, given whether its JSON is never
// omitted.
func required(t reflect.Type, field string, always bool) bool {
	n, is := reflect.Zero(t).Interface().(named)
	return always != (is && slices.Contains(unlike[n.OpenAPIModelName()], field))
}
