package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'Aborted' || self == 'Aborted'",message="state: an aborted FleetRoll can't go on, make another one"
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
