// Package v1alpha1 has the Kubernetes objects of recast-operator: a TalosCluster says where
// the files of a cluster are and when it may be changed, an ImageRoll is one roll of it, and a
// FleetRoll rolls many clusters, stage by stage.
//
// The conditions follow Kubernetes' API conventions. An object is Ready when it is as it
// should be, Progressing while something runs or waits for its turn, and Stalled when nothing
// happens until a person does something; a TalosCluster is also Drifted or not.
//
// +kubebuilder:object:generate=true
// +groupName=recast.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is what apiVersion says of these objects.
var GroupVersion = schema.GroupVersion{Group: "recast.dev", Version: "v1alpha1"}

// AddToScheme makes the objects known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&TalosCluster{}, &TalosClusterList{},
		&ImageRoll{}, &ImageRollList{},
		&FleetRoll{}, &FleetRollList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
