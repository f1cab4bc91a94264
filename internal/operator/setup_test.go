package operator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
)

// TestCached: the cache has what the reconcilers read, and little else.
func TestCached(t *testing.T) {
	t.Parallel()
	kept := metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7", Annotations: map[string]string{"recast.dev/talos-target": "v1.13.9"}}
	full := kept.DeepCopy()
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	status := batchv1.JobStatus{Active: 1}
	options := Cached()
	byKind := func(o client.Object) cache.ByObject {
		for known, by := range options.ByObject {
			if cmp.Equal(known, o) {
				return by
			}
		}
		t.Fatalf("nothing is said of %T", o)
		return cache.ByObject{}
	}
	for name, c := range map[string]struct {
		strip      func(any) (any, error)
		full, kept client.Object
	}{
		"cluster": {options.DefaultTransform, &v1alpha1.TalosCluster{ObjectMeta: *full.DeepCopy()}, &v1alpha1.TalosCluster{ObjectMeta: kept}},
		"job": {
			byKind(&batchv1.Job{}).Transform,
			&batchv1.Job{ObjectMeta: *full.DeepCopy(), Spec: batchv1.JobSpec{Parallelism: new(int32(1))}, Status: status}, &batchv1.Job{ObjectMeta: kept, Status: status},
		},
		"ConfigMap": {
			byKind(&corev1.ConfigMap{}).Transform,
			&metav1.PartialObjectMetadata{ObjectMeta: *full.DeepCopy()},
			&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7"}},
		},
	} {
		got, err := c.strip(c.full)
		if diff := cmp.Diff(any(c.kept), got); diff != "" || err != nil {
			t.Errorf("%s (-want +got): %v\n%s", name, err, diff)
		}
	}
	made := job.New(job.Spec{Cluster: &v1alpha1.TalosCluster{ObjectMeta: kept}, Task: attempt.Task{Kind: attempt.Check}})
	if !byKind(&batchv1.Job{}).Label.Matches(labels.Set(made.Labels)) {
		t.Errorf("a Job with %v is not cached", made.Labels)
	}
}
