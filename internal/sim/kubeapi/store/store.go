// Package store keeps the Kubernetes objects of a lab: in [Memory], or in a real API
// server ([Remote]), both behind the interface [Store].
package store

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Object is any Kubernetes object that has metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Part says which part of an object an update may change.
type Part string

// The parts. An update of one part leaves the rest unchanged.
const (
	Main   Part = ""
	Status Part = "status"
	Whole  Part = "whole" // both: a custom resource without a status subresource
)

// Store reads and writes objects as an API server would: it assigns UIDs, revisions and generations, refuses stale
// writes, deletes pods gracefully and waits for finalizers. Errors are API statuses.
//
// Returned objects are shared: copy one before changing it.
type Store interface {
	Get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (Object, error)
	// List returns the objects of a namespace ("" for all), ordered by namespace
	// and name, and the revision at which they were read.
	List(ctx context.Context, r schema.GroupVersionResource, namespace string) ([]Object, string, error)
	Create(ctx context.Context, r schema.GroupVersionResource, obj Object) (Object, error)
	// Update writes one part. A revision in obj that is not the latest is a conflict.
	Update(ctx context.Context, r schema.GroupVersionResource, obj Object, part Part) (Object, error)
	// Delete returns the deleted object, or the object with its deletion timestamp.
	Delete(ctx context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error)
	// Watch starts after that revision, or now if it is "".
	Watch(ctx context.Context, r schema.GroupVersionResource, revision string) (Watch, error)
}

// Event is a change of one object.
type Event struct {
	Type   watch.EventType
	Object Object
	Before Object // nil for an added object
}

// Watch yields the changes of one resource in order.
type Watch interface {
	// Next waits for the next change, or until ctx ends. A Gone error says that the reader was
	// too slow and must list again.
	Next(ctx context.Context) (Event, error)
	Stop()
}

// Resource is one kind of object that a lab's API serves.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Short      []string // short names of kubectl: "po"
	Categories []string // names of kubectl for several kinds: "all"
	Namespaced bool
	Status     bool // has a status subresource
}

// GVK returns the kind with its group and version.
func (r Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

var (
	core    = corev1.SchemeGroupVersion.WithResource
	apps    = appsv1.SchemeGroupVersion.WithResource
	storage = storagev1.SchemeGroupVersion.WithResource
)

// The resources that the lab itself works with.

func Nodes() schema.GroupVersionResource        { return core("nodes") }
func Namespaces() schema.GroupVersionResource   { return core("namespaces") }
func Pods() schema.GroupVersionResource         { return core("pods") }
func Services() schema.GroupVersionResource     { return core("services") }
func Volumes() schema.GroupVersionResource      { return core("persistentvolumes") }
func Claims() schema.GroupVersionResource       { return core("persistentvolumeclaims") }
func DaemonSets() schema.GroupVersionResource   { return apps("daemonsets") }
func Deployments() schema.GroupVersionResource  { return apps("deployments") }
func ReplicaSets() schema.GroupVersionResource  { return apps("replicasets") }
func StatefulSets() schema.GroupVersionResource { return apps("statefulsets") }
func Budgets() schema.GroupVersionResource {
	return policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
}
func Attachments() schema.GroupVersionResource { return storage("volumeattachments") }
func Leases() schema.GroupVersionResource {
	return coordinationv1.SchemeGroupVersion.WithResource("leases")
}

func CertificateRequests() schema.GroupVersionResource {
	return certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
}

// Resources lists the resources that are served from the start, in discovery's order.
func Resources() []Resource {
	all := []string{"all"}
	return []Resource{
		{GroupVersionResource: core("configmaps"), Kind: "ConfigMap", Short: []string{"cm"}, Namespaced: true},
		{GroupVersionResource: core("events"), Kind: "Event", Short: []string{"ev"}, Namespaced: true},
		{GroupVersionResource: Namespaces(), Kind: "Namespace", Short: []string{"ns"}, Status: true},
		{GroupVersionResource: Nodes(), Kind: "Node", Short: []string{"no"}, Status: true},
		{GroupVersionResource: Claims(), Kind: "PersistentVolumeClaim", Short: []string{"pvc"}, Namespaced: true, Status: true},
		{GroupVersionResource: Volumes(), Kind: "PersistentVolume", Short: []string{"pv"}, Status: true},
		{GroupVersionResource: Pods(), Kind: "Pod", Short: []string{"po"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: core("secrets"), Kind: "Secret", Namespaced: true},
		{GroupVersionResource: core("serviceaccounts"), Kind: "ServiceAccount", Short: []string{"sa"}, Namespaced: true},
		{GroupVersionResource: Services(), Kind: "Service", Short: []string{"svc"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: DaemonSets(), Kind: "DaemonSet", Short: []string{"ds"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: Deployments(), Kind: "Deployment", Short: []string{"deploy"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: ReplicaSets(), Kind: "ReplicaSet", Short: []string{"rs"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: StatefulSets(), Kind: "StatefulSet", Short: []string{"sts"}, Categories: all, Namespaced: true, Status: true},
		{
			GroupVersionResource: CertificateRequests(),
			Kind:                 "CertificateSigningRequest", Short: []string{"csr"}, Status: true,
		},
		{GroupVersionResource: Leases(), Kind: "Lease", Namespaced: true},
		{GroupVersionResource: Budgets(), Kind: "PodDisruptionBudget", Short: []string{"pdb"}, Namespaced: true, Status: true},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), Kind: "ClusterRoleBinding"},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterroles"), Kind: "ClusterRole"},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("rolebindings"), Kind: "RoleBinding", Namespaced: true},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("roles"), Kind: "Role", Namespaced: true},
		{GroupVersionResource: storage("csinodes"), Kind: "CSINode"},
		{GroupVersionResource: storage("storageclasses"), Kind: "StorageClass", Short: []string{"sc"}},
		{GroupVersionResource: Attachments(), Kind: "VolumeAttachment", Status: true},
	}
}

// BuiltIn reports whether a resource is built in (see Resources), not custom.
func BuiltIn(r Resource) bool {
	return slices.ContainsFunc(Resources(), func(b Resource) bool { return b.GroupVersionResource == r.GroupVersionResource })
}

// NewScheme returns a scheme with the Go types of all resources and of other objects that clients send.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	add := runtime.NewSchemeBuilder(
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, storagev1.AddToScheme, coordinationv1.AddToScheme, certificatesv1.AddToScheme, authorizationv1.AddToScheme,
	)
	return s, add.AddToScheme(s)
}
