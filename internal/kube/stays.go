package kube

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stayingKind returns the kind of a pod that a drain leaves on its node, in a word; "" for
// one that it evicts, or that has ended.
func stayingKind(p *corev1.Pod) string {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case finished(p):
		return ""
	case mirror:
		return "static"
	case ofDaemonSet(p) || ofForeignDaemonSet(p):
		return "DaemonSet"
	}
	return ""
}

// ofDaemonSet reports whether a pod belongs to a DaemonSet of Kubernetes itself.
func ofDaemonSet(p *corev1.Pod) bool {
	kind, group := controllerOf(p)
	return kind == "DaemonSet" && group == appsv1.GroupName
}

// ofForeignDaemonSet reports whether a pod belongs to another kind of that name,
// such as OpenKruise's: it, too, is recreated on its node, cordoned or not.
func ofForeignDaemonSet(p *corev1.Pod) bool {
	kind, group := controllerOf(p)
	return kind == "DaemonSet" && group != appsv1.GroupName
}

func controllerOf(p *corev1.Pod) (kind, group string) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return "", ""
	}
	return ref.Kind, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).Group
}
