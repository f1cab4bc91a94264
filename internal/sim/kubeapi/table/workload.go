package table

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

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
