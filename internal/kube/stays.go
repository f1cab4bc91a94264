package kube

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stays says what a pod is that a drain leaves on its node, in a word; "" for one
// that it does not leave, or that has ended.
func stays(p *corev1.Pod) string {
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

// ofDaemonSet says whether a pod is that of one of Kubernetes' own.
func ofDaemonSet(p *corev1.Pod) bool {
	kind, group := controllerOf(p)
	return kind == "DaemonSet" && group == appsv1.GroupName
}

// ofForeignDaemonSet says whether a pod is that of somebody else's kind of the
// same name, such as OpenKruise's: it too is made again wherever it ends, cordon
// or not.
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
