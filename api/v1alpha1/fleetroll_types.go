package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=50
	Stages []Stage `json:"stages"`
	// Clusters that are rolled at a time, of the whole fleet.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
	// Clusters that are rolled at a time, of those that have the same value of siteLabel.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrentPerSite int32 `json:"maxConcurrentPerSite,omitempty"`
	// Label of the TalosClusters that says where they are. Those without it are a site of their own, together.
	//
	// +optional
	// +kubebuilder:default="topology.kubernetes.io/region"
	// +kubebuilder:validation:MaxLength=317
	SiteLabel string `json:"siteLabel,omitempty"`
	// So many failed clusters stop the fleet: nothing more begins. What runs, runs to its end.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	AbortThreshold int32 `json:"abortThreshold,omitempty"`
	// Paused begins nothing until it is Running again; Aborted for ever. What runs, runs to its end.
	//
	// +optional
	// +kubebuilder:default=Running
	// +kubebuilder:validation:Enum=Running;Paused;Aborted
	// +kubebuilder:validation:XValidation:rule="oldSelf != 'Aborted' || self == 'Aborted'",message="state: an aborted FleetRoll can't go on, make another one"
	State FleetState `json:"state,omitempty"`
	// Sets the annotation recast.dev/talos-target of each cluster when its turn comes. They need lock: Update.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$`
	TalosVersion string `json:"talosVersion,omitempty"`
	// Names of stages whose approval is Manual and that may begin.
	//
	// +optional
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
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
	// How long the stage is watched when its last cluster is done, before the next one begins.
	//
	// +optional
	Soak metav1.Duration `json:"soak,omitempty"`
	// Manual: the stage begins when approvedStages names it.
	//
	// +optional
	// +kubebuilder:default=Automatic
	// +kubebuilder:validation:Enum=Manual;Automatic
	Approval string `json:"approval,omitempty"`
	// CEL expressions that must be true of every cluster of the stage before the next one begins, besides that no node
	// is stale or unread. The variable cluster is the TalosCluster: cluster.status.nodes.total >= 3
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Gates []string `json:"gates,omitempty"`
}

// FleetRollStatus is how far a fleet is.
type FleetRollStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The stage that runs.
	//
	// +optional
	Stage string `json:"stage,omitempty"`
	// "12/100"
	//
	// +optional
	Summary string `json:"summary,omitempty"`
	// +optional
	Done int32 `json:"done,omitempty"`
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// +optional
	Running int32 `json:"running,omitempty"`
	// The clusters, as settled at the begin.
	//
	// +optional
	// +listType=map
	// +listMapKey=cluster
	Members []Member `json:"members,omitempty"`
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// +optional
	Ended *metav1.Time `json:"ended,omitempty"`
}

// Member is a cluster of a fleet.
type Member struct {
	Cluster string `json:"cluster"`
	Stage   string `json:"stage"`
	// +optional
	Site string `json:"site,omitempty"`
	// +optional
	// +kubebuilder:default=Waiting
	Phase MemberPhase `json:"phase,omitempty"`
	// Its ImageRoll.
	//
	// +optional
	Roll string `json:"roll,omitempty"`
	// +optional
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
