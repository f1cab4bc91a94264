package table

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

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
