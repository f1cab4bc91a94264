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
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// ImageRoll is one roll of a TalosCluster: its plan, its approval, its attempts and its report.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ir,categories=recast
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterName`
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.action`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Approved",type=boolean,JSONPath=`.spec.approved`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress.summary`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.progress.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 50",message="name: at most 50 characters, so that the names of its Jobs fit"
type ImageRoll struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ImageRollSpec   `json:"spec"`
	Status ImageRollStatus `json:"status,omitempty"`
}

// ImageRollList is a list of ImageRolls.
//
// +kubebuilder:object:root=true
type ImageRollList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ImageRoll `json:"items"`
}

// ImageRollSpec says what to roll.
//
// +kubebuilder:validation:XValidation:rule="self.clusterName == oldSelf.clusterName && self.action == oldSelf.action && has(self.only) == has(oldSelf.only) && (!has(self.only) || self.only == oldSelf.only)",message="clusterName, action and only: can't be changed, make another ImageRoll"
type ImageRollSpec struct {
	// Name of a TalosCluster of the same namespace.
	// +kubebuilder:validation:MinLength=1
	ClusterName string `json:"clusterName"`
	// Nodes: bring every stale node to the lock. Kubernetes: recast upgrade-k8s.
	// +kubebuilder:default=Nodes
	// +kubebuilder:validation:Enum=Nodes;Kubernetes
	Action RollAction `json:"action,omitempty"`
	// The roll begins only when this is true. It means the plan in the status: that plan is carried out or nothing.
	Approved bool `json:"approved,omitempty"`
	// Starts no attempt. One that runs, runs to its end.
	Suspend bool `json:"suspend,omitempty"`
	// Only these nodes. Default: all that are stale.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Only []string `json:"only,omitempty"`
}

// RollAction is what an ImageRoll does.
type RollAction string

// The values of RollAction.
const (
	ActionNodes      RollAction = "Nodes"
	ActionKubernetes RollAction = "Kubernetes"
)

// RollPhase is how far an ImageRoll is.
//
// +kubebuilder:validation:Enum=Pending;Planning;AwaitingApproval;AwaitingWindow;AwaitingClaim;Rolling;Retrying;Succeeded;Failed
type RollPhase string

// The values of RollPhase.
const (
	PhasePending          RollPhase = "Pending"
	PhasePlanning         RollPhase = "Planning"
	PhaseAwaitingApproval RollPhase = "AwaitingApproval"
	PhaseAwaitingWindow   RollPhase = "AwaitingWindow"
	PhaseAwaitingClaim    RollPhase = "AwaitingClaim"
	PhaseRolling          RollPhase = "Rolling"
	PhaseRetrying         RollPhase = "Retrying"
	PhaseSucceeded        RollPhase = "Succeeded"
	PhaseFailed           RollPhase = "Failed"
)

// Finished says whether nothing more happens.
func (p RollPhase) Finished() bool { return p == PhaseSucceeded || p == PhaseFailed }

// ImageRollStatus is how far a roll is.
type ImageRollStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Phase      RollPhase          `json:"phase,omitempty"`

	// The plan, once it is made. Its Job writes it.
	Plan *Plan `json:"plan,omitempty"`
	// What the running attempt does. Its Job writes it.
	Progress *Progress `json:"progress,omitempty"`
	// The outcome of each attempt's program. Its Job writes it.
	Outcome *Outcome `json:"outcome,omitempty"`
	// Planning and attempts so far, the oldest first; the oldest go first when there are more than 20.
	// +listType=atomic
	Attempts []Attempt `json:"attempts,omitempty"`
	// Attempts that were begun, with those that are no longer listed.
	Begun int32 `json:"begun,omitempty"`
	// The newest Job that was really made: if that is gone, someone has deleted it.
	MadeJob string `json:"madeJob,omitempty"`
	// Attempts in a row that finished no node.
	Failures int32 `json:"failures,omitempty"`
	// Attempts that ended since another run held the claim.
	ClaimWaits int32 `json:"claimWaits,omitempty"`
	// Not before then is the next attempt begun.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	Started   *metav1.Time `json:"started,omitempty"`
	Ended     *metav1.Time `json:"ended,omitempty"`
}

