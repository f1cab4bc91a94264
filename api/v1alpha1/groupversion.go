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

// Types of conditions.
const (
	// ConditionReady: the cluster runs exactly what its files say; the roll is done.
	ConditionReady = "Ready"
	// ConditionProgressing: something runs, or waits for its turn.
	ConditionProgressing = "Progressing"
	// ConditionStalled: nothing happens until a person does what the message says.
	ConditionStalled = "Stalled"
	// ConditionDrifted: a node does not run what the files say. Only of a TalosCluster.
	ConditionDrifted = "Drifted"
)

// Reasons of conditions. Programs may rely on them; messages are for people.
const (
	ReasonInSync            = "InSync"            // every node runs what the files say
	ReasonDrifted           = "Drifted"           // some node does not
	ReasonUnread            = "Unread"            // some node could not be read
	ReasonChecking          = "Checking"          // a first check, or one after a change, runs
	ReasonRolling           = "Rolling"           // an ImageRoll of the cluster is not done
	ReasonSuspended         = "Suspended"         // spec.suspend
	ReasonInvalidSpec       = "InvalidSpec"       // a field of the spec can't be used; the message names it
	ReasonConfiguration     = "Configuration"     // recast ended with 3: the files or a Secret
	ReasonRefused           = "Refused"           // recast ended with 4: unsafe
	ReasonCheckFailed       = "CheckFailed"       // recast could not read the cluster
	ReasonRollFailed        = "RollFailed"        // the newest ImageRoll is stalled
	ReasonPlanning          = "Planning"          // recast plan runs
	ReasonAwaitingApproval  = "AwaitingApproval"  // spec.approved is not true
	ReasonAwaitingWindow    = "AwaitingWindow"    // no maintenance window is open
	ReasonAwaitingTurn      = "AwaitingTurn"      // another ImageRoll of the cluster comes first
	ReasonAwaitingClaim     = "AwaitingClaim"     // recast ended with 5: another run holds the claim
	ReasonRetrying          = "Retrying"          // an attempt failed, the next one comes
	ReasonSucceeded         = "Succeeded"         // the roll is done
	ReasonNothingToDo       = "NothingToDo"       // the plan was empty
	ReasonRetriesExhausted  = "RetriesExhausted"  // spec.retries attempts in a row finished no node
	ReasonPlanRefused       = "PlanRefused"       // the plan has nodes that can't be rolled
	ReasonClusterNotFound   = "ClusterNotFound"   // spec.clusterName names no TalosCluster
	ReasonStageFailed       = "AbortThreshold"    // as many rolls of a fleet failed as spec.abortThreshold allows
	ReasonAborted           = "Aborted"           // spec.state
	ReasonPaused            = "Paused"            // spec.state
	ReasonSoaking           = "Soaking"           // a stage is done, and watched for its soak time
	ReasonGateClosed        = "GateClosed"        // a condition between two stages does not hold yet
	ReasonNoMembers         = "NoMembers"         // no TalosCluster matches
	ReasonTerminating       = "Terminating"       // a deleted object whose Job ends first
	ReasonSourceUnavailable = "SourceUnavailable" // the ConfigMap of the files is missing
)

// Annotations of a TalosCluster, for tools that know no custom fields. Those that end in
// -target are set by people, and win over the spec; all others are written by the operator.
const (
	AnnotationTalosTarget    = "recast.dev/talos-target"    // version; remove it to retry after a failure
	AnnotationTalosCurrent   = "recast.dev/talos-current"   // the oldest version that a node runs
	AnnotationTalosAvailable = "recast.dev/talos-available" // the newest version that the Image Factory builds, if newer
	AnnotationTalosStatus    = "recast.dev/talos-status"    // idle, in-progress, completed, failed
	AnnotationTalosMessage   = "recast.dev/talos-message"
	AnnotationTalosProgress  = "recast.dev/talos-progress" // "2/5" nodes

	AnnotationKubernetesTarget    = "recast.dev/kubernetes-target"
	AnnotationKubernetesCurrent   = "recast.dev/kubernetes-current"
	AnnotationKubernetesAvailable = "recast.dev/kubernetes-available" // the newest one that every node's Talos supports, if newer
	AnnotationKubernetesStatus    = "recast.dev/kubernetes-status"    // those of talos-status, and blocked
	AnnotationKubernetesMessage   = "recast.dev/kubernetes-message"

	// AnnotationCheckRequested asks for a check when its value changes, for example to the
	// current time: a pipeline sets it after a push.
	AnnotationCheckRequested = "recast.dev/check-requested"
)

// LabelCluster is on all that the operator makes for a TalosCluster; its value is the name.
const LabelCluster = "recast.dev/cluster"

// LabelRoll is on all that the operator makes for an ImageRoll.
const LabelRoll = "recast.dev/roll"

// LabelFleet is on the ImageRolls of a FleetRoll.
const LabelFleet = "recast.dev/fleet"

// Finalizer keeps an object until its Job has ended. Nothing is undone and no VM is deleted.
const Finalizer = "recast.dev/job-ended"
