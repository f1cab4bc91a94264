package v1alpha1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// Image of recast. Default: that of the operator.
	Image            string                        `json:"image,omitempty"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Default: 50m CPU and 128Mi memory requested, 1Gi memory as limit. Images are unpacked on disk, not in memory.
	Resources    *corev1.ResourceRequirements `json:"resources,omitempty"`
	NodeSelector map[string]string            `json:"nodeSelector,omitempty"`
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
type GitSource struct {
	// https://… or ssh://…
	// +kubebuilder:validation:Pattern=`^(https?|ssh)://.+$`
	URL string `json:"url"`
	// Branch, tag or full commit hash.
	// +kubebuilder:default=main
	Ref string `json:"ref,omitempty"`
	// Directory that has recast.yaml.
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to the repository, without .."
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// Secret with username and password, or identity and known_hosts, as Flux takes them.
	SecretName string `json:"secretName,omitempty"`
}

// OCISource is an OCI artifact whose layer is a tar archive, as flux push artifact makes them.
type OCISource struct {
	// Repository with a tag or a digest: ghcr.io/acme/clusters/a:latest
	// +kubebuilder:validation:MinLength=1
	Reference string `json:"reference"`
	// Directory in the archive that has recast.yaml.
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to the archive, without .."
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// Secret of type kubernetes.io/dockerconfigjson. recast uses it for its own registries, too.
	SecretName string `json:"secretName,omitempty"`
	// A registry without TLS, such as one inside of the cluster.
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
