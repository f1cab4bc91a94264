package kubeapi

import (
	"fmt"
	"net/http"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// selection is the filter of a list, watch or deletecollection. As on the real server an unsupported field
// is an error: ignoring it would match everything.
func selection(r *http.Request, t target) (func(store.Object) bool, error) {
	q := r.URL.Query()
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	byField, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("fieldSelector: " + err.Error())
	}
	prototype := selectable(&corev1.Namespace{})
	switch t.resource.GroupVersionResource {
	case store.Pods():
		prototype = selectable(&corev1.Pod{})
	case store.CertificateRequests():
		prototype = selectable(&certificatesv1.CertificateSigningRequest{})
	}
	for _, requirement := range byField.Requirements() {
		if !prototype.Has(requirement.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", requirement.Field))
		}
	}
	return func(o store.Object) bool {
		switch {
		case t.namespace != "" && o.GetNamespace() != t.namespace, t.name != "" && o.GetName() != t.name:
			return false
		}
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(selectable(o))
	}, nil
}

func selectable(o store.Object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Pod:
		set["spec.nodeName"] = o.Spec.NodeName
		set["spec.schedulerName"] = o.Spec.SchedulerName
		set["spec.restartPolicy"] = string(o.Spec.RestartPolicy)
		set["status.phase"] = string(o.Status.Phase)
		set["status.podIP"] = o.Status.PodIP
	case *certificatesv1.CertificateSigningRequest:
		set["spec.signerName"] = o.Spec.SignerName
	}
	return set
}
