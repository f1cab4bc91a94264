package kubernetes

import (
	"bytes"
	"os"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

// kinds are the API resources of examples/kubernetes/drift-cronjob.yaml.
var kinds = map[string]schema.GroupVersionResource{
	"Namespace":          {Version: "v1", Resource: "namespaces"},
	"ServiceAccount":     {Version: "v1", Resource: "serviceaccounts"},
	"ConfigMap":          {Version: "v1", Resource: "configmaps"},
	"ClusterRole":        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"CronJob":            {Group: "batch", Version: "v1", Resource: "cronjobs"},
	"NetworkPolicy":      {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
}

// TestNightlyManifests applies the nightly check's manifests to a real API server, with
// strict field validation, creates the resulting pod in a namespace with restricted pods,
// and checks the permissions of the pod's account.
func TestNightlyManifests(t *testing.T) {
	p := plane.Start(t)
	job := apply(t, p, "../../../examples/kubernetes/drift-cronjob.yaml")
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}}
	run := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "now", Namespace: job.Namespace}, Spec: job.Spec.JobTemplate.Spec}
	if _, err := p.Client.BatchV1().Jobs(job.Namespace).Create(t.Context(), run, options); err != nil {
		t.Errorf("a Job of it: %v", err)
	}
	template := job.Spec.JobTemplate.Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "now", Namespace: job.Namespace, Labels: template.Labels}, Spec: template.Spec}
	if _, err := p.Client.CoreV1().Pods(job.Namespace).Create(t.Context(), pod, options); err != nil {
		t.Errorf("a pod of it: %v", err)
	}
	account := "system:serviceaccount:" + job.Namespace + ":" + template.Spec.ServiceAccountName
	for _, c := range []struct {
		verb, resource string
		may            bool
	}{
		{"list", "nodes", true},
		{"get", "nodes", false},
		{"patch", "nodes", false},
		{"list", "pods", false},
		{"get", "secrets", false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: c.verb, Resource: c.resource},
		}}
		got, err := p.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || got.Status.Allowed != c.may {
			t.Errorf("%s may %s %s: %t, %v", account, c.verb, c.resource, got.Status.Allowed, err)
		}
	}
}

// apply creates everything in a file of manifests, and returns the CronJob.
func apply(t *testing.T, p *plane.ControlPlane, file string) (job batchv1.CronJob) {
	t.Helper()
	text := must(os.ReadFile(file))(t)
	client := must(dynamic.NewForConfig(p.Admin))(t)
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var object unstructured.Unstructured
		mustDo(t, yaml.Unmarshal(doc, &object.Object))
		made, err := client.Resource(kinds[object.GetKind()]).Namespace(object.GetNamespace()).
			Create(t.Context(), &object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		if object.GetKind() == "CronJob" {
			mustDo(t, runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, &job))
		}
	}
	return job
}
