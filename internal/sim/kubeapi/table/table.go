// Package table turns the objects of a lab's API into the tables that kubectl prints. Columns
// and cells are those of kube-apiserver (pkg/printers/internalversion in Kubernetes).
package table

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Of is the table of these objects, which all have the prototype's kind. Each row contains
// its object.
func Of(prototype metav1.Object, objects []runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{ColumnDefinitions: kindOf(prototype).columns, Rows: []metav1.TableRow{}}
	defaultClass := effectiveDefault(objects)
	for _, o := range objects {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, err
		}
		k := kindOf(m)
		row := metav1.TableRow{Cells: k.cells, Object: runtime.RawExtension{Object: o}}
		switch o := o.(type) {
		case *corev1.Pod:
			row.Conditions = completed(o)
		case *storagev1.StorageClass:
			if o == defaultClass {
				row.Cells[0] = o.Name + " (default)"
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// kind is what an object's table looks like, and its own row.
type kind struct {
	columns []metav1.TableColumnDefinition
	cells   []any
}

func kindOf(obj metav1.Object) kind {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		return configMap(o)
	case *corev1.Event:
		return event(o)
	case *corev1.Namespace:
		return namespace(o)
	case *corev1.Node:
		return node(o)
	case *corev1.PersistentVolume:
		return volume(o)
	case *corev1.PersistentVolumeClaim:
		return claim(o)
	case *corev1.Pod:
		return pod(o)
	case *corev1.Secret:
		return secret(o)
	case *corev1.Service:
		return service(o)
	case *corev1.ServiceAccount:
		return kind{columns(age()), []any{o.Name, since(o.CreationTimestamp)}}
	case *appsv1.DaemonSet:
		return daemonSet(o)
	case *appsv1.Deployment:
		return deployment(o)
	case *appsv1.ReplicaSet:
		return replicaSet(o)
	case *appsv1.StatefulSet:
		return statefulSet(o)
	case *certificatesv1.CertificateSigningRequest:
		return certificateRequest(o)
	case *coordinationv1.Lease:
		return lease(o)
	case *policyv1.PodDisruptionBudget:
		return budget(o)
	case *rbacv1.RoleBinding:
		return binding(o, "roleBinding", o.SwaggerDoc(), o.RoleRef, o.Subjects)
	case *rbacv1.ClusterRoleBinding:
		return binding(o, "clusterRoleBinding", o.SwaggerDoc(), o.RoleRef, o.Subjects)
	case *storagev1.CSINode:
		return csiNode(o)
	case *storagev1.StorageClass:
		return storageClass(o)
	case *storagev1.VolumeAttachment:
		return attachment(o)
	case *unstructured.Unstructured: // whose definition has no additionalPrinterColumns
		created := age()
		created.Type = "date"
		return kind{columns(created), []any{o.GetName(), since(o.GetCreationTimestamp())}}
	}
	// NewDefaultTableConvertor in apiserver's registry/rest
	created := text("Created At", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
	created.Type = "date"
	return kind{columns(created), []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}}
}

// columns begin with the object's name.
func columns(others ...metav1.TableColumnDefinition) []metav1.TableColumnDefinition {
	name := text("Name", metav1.ObjectMeta{}.SwaggerDoc()["name"])
	name.Format = "name"
	return append([]metav1.TableColumnDefinition{name}, others...)
}

func text(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

func integer(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description}
}

// wide is a column that is printed with -o wide only.
func wide(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description, Priority: 1}
}

func age() metav1.TableColumnDefinition {
	return text("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
}

func since(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