// Plan is a plan in a few words.
type Plan struct {
	// The plan's hash. Approval means this one.
	Hash string `json:"hash"`
	// ConfigMap that has it as plan.json, and the files that it is of.
	ConfigMap string `json:"configMap"`
	// SHA-256 of plan.json and of those files, recast.lock among them. A roll runs them as they were then, or not at all.
	Contents string `json:"contents,omitempty"`
	// Commit, digest or hash of the files.
	Revision string `json:"revision,omitempty"`
	// Nodes that are rolled.
	Nodes int32 `json:"nodes"`
	// A line for each node: "wk1: recreate, about 2m40s away: extension iscsi-tools …".
	// +listType=atomic
	Lines []string `json:"lines,omitempty"`
	// Why nodes can't be rolled. Such a plan is not carried out.
	// +listType=atomic
	Refused []string `json:"refused,omitempty"`
	// The plan only finishes what an earlier run left unfinished. The next ImageRoll does the rest.
	Unfinished bool `json:"unfinished,omitempty"`
	// The node that is taken last: a good place for the Job of a cluster that rolls itself.
	LastNode string `json:"lastNode,omitempty"`
}

// Progress is what a running attempt does.
type Progress struct {
	// Nodes that are done, by this attempt and earlier ones, of those of the plan.
	Done  int32 `json:"done"`
	Total int32 `json:"total"`
	// "2/5"
	Summary string `json:"summary"`
	// The nodes that are done.
	// +listType=atomic
	Finished []string `json:"finished,omitempty"`
	Node     string   `json:"node,omitempty"`
	// The step, and what it waits for.
	Message string       `json:"message,omitempty"`
	Updated *metav1.Time `json:"updated,omitempty"`
}

// Outcome is how an attempt's program ended.
type Outcome struct {
	// Name of the Job.
	Job      string `json:"job"`
	ExitCode int32  `json:"exitCode"`
	// recast's run ID.
	Run string `json:"run,omitempty"`
	// "done", "failed: …"
	Message string `json:"message,omitempty"`
	// ConfigMap that has the report.
	Report string `json:"report,omitempty"`
}

// Attempt is one Job.
type Attempt struct {
	// Name of the Job.
	Job     string       `json:"job"`
	Started *metav1.Time `json:"started,omitempty"`
	Ended   *metav1.Time `json:"ended,omitempty"`
	// Exit code of its container; none if it is not known, as when its node was lost.
	ExitCode *int32 `json:"exitCode,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Nodes that were done when it ended.
	Done int32 `json:"done,omitempty"`
}

// FleetRoll rolls many TalosClusters, one stage after the other.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=fr,categories=recast
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.stage`
// +kubebuilder:printcolumn:name="Done",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 30",message="name: at most 30 characters, so that the names of its ImageRolls fit"
type FleetRoll struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FleetRollSpec   `json:"spec"`
	Status FleetRollStatus `json:"status,omitempty"`
}

// FleetRollList is a list of FleetRolls.
//
// +kubebuilder:object:root=true
type FleetRollList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FleetRoll `json:"items"`
}

// FleetRollSpec says which clusters, in which order, and how many at a time.
type FleetRollSpec struct {
	// One after the other. A cluster belongs to the first stage that it matches. Who they are is
	// settled when the FleetRoll begins: clusters that come later belong to the next one.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	Stages []Stage `json:"stages"`
	// Clusters that are rolled at a time, of the whole fleet.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
	// Clusters that are rolled at a time, of those that have the same value of siteLabel.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrentPerSite int32 `json:"maxConcurrentPerSite,omitempty"`
	// Label of the TalosClusters that says where they are. Those without it are a site of their own, together.
	// +kubebuilder:default="topology.kubernetes.io/region"
	// +kubebuilder:validation:MaxLength=317
	SiteLabel string `json:"siteLabel,omitempty"`
	// So many failed clusters stop the fleet: nothing more begins. What runs, runs to its end.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	AbortThreshold int32 `json:"abortThreshold,omitempty"`
	// Paused begins nothing until it is Running again; Aborted for ever. What runs, runs to its end.
	// +kubebuilder:default=Running
	// +kubebuilder:validation:Enum=Running;Paused;Aborted
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'Aborted' || self == 'Aborted'",message="state: an aborted FleetRoll can't be resumed, make another one"
	State FleetState `json:"state,omitempty"`
	// Sets the annotation recast.dev/talos-target of each cluster when its turn comes. They need lock: Update.
	// +kubebuilder:validation:Pattern=`^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$`
	TalosVersion string `json:"talosVersion,omitempty"`
	// Names of stages whose approval is Manual and that may begin.
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	ApprovedStages []string `json:"approvedStages,omitempty"`
}

