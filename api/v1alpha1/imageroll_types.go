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
	//
	// +kubebuilder:validation:MinLength=1
	ClusterName string `json:"clusterName"`
	// Nodes: bring every stale node to the lock. Kubernetes: recast upgrade-k8s.
	//
	// +optional
	// +kubebuilder:default=Nodes
	// +kubebuilder:validation:Enum=Nodes;Kubernetes
	Action RollAction `json:"action,omitempty"`
	// The roll begins only when this is true. It means the plan in the status: that plan is carried out or nothing.
	//
	// +optional
	Approved bool `json:"approved,omitempty"`
	// Starts no attempt. One that runs, runs to its end.
	//
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// Only these nodes. Default: all that are stale.
	//
	// +optional
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
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	Phase RollPhase `json:"phase,omitempty"`

	// The plan, once it is made. Its Job writes it.
	//
	// +optional
	Plan *Plan `json:"plan,omitempty"`
	// What the running attempt does. Its Job writes it.
	//
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// The outcome of each attempt's program. Its Job writes it.
	//
	// +optional
	Outcome *Outcome `json:"outcome,omitempty"`
	// Planning and attempts so far, the oldest first; the oldest go first when there are more than 20.
	//
	// +optional
	// +listType=atomic
	Attempts []Attempt `json:"attempts,omitempty"`
	// Attempts that were begun, with those that are no longer listed.
	//
	// +optional
	Begun int32 `json:"begun,omitempty"`
	// The newest Job that was really made: if that is gone, someone has deleted it.
	//
	// +optional
	MadeJob string `json:"madeJob,omitempty"`
	// Attempts in a row that finished no node.
	//
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// Attempts that ended since another run held the claim.
	//
	// +optional
	ClaimWaits int32 `json:"claimWaits,omitempty"`
	// Not before then is the next attempt begun.
	//
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// +optional
	Ended *metav1.Time `json:"ended,omitempty"`
}

// Plan is a plan in a few words.
type Plan struct {
	// The plan's hash. Approval means this one.
	Hash string `json:"hash"`
	// ConfigMap that has it as plan.json, and the files that it is of.
	ConfigMap string `json:"configMap"`
	// Commit, digest or hash of the files.
	//
	// +optional
	Revision string `json:"revision,omitempty"`
	// Nodes that are rolled.
	Nodes int32 `json:"nodes"`
	// A line for each node: "wk1: recreate, about 2m40s away: extension iscsi-tools …".
	//
	// +optional
	// +listType=atomic
	Lines []string `json:"lines,omitempty"`
	// Why nodes can't be rolled. Such a plan is not carried out.
	//
	// +optional
	// +listType=atomic
	Refused []string `json:"refused,omitempty"`
	// The plan only finishes what an earlier run left unfinished. The next ImageRoll does the rest.
	//
	// +optional
	Unfinished bool `json:"unfinished,omitempty"`
	// The node that is taken last: a good place for the Job of a cluster that rolls itself.
	//
	// +optional
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
	//
	// +optional
	// +listType=atomic
	Finished []string `json:"finished,omitempty"`
	// +optional
	Node string `json:"node,omitempty"`
	// The step, and what it waits for.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	Updated *metav1.Time `json:"updated,omitempty"`
}

// Outcome is how an attempt's program ended.
type Outcome struct {
	// Name of the Job.
	Job      string `json:"job"`
	ExitCode int32  `json:"exitCode"`
	// recast's run ID.
	//
	// +optional
	Run string `json:"run,omitempty"`
	// "done", "failed: …"
	//
	// +optional
	Message string `json:"message,omitempty"`
	// ConfigMap that has the report.
	//
	// +optional
	Report string `json:"report,omitempty"`
}

// Attempt is one Job.
type Attempt struct {
	// Name of the Job.
	Job string `json:"job"`
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// +optional
	Ended *metav1.Time `json:"ended,omitempty"`
	// Exit code of its container; none if it is not known, as when its node was lost.
	//
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// Nodes that were done when it ended.
	//
	// +optional
	Done int32 `json:"done,omitempty"`
}
