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