// FleetState is what a person wants of a FleetRoll.
type FleetState string

// The values of FleetState.
const (
	FleetRunning FleetState = "Running"
	FleetPaused  FleetState = "Paused"
	FleetAborted FleetState = "Aborted"
)

// Stage is a part of a fleet.
type Stage struct {
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`
	// Which TalosClusters of the namespace. An empty one matches all that are left.
	Selector metav1.LabelSelector `json:"selector"`
	// Clusters that are rolled at a time in this stage. Default: what the whole fleet may.
	// +kubebuilder:validation:Minimum=1
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
	// How long the stage is watched when its last cluster is done, before the next one begins.
	Soak metav1.Duration `json:"soak,omitempty"`
	// Manual: the stage begins when approvedStages names it.
	// +kubebuilder:default=Automatic
	// +kubebuilder:validation:Enum=Manual;Automatic
	Approval string `json:"approval,omitempty"`
	// CEL expressions that must be true of every cluster of the stage before the next one begins, besides that no node
	// is stale or unread. The variable cluster is the TalosCluster: cluster.status.nodes.total >= 3
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Gates []string `json:"gates,omitempty"`
}

// FleetRollStatus is how far a fleet is.
type FleetRollStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The stage that runs.
	Stage string `json:"stage,omitempty"`
	// "12/100"
	Summary string `json:"summary,omitempty"`
	Done    int32  `json:"done,omitempty"`
	Failed  int32  `json:"failed,omitempty"`
	Running int32  `json:"running,omitempty"`
	// The clusters, as settled at the begin.
	// +listType=map
	// +listMapKey=cluster
	Members []Member     `json:"members,omitempty"`
	Started *metav1.Time `json:"started,omitempty"`
	Ended   *metav1.Time `json:"ended,omitempty"`
}

// Member is a cluster of a fleet.
type Member struct {
	Cluster string `json:"cluster"`
	Stage   string `json:"stage"`
	Site    string `json:"site,omitempty"`
	// +kubebuilder:default=Waiting
	Phase MemberPhase `json:"phase,omitempty"`
	// Its ImageRoll.
	Roll  string       `json:"roll,omitempty"`
	Ended *metav1.Time `json:"ended,omitempty"`
}

// MemberPhase is how far a cluster of a fleet is.
//
// +kubebuilder:validation:Enum=Waiting;Running;Done;Failed
type MemberPhase string

// The values of MemberPhase.
const (
	MemberWaiting MemberPhase = "Waiting"
	MemberRunning MemberPhase = "Running"
	MemberDone    MemberPhase = "Done"
	MemberFailed  MemberPhase = "Failed"
)

// TalosCluster is a Talos Linux cluster on Proxmox VE that recast keeps at its lock.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tc,categories=recast
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Talos",type=string,JSONPath=`.status.talos.current`
// +kubebuilder:printcolumn:name="Wanted",type=string,JSONPath=`.status.talos.wanted`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes.total`
// +kubebuilder:printcolumn:name="Stale",type=integer,JSONPath=`.status.nodes.stale`
// +kubebuilder:printcolumn:name="Unread",type=integer,JSONPath=`.status.nodes.unread`,priority=1
// +kubebuilder:printcolumn:name="Roll",type=string,JSONPath=`.status.roll.name`
// +kubebuilder:printcolumn:name="Checked",type=date,JSONPath=`.status.check.ended`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40",message="name: at most 40 characters, so that the names of its Jobs fit"
type TalosCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   TalosClusterSpec   `json:"spec"`
	Status TalosClusterStatus `json:"status,omitempty"`
}

// TalosClusterList is a list of TalosClusters.
//
// +kubebuilder:object:root=true
type TalosClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TalosCluster `json:"items"`
}

