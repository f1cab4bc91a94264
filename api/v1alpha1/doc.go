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
