// Package table turns the objects of a lab's API into the tables that kubectl prints. Columns
// and cells are those of kube-apiserver (pkg/printers/internalversion in Kubernetes).
package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
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

func binding(o metav1.Object, what string, docs map[string]string, role rbacv1.RoleRef, subjects []rbacv1.Subject) kind {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return kind{
		columns(text("Role", docs["roleRef"]), age(), wide("Users", "Users in the "+what), wide("Groups", "Groups in the "+what), wide("ServiceAccounts", "ServiceAccounts in the "+what)),
		[]any{
			o.GetName(), role.Kind + "/" + role.Name, since(o.GetCreationTimestamp()),
			strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
		},
	}
}

func certificateRequest(o *certificatesv1.CertificateSigningRequest) kind {
	spec := o.Spec.SwaggerDoc()
	life := "<none>"
	if s := o.Spec.ExpirationSeconds; s != nil {
		life = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return kind{
		columns(
			age(), text("SignerName", spec["signerName"]), text("Requestor", spec["request"]), text("RequestedDuration", spec["expirationSeconds"]),
			text("Condition", o.Status.SwaggerDoc()["conditions"]),
		),
		[]any{o.Name, since(o.CreationTimestamp), cmp.Or(o.Spec.SignerName, "<none>"), o.Spec.Username, life, requestStatus(o)},
	}
}

func requestStatus(o *certificatesv1.CertificateSigningRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range o.Status.Conditions {
		has[c.Type] = true
	}
	status := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		status = "Denied"
	case has[certificatesv1.CertificateApproved]:
		status = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		status += ",Failed"
	}
	if len(o.Status.Certificate) > 0 {
		status += ",Issued"
	}
	return status
}

// template are the columns and cells about the containers of a pod template.
func template(t corev1.PodTemplateSpec) ([]metav1.TableColumnDefinition, []any) {
	var names, images []string
	for _, c := range t.Spec.Containers {
		names, images = append(names, c.Name), append(images, c.Image)
	}
	return []metav1.TableColumnDefinition{
		wide("Containers", "Names of each container in the template."), wide("Images", "Images referenced by each container in the template."),
	}, []any{strings.Join(names, ","), strings.Join(images, ",")}
}

// replicas are as wanted, by default one.
func replicas(wanted *int32) int64 {
	if wanted == nil {
		return 1
	}
	return int64(*wanted)
}

func daemonSet(o *appsv1.DaemonSet) kind {
	docs, s := o.Status.SwaggerDoc(), o.Status
	defs, cells := template(o.Spec.Template)
	return kind{
		append(columns(
			integer("Desired", docs["desiredNumberScheduled"]), integer("Current", docs["currentNumberScheduled"]), integer("Ready", docs["numberReady"]),
			integer("Up-to-date", docs["updatedNumberScheduled"]), integer("Available", docs["numberAvailable"]),
			text("Node Selector", o.Spec.Template.Spec.SwaggerDoc()["nodeSelector"]), age(),
		), append(defs, wide("Selector", o.Spec.SwaggerDoc()["selector"]))...),
		append([]any{
			o.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady), int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable),
			labels.FormatLabels(o.Spec.Template.Spec.NodeSelector), since(o.CreationTimestamp),
		}, append(cells, metav1.FormatLabelSelector(o.Spec.Selector))...),
	}
}

func deployment(o *appsv1.Deployment) kind {
	docs, s := o.Status.SwaggerDoc(), o.Status
	defs, cells := template(o.Spec.Template)
	selector := "<invalid>"
	if parsed, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil {
		selector = parsed.String()
	}
	return kind{
		append(columns(
			text("Ready", "Number of the pod with ready state"), text("Up-to-date", docs["updatedReplicas"]), text("Available", docs["availableReplicas"]), age(),
		), append(defs, wide("Selector", o.Spec.SwaggerDoc()["selector"]))...),
		append([]any{
			o.Name, fmt.Sprintf("%d/%d", s.ReadyReplicas, replicas(o.Spec.Replicas)), int64(s.UpdatedReplicas), int64(s.AvailableReplicas), since(o.CreationTimestamp),
		}, append(cells, selector)...),
	}
}

func replicaSet(o *appsv1.ReplicaSet) kind {
	spec, status := o.Spec.SwaggerDoc(), o.Status.SwaggerDoc()
	defs, cells := template(o.Spec.Template)
	return kind{
		append(columns(
			integer("Desired", spec["replicas"]), integer("Current", status["replicas"]), integer("Ready", status["readyReplicas"]), age(),
		), append(defs, wide("Selector", spec["selector"]))...),
		append([]any{
			o.Name, replicas(o.Spec.Replicas), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas), since(o.CreationTimestamp),
		}, append(cells, metav1.FormatLabelSelector(o.Spec.Selector))...),
	}
}

func statefulSet(o *appsv1.StatefulSet) kind {
	defs, cells := template(o.Spec.Template)
	return kind{
		append(columns(text("Ready", "Number of the pod with ready state"), age()), defs...),
		append([]any{o.Name, fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, replicas(o.Spec.Replicas)), since(o.CreationTimestamp)}, cells...),
	}
}

func budget(o *policyv1.PodDisruptionBudget) kind {
	limit := func(l *intstr.IntOrString) string {
		if l == nil {
			return "N/A"
		}
		return l.String()
	}
	return kind{
		columns(
			text("Min Available", "The minimum number of pods that must be available."), text("Max Unavailable", "The maximum number of pods that may be unavailable."),
			integer("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time."), age(),
		),
		[]any{o.Name, limit(o.Spec.MinAvailable), limit(o.Spec.MaxUnavailable), int64(o.Status.DisruptionsAllowed), since(o.CreationTimestamp)},
	}
}