// TalosClusterSpec says where the files of a cluster are, and when it may be changed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.talosVersion) || self.lock == 'Update'",message="talosVersion: needs lock: Update, since recast.lock in the source is of another version"
type TalosClusterSpec struct {
	// Where recast.yaml, recast.lock and the schematics come from.
	Source Source `json:"source"`

	// The Secrets that recast needs. Only its Jobs read them, the operator never does.
	Secrets Secrets `json:"secrets"`

	// Replaces talos.version of recast.yaml. The annotation recast.dev/talos-target wins over it.
	// +kubebuilder:validation:Pattern=`^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$`
	TalosVersion string `json:"talosVersion,omitempty"`

	// Replaces kubernetes.version of recast.yaml. The annotation recast.dev/kubernetes-target wins over it.
	// +kubebuilder:validation:Pattern=`^v?[0-9]+\.[0-9]+\.[0-9]+$`
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`

	// Source: recast.lock is in the source and must fit recast.yaml. Update: recast locks by itself
	// whenever the lock does not fit, and the operator keeps the result.
	// +kubebuilder:default=Source
	// +kubebuilder:validation:Enum=Source;Update
	Lock LockPolicy `json:"lock,omitempty"`

	// When every node is compared with the files, besides when those change.
	// +kubebuilder:default={schedule: "17 * * * *"}
	Drift DriftSchedule `json:"drift,omitempty"`

	// What is done about drift.
	// +kubebuilder:default={}
	Rolls RollPolicy `json:"rolls,omitempty"`

	// When a roll may begin. Without any, always. One that has begun goes on after the window has closed,
	// and so do its further attempts.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Windows []Window `json:"windows,omitempty"`

	// Starts nothing for this cluster: no check, no roll. What runs already runs to its end.
	Suspend bool `json:"suspend,omitempty"`

	// Settings of the Jobs.
	// +kubebuilder:default={}
	Job JobSettings `json:"job,omitempty"`
}

// LockPolicy says where recast.lock comes from.
type LockPolicy string

// The values of LockPolicy.
const (
	LockFromSource LockPolicy = "Source"
	LockUpdate     LockPolicy = "Update"
)

// DriftSchedule says when to check.
type DriftSchedule struct {
	// Cron expression with five fields. Empty: only when the files change.
	// +optional
	// +kubebuilder:default="17 * * * *"
	// +kubebuilder:validation:MaxLength=100
	Schedule string `json:"schedule"`
	// IANA name, Europe/Oslo. Default: UTC.
	// +kubebuilder:validation:MaxLength=100
	TimeZone string `json:"timeZone,omitempty"`
}

// RollPolicy says what is done about drift.
type RollPolicy struct {
	// Automatic: an ImageRoll is made when a check finds drift. Never: only people, pipelines and FleetRolls make them.
	// +kubebuilder:default=Automatic
	// +kubebuilder:validation:Enum=Automatic;Never
	Create string `json:"create,omitempty"`
	// Manual: a person sets approved: true on the ImageRoll when they have read its plan. Automatic: it begins by itself.
	// +kubebuilder:default=Manual
	// +kubebuilder:validation:Enum=Manual;Automatic
	Approval string `json:"approval,omitempty"`
	// Attempts in a row that may fail without finishing a node. An attempt goes on where the last one stopped.
	// +kubebuilder:default=6
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	Retries int32 `json:"retries,omitempty"`
	// With two control planes: accept that etcd and the Kubernetes API are down during the roll.
	AcceptOutage bool `json:"acceptOutage,omitempty"`
	// Finished ImageRolls that are kept.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Keep int32 `json:"keep,omitempty"`
}

// The values of RollPolicy.
const (
	CreateAutomatic   = "Automatic"
	CreateNever       = "Never"
	ApprovalManual    = "Manual"
	ApprovalAutomatic = "Automatic"
)

// Window is a maintenance window: it opens at each time of the schedule and closes after the duration.
type Window struct {
	// Cron expression with five fields: "0 22 * * 6" is every Saturday at 22:00.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	Schedule string `json:"schedule"`
	// How long it is open: 4h, 90m.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="duration: between 1m and 168h"
	Duration metav1.Duration `json:"duration"`
	// IANA name, Europe/Oslo. Default: UTC.
	// +kubebuilder:validation:MaxLength=100
	TimeZone string `json:"timeZone,omitempty"`
}

// JobSettings are settings of the Jobs of a cluster.
type JobSettings struct {
	// Image of recast. Default: that of the operator. The policy recast-operator-jobs lists which others are allowed.
	Image            string                        `json:"image,omitempty"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Default: 50m CPU and 128Mi memory requested, 1Gi memory as limit. Images are unpacked on disk, not in memory.
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// Default: nodes with the label that the operator's --job-node-label names, which is that of control planes.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PersistentVolumeClaim for etcd snapshots. Without one they go with the Job's pod.
	BackupClaim string `json:"backupClaim,omitempty"`
	// Seconds that a roll has for the nodes in progress when its pod is deleted.
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=86400
	TerminationGracePeriodSeconds int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// ConfigMap with ca.crt: certificates of authorities that the Job's programs trust, besides those of the image.
	TrustBundle string `json:"trustBundle,omitempty"`
}

