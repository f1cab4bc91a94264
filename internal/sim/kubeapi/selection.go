package kubeapi

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// selection is the filter of a list, watch or deletecollection. As on the real server an unsupported field
// is an error: ignoring it would match everything.
func (s *Server) selection(r *http.Request, t target) (func(store.Object) bool, error) {
	q := r.URL.Query()
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	byField, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("fieldSelector: " + err.Error())
	}
	empty, err := s.newObject(t.resource.GVK())
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", t.resource.Kind, err)
	}
	prototype := selectable(empty.(store.Object))
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
	case *corev1.Node:
		set["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
	case *corev1.Namespace:
		set["status.phase"] = string(o.Status.Phase)
	case *corev1.Secret:
		set["type"] = string(o.Type)
	case *corev1.Event:
		selectEvent(set, o)
	case *certificatesv1.CertificateSigningRequest:
		set["spec.signerName"] = o.Spec.SignerName
	}
	return set
}

// selectEvent is ToSelectableFields of Kubernetes' registry/core/event.
func selectEvent(set fields.Set, o *corev1.Event) {
	about := o.InvolvedObject
	set["involvedObject.kind"] = about.Kind
	set["involvedObject.namespace"] = about.Namespace
	set["involvedObject.name"] = about.Name
	set["involvedObject.uid"] = string(about.UID)
	set["involvedObject.apiVersion"] = about.APIVersion
	set["involvedObject.resourceVersion"] = about.ResourceVersion
	set["involvedObject.fieldPath"] = about.FieldPath
	set["reason"] = o.Reason
	set["reportingComponent"] = o.ReportingController
	set["source"] = cmp.Or(o.Source.Component, o.ReportingController)
	set["type"] = o.Type
}
