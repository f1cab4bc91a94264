package operator

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/internal/operator/job"
)

// Cached says what the operator keeps in memory, as little as it needs: of Jobs only those that it has made, without
// their pods' templates, and of ConfigMaps only their versions. Secrets and pods are not cached at all.
func Cached() cache.Options {
	return cache.Options{
		DefaultTransform: strip,
		ByObject: map[client.Object]cache.ByObject{
			&batchv1.Job{}:      {Label: labels.SelectorFromSet(job.Made()), Transform: stripJob},
			&corev1.ConfigMap{}: {Transform: stripConfigMap},
		},
	}
}

// strip removes from an object what says only who has written it, and kubectl's copy of it.
func strip(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone has no metadata
	}
	m.SetManagedFields(nil)
	if a := m.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
	}
	return o, nil
}

// stripJob leaves how a Job is doing.
func stripJob(o any) (any, error) {
	if j, ok := o.(*batchv1.Job); ok {
		j.Spec = batchv1.JobSpec{}
	}
	return strip(o)
}

// stripConfigMap leaves the name and the version of a ConfigMap. There are many that are not recast's.
func stripConfigMap(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil
	}
	return strip(o)
}