// TalosClusterStatus is what is known of a cluster.
type TalosClusterStatus struct {
	// The generation of the spec that this status is of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// The newest check, as its Job has reported it.
	Check *Check `json:"check,omitempty"`
	// Checks that were begun, ever: the next one has this number.
	Checks int64 `json:"checks,omitempty"`
	// ImageRolls that the operator has made, ever.
	Rolls int64 `json:"rolls,omitempty"`

	// The newest ImageRoll that was really made.
	MadeRoll string `json:"madeRoll,omitempty"`

	Nodes      *Nodes    `json:"nodes,omitempty"`
	Talos      *Versions `json:"talos,omitempty"`
	Kubernetes *Versions `json:"kubernetes,omitempty"`
	// The build of each schematic that the lock has.
	// +listType=map
	// +listMapKey=schematic
	Builds []Build `json:"builds,omitempty"`
	// The newest ImageRoll.
	Roll *RollSummary `json:"roll,omitempty"`
	// When the next maintenance window opens, if there are windows and none is open.
	NextWindow *metav1.Time `json:"nextWindow,omitempty"`
	// What the newest check was begun for.
	CheckFor string `json:"checkFor,omitempty"`
	// When a check last found every node in sync.
	LastInSync *metav1.Time `json:"lastInSync,omitempty"`
}

// Check is one comparison of a cluster with its files. Its Job writes it.
type Check struct {
	// Name of the Job.
	Job string `json:"job"`
	// What the check was asked for: generation, version of the ConfigMap, targets, requests. Another one makes it outdated.
	For     string       `json:"for,omitempty"`
	Started *metav1.Time `json:"started,omitempty"`
	Ended   *metav1.Time `json:"ended,omitempty"`
	// Commit, digest or hash of the files.
	Revision string `json:"revision,omitempty"`
	// Hash of the files.
	Files string `json:"files,omitempty"`
	// Hash of what recast.lock pins.
	Lock string `json:"lock,omitempty"`
	// SHA-256 of the recast.lock that is kept, with lock: Update. A kept lock with another one is not used.
	KeptLock string `json:"keptLock,omitempty"`
	// recast's exit code: 0 in sync, 2 drift, else the check has failed.
	// +optional
	ExitCode int32 `json:"exitCode"`
	// Why the check has failed, and what to do: recast doctor's lines.
	// +listType=atomic
	Problems []string `json:"problems,omitempty"`
	// Why nodes are stale or unread, the first of them.
	// +listType=atomic
	Reasons []string `json:"reasons,omitempty"`
	// What only an upgrade of Kubernetes changes.
	OnlyKubernetes bool `json:"onlyKubernetes,omitempty"`
}

// Nodes counts the nodes of a cluster.
type Nodes struct {
	Total  int32 `json:"total"`
	InSync int32 `json:"inSync"`
	Stale  int32 `json:"stale"`
	Unread int32 `json:"unread"`
}

// Versions are those of Talos or Kubernetes.
type Versions struct {
	// The oldest one that a node runs.
	Current string `json:"current,omitempty"`
	// That of the files.
	Wanted string `json:"wanted,omitempty"`
	// The newest one that there is, if it is newer than what is wanted.
	Available string `json:"available,omitempty"`
}

// Is says whether a version is what the files want, with or without a v. nil: it is not known.
func (v *Versions) Is(version string) bool {
	return v != nil && strings.TrimPrefix(v.Wanted, "v") == strings.TrimPrefix(version, "v")
}

// Build is a schematic of recast.lock.
type Build struct {
	Schematic string `json:"schematic"`
	ID        string `json:"id"`
}