func lease(o *coordinationv1.Lease) kind {
	holder := ""
	if o.Spec.HolderIdentity != nil {
		holder = *o.Spec.HolderIdentity
	}
	return kind{columns(text("Holder", o.Spec.SwaggerDoc()["holderIdentity"]), age()), []any{o.Name, holder, since(o.CreationTimestamp)}}
}

// value is what p points to, or otherwise if it is nil: the real server's default, which the
// lab does not store.
func value[T ~string](p *T, otherwise string) string {
	if p == nil {
		return otherwise
	}
	return string(*p)
}

func volume(o *corev1.PersistentVolume) kind {
	spec, status := o.Spec.SwaggerDoc(), o.Status.SwaggerDoc()
	capacity, claimed := o.Spec.Capacity[corev1.ResourceStorage], ""
	if ref := o.Spec.ClaimRef; ref != nil {
		claimed = ref.Namespace + "/" + ref.Name
	}
	class := cmp.Or(o.Annotations[corev1.BetaStorageClassAnnotation], o.Spec.StorageClassName)
	return kind{
		columns(
			text("Capacity", spec["capacity"]), text("Access Modes", spec["accessModes"]), text("Reclaim Policy", spec["persistentVolumeReclaimPolicy"]),
			text("Status", status["phase"]), text("Claim", spec["claimRef"]), text("StorageClass", "StorageClass of the pv"),
			text("VolumeAttributesClass", "VolumeAttributesClass of the pv"), text("Reason", status["reason"]), age(), wide("VolumeMode", spec["volumeMode"]),
		),
		[]any{
			o.Name, capacity.String(), modes(o.Spec.AccessModes), string(o.Spec.PersistentVolumeReclaimPolicy), phase(o, o.Status.Phase), claimed, class,
			value(o.Spec.VolumeAttributesClassName, "<unset>"), o.Status.Reason, since(o.CreationTimestamp), value(o.Spec.VolumeMode, string(corev1.PersistentVolumeFilesystem)),
		},
	}
}

func claim(o *corev1.PersistentVolumeClaim) kind {
	spec, status := o.Spec.SwaggerDoc(), o.Status.SwaggerDoc()
	capacity, access := "", ""
	if o.Spec.VolumeName != "" {
		bound := o.Status.Capacity[corev1.ResourceStorage]
		capacity, access = bound.String(), modes(o.Status.AccessModes)
	}
	class := cmp.Or(o.Annotations[corev1.BetaStorageClassAnnotation], value(o.Spec.StorageClassName, ""))
	return kind{
		columns(
			text("Status", status["phase"]), text("Volume", spec["volumeName"]), text("Capacity", status["capacity"]), text("Access Modes", status["accessModes"]),
			text("StorageClass", "StorageClass of the pvc"), text("VolumeAttributesClass", "VolumeAttributesClass of the pvc"), age(), wide("VolumeMode", spec["volumeMode"]),
		),
		[]any{
			o.Name, phase(o, o.Status.Phase), o.Spec.VolumeName, capacity, access, class,
			value(o.Spec.VolumeAttributesClassName, "<unset>"), since(o.CreationTimestamp), value(o.Spec.VolumeMode, string(corev1.PersistentVolumeFilesystem)),
		},
	}
}

// phase is Pending on the real server from the start.
func phase[T ~string](o metav1.Object, now T) string {
	if o.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	return cmp.Or(string(now), "Pending")
}

// modes is GetAccessModesAsString of Kubernetes' pkg/apis/core/v1/helper.
func modes(given []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(given, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}

func storageClass(o *storagev1.StorageClass) kind {
	docs := o.SwaggerDoc()
	return kind{
		columns(
			text("Provisioner", docs["provisioner"]), text("ReclaimPolicy", docs["reclaimPolicy"]), text("VolumeBindingMode", docs["volumeBindingMode"]),
			text("AllowVolumeExpansion", docs["allowVolumeExpansion"]), age(),
		),
		[]any{
			o.Name, o.Provisioner, value(o.ReclaimPolicy, string(corev1.PersistentVolumeReclaimDelete)),
			value(o.VolumeBindingMode, string(storagev1.VolumeBindingImmediate)), o.AllowVolumeExpansion != nil && *o.AllowVolumeExpansion, since(o.CreationTimestamp),
		},
	}
}

// effectiveDefault is the class of new claims: of those marked as default the newest, then
// the first by name.
func effectiveDefault(objects []runtime.Object) *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, obj := range objects {
		o, ok := obj.(*storagev1.StorageClass)
		if !ok {
			return nil
		}
		if o.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" && o.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if found == nil || cmp.Or(o.CreationTimestamp.Compare(found.CreationTimestamp.Time), strings.Compare(found.Name, o.Name)) > 0 {
			found = o
		}
	}
	return found
}

func attachment(o *storagev1.VolumeAttachment) kind {
	spec := o.Spec.SwaggerDoc()
	attacher := text("Attacher", spec["attacher"])
	attacher.Format = "name"
	attached := text("Attached", o.Status.SwaggerDoc()["attached"])
	attached.Type = "boolean"
	return kind{
		columns(attacher, text("PV", o.Spec.Source.SwaggerDoc()["persistentVolumeName"]), text("Node", spec["nodeName"]), attached, age()),
		[]any{o.Name, o.Spec.Attacher, value(o.Spec.Source.PersistentVolumeName, ""), o.Spec.NodeName, o.Status.Attached, since(o.CreationTimestamp)},
	}
}

func csiNode(o *storagev1.CSINode) kind {
	return kind{
		columns(integer("Drivers", "Drivers indicates the number of CSI drivers registered on the node"), age()),
		[]any{o.Name, int64(len(o.Spec.Drivers)), since(o.CreationTimestamp)},
	}
}