// RollSummary is an ImageRoll in a few words.
type RollSummary struct {
	Name  string    `json:"name"`
	Phase RollPhase `json:"phase,omitempty"`
}

// Source is where the files are.
//
// +kubebuilder:validation:XValidation:rule="[has(self.configMap), has(self.git), has(self.oci)].filter(x, x).size() == 1",message="give exactly one of configMap, git and oci"
type Source struct {
	ConfigMap *ConfigMapSource `json:"configMap,omitempty"`
	Git       *GitSource       `json:"git,omitempty"`
	OCI       *OCISource       `json:"oci,omitempty"`
}

// ConfigMapSource is a ConfigMap of the same namespace. A key is the name of a file; in place of
// a slash it has two underscores: schematics__base.yaml is schematics/base.yaml.
type ConfigMapSource struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('recast-cluster-') && !self.startsWith('recast-roll-')",message="name: recast-cluster-… and recast-roll-… are ConfigMaps of the operator's"
	Name string `json:"name"`
}

// GitSource is a Git repository.
//
// +kubebuilder:validation:XValidation:rule="!self.url.startsWith('http:') || (has(self.insecure) && self.insecure && self.ref.matches('^[0-9a-f]{40}$'))",message="url: is without TLS: use https or ssh, or set insecure and name the whole hash of a commit in ref"
type GitSource struct {
	// https://… or ssh://…
	// +kubebuilder:validation:Pattern=`^(https?|ssh)://.+$`
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(https?://[^/?#]*|ssh://[^/?#@]*:[^/?#]*)@')",message="url: has a user or a password: put them into the Secret that secretName names"
	URL string `json:"url"`
	// Branch, tag or full commit hash.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:default=main
	Ref string `json:"ref,omitempty"`
	// Directory that has recast.yaml.
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to the repository, without .."
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// Secret with username and password, or identity and known_hosts, as Flux takes them.
	SecretName string `json:"secretName,omitempty"`
	// http://…, of one commit: everyone on the way can read the files, and the password of the Secret.
	Insecure bool `json:"insecure,omitempty"`
}

// OCISource is an OCI artifact whose layer is a tar archive, as flux push artifact makes them.
//
// +kubebuilder:validation:XValidation:rule="!has(self.insecure) || !self.insecure || self.reference.contains('@')",message="insecure: is without TLS: name the artifact's digest in reference (…@sha256:…)"
type OCISource struct {
	// Repository with a tag or a digest: ghcr.io/acme/clusters/a:latest
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^@]+(@sha256:[0-9a-f]{64})?$')",message="reference: has a user or a password, or another digest than sha256: put users into the Secret that secretName names"
	Reference string `json:"reference"`
	// Directory in the archive that has recast.yaml.
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to the archive, without .."
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// Secret of type kubernetes.io/dockerconfigjson. recast uses it for its own registries, too.
	SecretName string `json:"secretName,omitempty"`
	// A registry without TLS, such as one inside of the cluster. Needs a digest.
	Insecure bool `json:"insecure,omitempty"`
}

// SecretKey is a key of a Secret of the same namespace.
type SecretKey struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key,omitempty"`
}

// Secrets are what recast needs to reach the servers of a cluster.
type Secrets struct {
	// Proxmox API token, user@realm!id=uuid. Default of key: token.
	ProxmoxToken SecretKey `json:"proxmoxToken"`
	// talosconfig with the role os:admin. Default of key: talosconfig.
	Talosconfig SecretKey `json:"talosconfig"`
	// kubeconfig of the cluster. Default of key: kubeconfig (or value, as Cluster API writes them, if you name it).
	Kubeconfig SecretKey `json:"kubeconfig"`
	// age key for files that sops has encrypted. Default of key: age.agekey.
	AgeKey *SecretKey `json:"ageKey,omitempty"`
	// Files beside recast.yaml that are no part of the source, such as machine configurations.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Files []SecretFile `json:"files,omitempty"`
	// Name of a Secret whose keys are environment variables: what hooks and notices need.
	EnvFrom string `json:"envFrom,omitempty"`
}

// SecretFile is a file that a Secret has.
type SecretFile struct {
	SecretKey `json:",inline"`
	// Where it is put, relative to recast.yaml.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to recast.yaml, without .."
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(./)*recast[.](yaml|lock)$')",message="path: recast.yaml and recast.lock come from the source"
	Path string `json:"path"`
}
